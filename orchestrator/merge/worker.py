"""Writes the weights of an export: `python -m orchestrator.merge.worker REQUEST`, with the request as JSON.

What it says goes to standard output: lines of progress, then one line with the result or with what is wrong.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from launch.parent_death import die_with_parent
from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.export.process import RESULT_PREFIX
from orchestrator.train.worker import quiet_libraries, read_plan, report

_FULL = ("os error 28", "No space left", "Disk quota")
_KIB = 1024


def main() -> int:
    """Do what the request says."""
    die_with_parent()
    request: dict[str, Any] = json.loads(sys.argv[1])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TQDM_DISABLE"] = "1"
    try:
        quiet_libraries()
        result = _work(request)
    except UserError as error:
        report(error)
        return int(ExitCode.BAD_INPUT)
    except Exception as error:
        # safetensors has an error type of its own for a full disk, hence no narrower clause
        if isinstance(error, OSError) or any(word in str(error) for word in _FULL):
            report(UserError(_refused(request, error)))
            return int(ExitCode.BAD_INPUT)
        raise
    print(RESULT_PREFIX + json.dumps(result), flush=True)
    return 0


def _work(request: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import replace

    from orchestrator.merge import adapter, base
    from orchestrator.train.model import DTYPES

    plan = read_plan(Path(request["plan"]))
    config = plan.run_config
    if request["base"]:
        config = replace(config, model=replace(config.model, path=request["base"], revision=""))
    folder = Path(request["folder"])
    result: dict[str, Any] = {"dtype": request["dtype"], "notes": []}
    dtype = DTYPES.get(request["dtype"])
    source = base.source_of(
        Path(request["base"]), dtype or DTYPES["bf16"], trust_remote_code=config.model.trust_remote_code
    )
    own = Path(request["adapter"]) if request["adapter"] else folder / request["part"]
    if not request["adapter"]:
        checkpoint, result["notes"] = adapter.newest_whole([Path(name) for name in request["checkpoints"]])
        result["step"] = checkpoint.step
        adapter.write_from_checkpoint(config, source, checkpoint, own, Path(request["plan"]).parent)
    if request["merges"]:
        result |= _merge(request, config, plan.chosen.strategy.precision, source, own)
    elif dtype is not None:
        adapter.cast(own, folder, dtype)
    else:
        for path in own.iterdir():
            path.rename(folder / path.name)
    result["peak_host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return result


def _merge(request: dict[str, Any], config: Any, precision: str, source: Any, adapter: Path) -> dict[str, Any]:  # noqa: ANN401
    from dataclasses import asdict

    from orchestrator.export.adapter_files import read_adapter_config
    from orchestrator.export.serving import mergeable
    from orchestrator.merge.base import Base
    from orchestrator.merge.layers import AdaptedLayers
    from orchestrator.merge.run import Merge
    from orchestrator.merge.trained import trained_of

    reasons = list(mergeable(read_adapter_config(adapter)))
    if reasons:
        found = f"the adapter cannot be merged: {'; '.join(reasons)}"
        raise UserError(Problem(where="export.format=merged", found=found, remedy="Use export.format=peft."))
    trained = trained_of(config.base, precision) if request["onto"] == "dequantised" else None
    _say("reading the layout of the base")
    base = Base(source, trained)
    merge = Merge(base, AdaptedLayers(base.model, adapter))
    _say(f"merging {len(merge.outs)} tensors, {merge.nbytes / 2**30:.2f} GiB")
    done = merge.write(Path(request["folder"]), request["shard_bytes"], _say)
    base.close()
    told = asdict(done)
    if done.is_untied:
        told["notes"] = ["input and output embeddings were one tensor and are two now: an adapter changes one of them"]
    return told


def _say(line: str) -> None:
    print(f"export: {line}", flush=True)


def _refused(request: dict[str, Any], error: Exception) -> Problem:
    reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
    remedy = "Free space, or give another disk with export.to=FOLDER; nothing was left behind."
    return Problem(where=f"export.to={request['target']}", found=f"could not write ({reason})", remedy=remedy)


if __name__ == "__main__":
    sys.exit(main())
