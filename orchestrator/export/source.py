"""What is exported: the run, which of its states, and the base it belongs to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import ExportFormat, ExportOnto, RunConfig
from orchestrator.config_rules_export import BEST, NEWEST
from orchestrator.dataset.disk import expanded
from orchestrator.errors import Problem, UserError
from orchestrator.export.adapter_files import CONFIG, WEIGHTS, check_adapter
from orchestrator.planner.plan import Plan, loads
from orchestrator.run_dir import folder_of, read_json
from orchestrator.runs import run_folder
from orchestrator.workload.files import hub_cache_dir, resolve

ADAPTER = "adapter"
_NONE = "none"  # stands for a model that was not given
_FILES = (WEIGHTS, CONFIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One state of a run.

    Attributes:
        run_dir: its folder.
        plan: of the newest start.
        asked: the configuration of the run, as its plan has it.
        adapter: folder of the finished adapter; None where a checkpoint is taken.
        checkpoints: folders to take it from, the first whole one counts.
        base: folder of the base; None where it is not on this machine.
        model: hub id or path of the base, as the user gave it.
        losses: held-out loss by step.
        summary: that the run left; empty without one.
        notes: what a reader should know of the choice.
    """

    run_dir: Path
    plan: Plan
    asked: RunConfig
    adapter: Path | None
    checkpoints: tuple[Path, ...]
    base: Path | None
    model: str
    losses: dict[int, float]
    summary: dict[str, object]
    notes: tuple[str, ...] = ()


def open_source(config: RunConfig) -> Source:
    """Find what the configuration asks for.

    Raises:
        UserError: no run, no such state, or no base where one is needed.
    """
    path = run_folder(config.run_dir, "export")
    try:
        plan = loads((path / "plan.json").read_text(encoding="utf-8"))
        asked = plan.run_config
    except (OSError, UserError) as error:
        found = str(error.problems[0].found) if isinstance(error, UserError) else str(error.strerror)
        remedy = "Give the folder of a run whose plan.json is whole."
        raise UserError(Problem(where=str(path / "plan.json"), found=found, remedy=remedy)) from error
    summary = read_json(path / "summary.json") or {}
    losses = {
        int(record["step"]): float(record["eval_loss"])
        for record in _records(path / "metrics.jsonl")
        if isinstance(record.get("eval_loss"), int | float) and isinstance(record.get("step"), int)
    }
    adapter, checkpoints, notes = _state(path, config.export.checkpoint, summary, losses)
    model = config.model.path if config.model.path != _NONE else asked.model.path
    base = _base(model, asked.model.revision)
    needs_base = config.export.format is ExportFormat.merged or adapter is None
    if base is None and needs_base:
        remedy = "Name the folder where it is now: model=FOLDER."
        raise UserError(Problem(where="model", found=f"the base {model} is not on this machine", remedy=remedy))
    return Source(
        run_dir=path,
        plan=plan,
        asked=asked,
        adapter=adapter,
        checkpoints=checkpoints,
        base=base,
        model=model,
        losses=losses,
        summary=summary,
        notes=notes,
    )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file that may end in the middle of one."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _base(model: str, revision: str) -> Path | None:
    return resolve(model, hub_cache_dir(os.environ, expanded("~")), revision)


def _state(
    path: Path, word: str, summary: dict[str, object], losses: dict[int, float]
) -> tuple[Path | None, tuple[Path, ...], tuple[str, ...]]:
    """Choose the finished adapter, or checkpoints in the order in which they are tried; and say what was passed over.

    An adapter with a damaged file counts as none where there are checkpoints.
    """
    steps = {
        int(folder.name.removeprefix("step-")): folder
        for folder in (path / "checkpoints").glob("step-*")
        if folder.name.removeprefix("step-").isdecimal()
    }
    adapter = path / ADAPTER
    damage = _damage(adapter)
    try:
        adapter_or_none = adapter if damage is None and all((adapter / name).is_file() for name in _FILES) else None
        chosen = _choose(path, word, adapter_or_none, steps, summary, losses)
    except UserError as error:
        if damage is not None and word in {NEWEST, BEST}:
            raise damage from error
        raise
    told = () if damage is None or word not in {NEWEST, BEST} else (_passed_over(damage),)
    return *chosen, told


def _damage(adapter: Path) -> UserError | None:
    """What is wrong with the files of the finished adapter; None where they are whole, or where one is missing."""
    if not all((adapter / name).is_file() for name in _FILES):
        return None
    try:
        check_adapter(adapter)
    except UserError as error:
        return error
    return None


def _passed_over(damage: UserError) -> str:
    one = damage.problems[0]
    return f"the finished adapter was passed over: {one.where}: {one.found}"


def _choose(
    path: Path,
    word: str,
    adapter: Path | None,
    steps: dict[int, Path],
    summary: dict[str, object],
    losses: dict[int, float],
) -> tuple[Path | None, tuple[Path, ...]]:
    is_done = summary.get("status") == "done"
    last = summary.get("steps")
    if word == NEWEST:
        if adapter and (is_done or not steps):
            return adapter, ()
        found = tuple(steps[step] for step in sorted(steps, reverse=True))
    elif word == BEST:
        kept = {*steps, *([int(last)] if adapter and is_done and isinstance(last, int) else [])}
        ranked = sorted((loss, -step) for step, loss in losses.items() if step in kept)
        if not ranked:
            raise _nothing(
                path, "no kept state has a held-out loss", "Train with eval.every and checkpoint.every alike."
            )
        best = -ranked[0][1]
        if best == last and adapter and is_done:
            return adapter, ()
        found = (steps[best],)
    else:
        if int(word) not in steps:
            kept_steps = ", ".join(str(step) for step in sorted(steps)) or "none"
            raise _nothing(path, f"there is no checkpoint of step {word}", f"Kept: {kept_steps}.")
        found = (steps[int(word)],)
    if not found:
        remedy = "Train first, or go on with it: trainmaster train resume=RUN_DIR."
        raise _nothing(path, "neither a finished adapter nor a checkpoint", remedy)
    return None, found


def _nothing(path: Path, found: str, remedy: str) -> UserError:
    return UserError(Problem(where=str(path), found=found, remedy=remedy))


def target_of(config: RunConfig, source: Source) -> Path:
    """Return the folder that is to be made."""
    if config.export.to:
        return folder_of(config.export.to)
    return source.run_dir / "export" / config.export.format.value


def onto_of(config: RunConfig, asked: RunConfig) -> ExportOnto:
    """Settle which values of the base are merged into.

    PiSSA and LoftQ train on a base that was changed at the start, and their adapters are written relative to the base
    as it is stored; so they are merged into that.

    Raises:
        UserError: they are asked to be merged into rounded values.
    """
    quantised = asked.base.quant.value != "none"
    changes_base = asked.adapter.init.value in {"pissa", "loftq"}
    if config.export.onto is ExportOnto.dequantised and quantised and changes_base:
        found = f"adapter.init={asked.adapter.init.value} is written relative to the base as it is stored"
        raise UserError(Problem(where="export.onto", found=found, remedy="Use export.onto=original."))
    if config.export.onto is ExportOnto.original or not quantised or changes_base:
        return ExportOnto.original
    return ExportOnto.dequantised
