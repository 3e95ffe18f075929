"""`trainmaster export`: finds the state, has it written, says what servers make of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.config import Dtype, ExportFormat, ExportOnto, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.export import serving
from orchestrator.export.adapter_files import CONFIG, WEIGHTS, check_finite, read_adapter_config
from orchestrator.export.card import Written, card
from orchestrator.export.facts import Facts, gather
from orchestrator.export.folder import check_room, new_folder, refuse_existing, size_of
from orchestrator.export.process import run_worker
from orchestrator.export.source import Source, onto_of, open_source, target_of
from orchestrator.run_dir import read_json
from orchestrator.workload.files import read_config, read_header, read_headers
from orchestrator.workload.quantised import prequantised

SCHEMA: Final = 1
_PART: Final = ".adapter"  # an adapter that is only needed on the way
_DTYPES: Final = {"F16": "fp16", "BF16": "bf16", "F32": "fp32"}
_BYTES: Final = {"fp16": 2, "bf16": 2, "fp32": 4}
_OF_ADAPTER: Final = frozenset({WEIGHTS, CONFIG, "README.md"})
_OF_BASE: Final = ("generation_config.json", "*.py", "LICENSE*", "NOTICE*", "USE_POLICY*")
_NOT_OF_MERGED: Final = frozenset({"torch_dtype", "quantization_config", "_name_or_path"})
_GIB: Final = 2**30
_MARGIN_BYTES: Final = 2**24  # tokenizer, card, index


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        body: for scripts.
        text: for people.
    """

    body: dict[str, Any]
    text: str


def export(config: RunConfig, say: Callable[[str], None]) -> Exported:
    """Write what the configuration asks for.

    Raises:
        UserError: no such run or state, a target that exists, no room, or an adapter that cannot be merged or used.
    """
    source = open_source(config)
    target = target_of(config, source)
    refuse_existing(target)
    if source.adapter is not None:
        check_finite(source.adapter)
    merges = config.export.format is ExportFormat.merged
    onto = onto_of(config, source.asked)
    dtype = _dtype(config, source)
    check_room(target, _needed_bytes(source, dtype, merges=merges))
    facts = gather(source)
    with new_folder(target) as folder:
        asked = {**_asked(config, source, folder, dtype, onto), "target": str(target)}
        needs_worker = merges or source.adapter is None or config.export.dtype is not Dtype.auto
        done = run_worker(asked, say) if needs_worker else {}
        adapter = source.adapter if source.adapter and not (folder / CONFIG).is_file() else folder
        if merges:
            adapter = source.adapter or folder / _PART
        told = _finish(config, source, facts, folder, adapter, done, onto)
        shutil.rmtree(folder / _PART, ignore_errors=True)
    return _exported(source, target, told, done)


def _dtype(config: RunConfig, source: Source) -> str:
    """Settle the type that is written; `auto` for adapters that stay as they are."""
    if config.export.dtype is not Dtype.auto or config.export.format is ExportFormat.peft:
        return config.export.dtype.value
    elements: Counter[str] = Counter()
    for info in read_headers(_base_of(source)).values():
        elements[info.dtype] += info.elements
    usual = _DTYPES.get(elements.most_common(1)[0][0], "bf16") if elements else "bf16"
    return "bf16" if usual == "fp32" else usual


def _base_of(source: Source) -> Path:
    if source.base is None:
        raise RuntimeError("the base was not looked for")
    return source.base


def _needed_bytes(source: Source, dtype: str, *, merges: bool) -> int:
    """Return what the disk must have room for.

    Raises:
        UserError: a base that cannot be merged into.
    """
    if not merges:
        return _MARGIN_BYTES + size_of(source.adapter or source.checkpoints[0])
    base = _base_of(source)
    told = prequantised(source.model, read_config(base))
    if told is not None:
        raise UserError(
            Problem(
                where="export.format=merged",
                found=f"the base {source.model} is stored in {told.quant}, and has no 16-bit weights to merge into",
                remedy="Use export.format=peft, or name the 16-bit weights that it was made from: model=FOLDER.",
            )
        )
    tensors = read_headers(base)
    if not tensors:
        raise UserError(
            Problem(
                where="export.format=merged",
                found=f"the base {source.model} has no safetensors, which are read one tensor at a time",
                remedy="Save it once with save_pretrained and name that folder (model=FOLDER), or use the peft format.",
            )
        )
    return _MARGIN_BYTES + sum(info.elements for info in tensors.values()) * _BYTES[dtype]


def _asked(config: RunConfig, source: Source, folder: Path, dtype: str, onto: ExportOnto) -> dict[str, Any]:
    """Return what the worker is told."""
    if source.adapter is not None and config.export.format is ExportFormat.merged:
        _check_mergeable(read_adapter_config(source.adapter))
    return {
        "plan": str(source.run_dir / "plan.json"),
        "base": str(source.base or ""),
        "adapter": str(source.adapter or ""),
        "checkpoints": [str(path) for path in source.checkpoints],
        "folder": str(folder),
        "part": _PART,
        "merges": config.export.format is ExportFormat.merged,
        "dtype": dtype,
        "onto": onto.value,
        "shard_bytes": int(config.export.shard_gib * _GIB),
    }


def _check_mergeable(config: Mapping[str, Any]) -> None:
    reasons = list(serving.mergeable(config))
    if reasons:
        found = f"the adapter cannot be merged: {'; '.join(reasons)}"
        raise UserError(Problem(where="export.format=merged", found=found, remedy="Use export.format=peft."))


