"""Held-out loss after training with dense, sparse and PowerSGD gradients: the demo on two gloo ranks, equal steps.

    python bench/compress_loss.py [--seeds 0 1 2] [--steps N] [--out FILE]

Each run is planned by `trainmaster plan experiment=demo` and carried out by its ranks; only the way of the gradients
differs. Sparse gradients and PowerSGD both begin after the same dense steps. Bytes are the mean over the compressed
steps, and over all steps with the dense ones as fp32, which the demo's adapters are; both of those of dense bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("compress_loss_worker.py")
_METHODS = ("dense", "topk", "powersgd")
_LIMIT_SECONDS = 900  # of a run; a hook that waits for ever ends then


def main() -> int:
    """Run all methods with all seeds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps; 0: the demo's own")
    parser.add_argument("--methods", nargs="+", default=list(_METHODS), choices=_METHODS)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    parser.add_argument("--out", type=Path, help="JSON with all runs")
    asked = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in asked.seeds:
            for method in asked.methods:
                run = train(method, seed, asked.steps, asked.set, Path(folder) / f"{method}-{seed}")
                runs.append(run)
                print(json.dumps(run), file=sys.stderr, flush=True)
                if asked.out:
                    asked.out.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    print(table(runs))
    return 0


def train(method: str, seed: int, steps: int, settings: list[str], run_dir: Path) -> dict[str, Any]:
    """Plan and carry out one run; return what its summary tells."""
    compress = "topk" if method == "topk" else "none"
    command = [sys.executable, "-m", "orchestrator.cli", "plan", "experiment=demo", f"compress={compress}"]
    command += [f"seed={seed}", f"run_dir={run_dir}", f"batch.max_steps={steps}", "eval.before=true", *settings]
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)  # noqa: S603
    plan = json.loads((run_dir / "plan.json").read_text(encoding="utf-8"))
    if method == "powersgd":
        num_steps = steps or round(plan["workload"]["rows_per_epoch"] * 2 / plan["config"]["batch"]["global"])
        method = f"powersgd{max(2, round(0.1 * num_steps))}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ranks = [*launcher, str(_WORKER), method, str(run_dir / "plan.json")]
    subprocess.run(ranks, check=True, env=env, stdout=subprocess.DEVNULL, timeout=_LIMIT_SECONDS)  # noqa: S603
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    sparse = summary["compression"] or {}
    told = sparse.get("steps", {})
    return {
        "method": method.rstrip("0123456789"),
        "seed": seed,
        "steps": summary["steps"],
        "before": summary["eval_loss_before"],
        "after": summary["eval_loss_after"],
        "dense_steps": told.get("dense", 0),
        "refresh_steps": told.get("refresh", 0),
        "topk_steps": told.get("compressed", 0) - told.get("refresh", 0),
        "topk_bytes": sparse.get("measured", {}).get("topk_bytes"),
        "refresh_bytes": sparse.get("measured", {}).get("refresh_bytes"),
        "wire_bytes": sparse.get("measured", {}).get("wire_bytes"),
        "dense_bytes": sparse.get("dense_bytes"),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each run, then the mean of each method against dense."""
    dense = {run["seed"]: run["after"] for run in runs if run["method"] == "dense"}
    words = ("method", "seed", "steps: top-k, refresh, dense", "bytes of bf16: compressed, all", "held-out loss", "")
    lines = [f"| {' | '.join(words)} |", "|---" * len(words) + "|"]
    for run in sorted(runs, key=lambda run: (_METHODS.index(run["method"]), run["seed"])):
        against = f"{run['after'] / dense[run['seed']] - 1:+.2%}" if run["seed"] in dense else ""
        lines.append(
            f"| {run['method']} | {run['seed']} | {_steps(run)} | {_bytes(run)} | {run['after']:.4f} | {against} |"
        )
    for method in dict.fromkeys(run["method"] for run in runs):
        after = [run["after"] for run in runs if run["method"] == method]
        mean = statistics.mean(after)
        against = f" ({mean / statistics.mean(dense.values()) - 1:+.2%})" if dense else ""
        lines.append(f"mean of {len(after)}, {method}: {mean:.4f}{against}")
    return "\n".join(lines)


def _steps(run: dict[str, Any]) -> str:
    if run["method"] != "topk":
        return ""
    share = (run["topk_steps"] + run["refresh_steps"]) / run["steps"]
    return f"{run['topk_steps']}, {run['refresh_steps']}, {run['dense_steps']}: {share:.0%} compressed"


def _bytes(run: dict[str, Any]) -> str:
    if run["method"] != "topk" or not run["wire_bytes"]:
        return ""
    compressed = run["topk_steps"] + run["refresh_steps"]
    mean = (compressed * run["wire_bytes"] + run["dense_steps"] * run["dense_bytes"]) / run["steps"]
    bf16 = run["dense_bytes"] / 2
    return f"{run['wire_bytes'] / bf16:.1%}, {mean / bf16:.1%}"


if __name__ == "__main__":
    sys.exit(main())
