"""Reads the folder of a sweep of trainings, one that is going on, too, or of a sweep of plans."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UserError
from orchestrator.report.page.course import points_of
from orchestrator.report.page.files import spread_lines
from orchestrator.report.page.scale import Point, thinned
from orchestrator.report.page.sweep_record import SweepRecord, Tried, tried
from orchestrator.report.page.words import inside, listed, number
from orchestrator.report.sweep import varied_values
from orchestrator.report.trained import peak_of
from orchestrator.run_dir import leaves, read_json, saved_config

_FIRST_RESULT: Final = "step_seconds"
_PLAN_RESULTS: Final = ("step_seconds", "tokens_per_second", "device_bytes", "host_bytes")
_CURVE_LINES: Final = 2000
_CURVE_POINTS: Final = 300
_NOT_SETTINGS: Final = frozenset({"run_dir", "resume", "save", "format", "dry_run"})


def is_sweep(folder: Path) -> bool:
    """Whether trials lie there: their table, or folders by number in the place of a run."""
    if (folder / "plan.json").exists():
        return False
    return any((folder / name).is_file() for name in ("sweep.json", "sweep.csv")) or bool(_trial_folders(folder))


def _trial_folders(folder: Path) -> list[Path]:
    found = [path.parent for path in folder.glob("*/plan.json") if path.parent.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def read_sweep(folder: Path) -> SweepRecord:
    """Read the table that the sweep left; before its end, what its trials have come to."""
    body = read_json(folder / "sweep.json")
    if body is None and (folder / "sweep.csv").is_file():
        return _of_plans(folder)
    trials = _ended(folder, body) if body is not None else _under_way(folder)
    keys = tuple(dict.fromkeys(key for trial in trials for key in trial.values))
    if not keys:
        keys = varied_values([trial.overrides for trial in trials])[0]
    return SweepRecord(
        name=folder.name,
        folder=str(folder),
        made=time.time(),
        trials=trials,
        keys=keys,
        command=_command(folder),
        is_over=body is not None,
    )


def _of_plans(folder: Path) -> SweepRecord:
    """The table of `plan -m`: columns of settings, then what each plan needs; a note where nothing fits."""
    with (folder / "sweep.csv").open(newline="", encoding="utf-8", errors="replace") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
        names = [name for name in reader.fieldnames or () if name]
    keys = tuple(names[: names.index(_FIRST_RESULT)]) if _FIRST_RESULT in names else ()
    trials = []
    for at, row in enumerate(rows):
        step, rate, device, host = (_number(row.get(name)) for name in _PLAN_RESULTS)
        results = {"step_seconds": step, "tokens_per_second": rate, "peak_bytes": device or host}
        status = "does not fit" if step is None else str(row.get("strategy") or "fits")
        values = {key: row.get(key) or "" for key in keys}
        reason = row.get("note") or ""
        trials.append(Tried(number=at, status=status, values=values, results=results, reason=reason))
    return SweepRecord(
        name=folder.name, folder=str(folder), made=time.time(), trials=tuple(trials), keys=keys, is_of_plans=True
    )


def _number(text: str | None) -> float | None:
    try:
        return number(float(text or ""))
    except ValueError:
        return None


def _ended(folder: Path, body: dict[str, Any]) -> tuple[Tried, ...]:
    found = [one for one in listed(body.get("trials")) if isinstance(one, dict)]
    return tuple(tried(one, *_left(folder, folder / str(one.get("number")))) for one in found)


def _under_way(folder: Path) -> tuple[Tried, ...]:
    """What is in the folders of the trials that have begun: settings that differ, and results so far."""
    paths = _trial_folders(folder)
    settings = [_settings(path) for path in paths]
    readable = [one for one in settings if one]
    names = sorted({key for one in readable for key in one} - _NOT_SETTINGS)
    keys = [key for key in names if len({repr(one.get(key)) for one in readable}) > 1]
    found = []
    for path, own in zip(paths, settings, strict=True):
        summary = read_json(path / "summary.json") or {}
        measured = inside(summary, "measured")
        body = {
            "number": int(path.name),
            "status": summary.get("status") or "not ended",
            "values": {key: own.get(key) for key in keys} if own else {},
            **{key: summary.get(key) for key in ("eval_loss_before", "eval_loss_after", "steps")},
            "train_loss": summary.get("train_loss_last"),
            "step_seconds": inside(measured, "step_seconds"),
            "tokens_per_second": inside(measured, "tokens_per_second"),
            "peak_bytes": peak_of(inside(measured, "memory")),
            "reason": summary.get("reason"),
        }
        found.append(tried(body, *_left(folder, path)))
    return tuple(found)


def _settings(trial: Path) -> dict[str, Any]:
    """Of a trial; none where its plan cannot be read."""
    try:
        return dict(leaves(saved_config(trial)))
    except UserError:
        return {}


def _left(folder: Path, trial: Path) -> tuple[str, tuple[Point, ...]]:
    """The link to a trial's own page, and its loss."""
    page = trial / "report.html"
    link = page.relative_to(folder).as_posix() if page.is_file() else ""
    records = spread_lines(trial / "metrics.jsonl", _CURVE_LINES).records
    return link, thinned(points_of([one for one in records if "loss" in one], "loss"), _CURVE_POINTS)


def _command(folder: Path) -> str:
    """What was typed, from the file that Hydra leaves."""
    from shlex import join

    import yaml

    try:
        body = yaml.safe_load((folder / "multirun.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    asked = inside(body, "hydra", "overrides", "task")
    ours = [str(one) for one in listed(inside(body, "hydra", "overrides", "hydra"))]
    chosen = [one for one in ours if one.startswith(("hydra/sweeper=", "hydra/launcher=", "hydra.sweeper."))]
    return join(["trainmaster", "train", "-m", *map(str, listed(asked)), *chosen]) if asked else ""