def _finish(
    config: RunConfig,
    source: Source,
    facts: Facts,
    folder: Path,
    adapter: Path,
    done: Mapping[str, Any],
    onto: ExportOnto,
) -> dict[str, Any]:
    """Add what is not a weight, and return what is told of the result."""
    own = read_adapter_config(adapter)
    tensors = {name: (info.dtype, info.shape) for name, info in read_header(adapter / WEIGHTS).items()}
    merges = config.export.format is ExportFormat.merged
    served = (serving.vllm(own, tensors, _architecture(source)), serving.sglang(own))
    if merges:
        _add_model_files(folder, _base_of(source), adapter, done)
        lines: tuple[str, ...] = ("vLLM and SGLang load it as any model of its architecture",)
    else:
        _add_adapter_files(folder, adapter, own, facts, source)
        lines = tuple(serving.to_line(one) for one in served)
    dtype = str(done["dtype"]) if merges else _types_of(tensors)
    step, state = _state(source, done)
    written = Written(
        format=config.export.format.value,
        dtype=dtype,
        step=step,
        state=state,
        onto=onto.value if merges else "",
        serving=lines,
    )
    (folder / "README.md").write_text(card(source, facts, written), encoding="utf-8")
    return {
        "format": config.export.format.value,
        "dtype": dtype,
        "onto": onto.value if merges else None,
        "step": step,
        "state": state,
        "eval_loss": None if step is None else source.losses.get(step),
        **{one.server.lower(): None if merges else serving.to_json(one) for one in served},
        "lines": list(lines),
    }


def _types_of(tensors: serving.Tensors) -> str:
    return ", ".join(sorted({_DTYPES.get(dtype, dtype) for dtype, _ in tensors.values()}))


def _architecture(source: Source) -> str:
    """Return the class of the base; empty where its folder is not here."""
    if source.base is None:
        return ""
    found = (read_json(source.base / "config.json") or {}).get("architectures")
    return str(found[0]) if isinstance(found, list) and found else ""


def _state(source: Source, done: Mapping[str, Any]) -> tuple[int | None, str]:
    if source.adapter is not None:
        steps = source.summary.get("steps")
        step = steps if isinstance(steps, int) else None
        return step, "the finished run" + ("" if step is None else f" (step {step})")
    step = int(done["step"])
    return step, f"the checkpoint of step {step}"


def _add_adapter_files(folder: Path, adapter: Path, own: dict[str, Any], facts: Facts, source: Source) -> None:
    if adapter != folder:
        for path in adapter.iterdir():
            if path.is_file() and path.name != "README.md":
                shutil.copyfile(path, folder / path.name)
    # PEFT loads the base by this name; a hub id is the same on every machine.
    own["base_model_name_or_path"] = facts.base_id or source.model
    own["revision"] = source.asked.model.revision or None
    (folder / CONFIG).write_text(json.dumps(own, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _add_model_files(folder: Path, base: Path, adapter: Path, done: Mapping[str, Any]) -> None:
    """Add config, tokenizer, code and licence; the tokenizer is the run's, with its chat template."""
    for path in adapter.iterdir():
        if path.is_file() and path.name not in _OF_ADAPTER:
            shutil.copyfile(path, folder / path.name)
    for pattern in _OF_BASE:
        for path in base.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    dtype = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[str(done["dtype"])]
    body = model_config(read_config(base), dtype, is_untied=bool(done.get("is_untied")))
    (folder / "config.json").write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def model_config(of_base: Mapping[str, Any], dtype: str, *, is_untied: bool) -> dict[str, Any]:
    """Return `config.json` of a merged model; what a composite one says in its parts is changed there, too."""
    return _part_config(of_base, dtype, is_untied=is_untied) | {
        "dtype": dtype,
        **({"tie_word_embeddings": False} if is_untied else {}),
    }


def _part_config(part: Mapping[str, Any], dtype: str, *, is_untied: bool) -> dict[str, Any]:
    body = {
        key: _part_config(value, dtype, is_untied=is_untied)
        if key.endswith("_config") and isinstance(value, Mapping)
        else value
        for key, value in part.items()
        if key not in _NOT_OF_MERGED
    }
    if part.get("dtype") is not None or part.get("torch_dtype") is not None:
        body["dtype"] = dtype
    # A part that does not say it may be tied by the default of its class.
    if is_untied and not {"tie_word_embeddings", "vocab_size"}.isdisjoint(part):
        body["tie_word_embeddings"] = False
    return body


def _exported(source: Source, target: Path, told: dict[str, Any], done: Mapping[str, Any]) -> Exported:
    files = [{"name": path.name, "bytes": path.stat().st_size} for path in sorted(target.iterdir())]
    lines = told.pop("lines")
    notes = [*source.notes, *map(str, done.get("notes", ()))]
    body = {
        "schema": SCHEMA,
        "run_dir": str(source.run_dir),
        "path": str(target),
        **told,
        "files": files,
        "peak_host_bytes": done.get("peak_host_bytes"),
        "notes": notes,
    }
    size = sum(path.stat().st_size for path in target.iterdir())
    text = [
        f"Wrote     {target} ({size / 2**20:.1f} MiB, {told['format']}, {told['dtype']})",
        f"State     {told['state']}",
    ]
    if told["onto"]:
        text.append(f"Merged    onto the {told['onto']} base")
    text += [f"Serving   {line}" for line in lines]
    text += [f"Note      {note}" for note in notes]
    return Exported(body=body, text="\n".join(text) + "\n")
