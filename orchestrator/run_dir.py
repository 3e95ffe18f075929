"""Where a run lives: a new folder, a given one, or the one to resume."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import Problem, UserError

RUNS = Path("runs")
_TRACES = ("summary.json", "metrics.jsonl", "checkpoints", "adapter")
# What two commands must share for one to continue the other's run.
# These belong to one command, not to the run.
OF_THE_COMMAND = frozenset(
    {"resume", "run_dir", "dry_run", "preview", "format", "save", "bench.only", "calibration", "follow", "faults.only"}
    | {"faults.limit_seconds", "report.against"}
    | {f"export.{key}" for key in ("to", "format", "dtype", "shard_gib", "checkpoint", "onto")}
)
# What the parameters, their moments and the order of the rows depend on.
_FIXED_GROUPS = ("base.", "adapter.")
_FIXED_KEYS = frozenset(
    {"batch.global", "seed", "optimizer.name", "data.group_by_length", "data.packing", "data.assistant_only"}
)
# What a configuration may leave to the planner, and how that is written; a plan has settled it.
_OPEN: dict[str, object] = {"data.packing": None, "optimizer.name": "auto", "adapter.rank": None}
_WITH_RANK = "adapter.rank_pattern"  # narrow modules get ranks of their own where the rank is open
_IDENTITY = ("model", "data", "base", "adapter", "batch", "optimizer", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """The folder of a run, and whether the run goes on there."""

    path: Path
    resuming: bool

    @property
    def name(self) -> str:
        """The folder's name as launchers take it."""
        return _plain(self.path.name)

    @property
    def attempt(self) -> int:
        """Number of this start, from 1."""
        return len(list(self.path.glob("plan.[0-9]*.json"))) + 1

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary that an attempt left, if any."""
        return read_json(self.path / "summary.json")


def choose(config: RunConfig) -> RunDir:
    """Return the folder of this run; nothing is created.

    Raises:
        UserError: the folder holds another run, or cannot be resumed with these settings.
    """
    resume = config.resume.strip()
    if resume.lower() in {"", "false"}:
        return RunDir(path=_fresh(config), resuming=False)
    named = folder_of(config.run_dir) if config.run_dir else None
    path = (named or _newest_like(config)) if resume.lower() == "true" else folder_of(resume)
    if named is not None and named != path:
        found = f"resume names {path}, run_dir names {named}"
        raise UserError(
            Problem(where="run_dir", found=found, remedy="A run goes on in its own folder: leave run_dir out.")
        )
    if not (path / "plan.json").is_file():
        raise UserError(
            Problem(where=f"resume={resume}", found=f"no plan.json in {path}", remedy="Give the folder of a run.")
        )
    _check_same_run(config, path)
    return RunDir(path=path, resuming=True)


def differences(config: RunConfig, path: Path) -> dict[str, tuple[Any, Any]]:
    """Return what this command sets otherwise than the run was started with: key -> (saved, now)."""
    saved, now = (dict(leaves(body)) for body in (saved_config(path), dump_config(config)))
    left = _left_open(now)
    return {
        key: (saved.get(key), value)
        for key, value in now.items()
        # A key that the run does not know came with a later version, and stands at its default.
        if key not in OF_THE_COMMAND and key in saved and saved[key] != value and key not in left
    }


def open_keys(config: RunConfig) -> tuple[str, ...]:
    """Return what of the fixed settings this configuration leaves to the planner; a run to resume has settled it."""
    return _left_open(dict(leaves(dump_config(config))))


def _left_open(wanted: Mapping[str, Any]) -> tuple[str, ...]:
    found = tuple(key for key, value in wanted.items() if key in _OPEN and value == _OPEN[key])
    return (*found, _WITH_RANK) if "adapter.rank" in found and not wanted.get(_WITH_RANK) else found


def is_finished(config: RunConfig, run: RunDir, summary: Mapping[str, Any]) -> bool:
    """Return whether there is nothing left to do; more steps than were planned reopen a finished run.

    Raises:
        UserError: the run is finished, and the command changes something that could no longer act.
    """
    if summary.get("status") != "done":
        return False
    changed = differences(config, run.path)
    if changed.keys() & {"batch.max_steps", "batch.epochs"}:
        return False
    if changed:
        raise UserError(
            *(
                Problem(
                    where=key,
                    found=f"the run in {run.path} is finished; it had {saved!r}, this command says {now!r}",
                    remedy="Start a new run, or give batch.epochs or batch.max_steps for more steps.",
                )
                for key, (saved, now) in changed.items()
            )
        )
    return True


def leaves(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the values of a nested mapping under dotted keys."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found.extend(leaves(value, f"{prefix}{key}."))
        else:
            found.append((prefix + key, value))
    return found


def _check_same_run(config: RunConfig, path: Path) -> None:
    """Refuse what a checkpoint cannot follow, before anything is written."""
    changed = differences(config, path)
    problems = [
        Problem(
            where=key,
            found=f"the run in {path} was started with {saved!r}, this command says {now!r}",
            remedy="Leave it as it was, or start a new run.",
        )
        for key, (saved, now) in changed.items()
        if key.startswith(_FIXED_GROUPS) or key in _FIXED_KEYS
    ]
    if problems:
        raise UserError(*problems)


def folder_of(text: str) -> Path:
    """Return the absolute path a user means; `~` stays as it is where there is no home."""
    return Path(os.path.expanduser(text)).absolute()  # noqa: PTH111 - Path.expanduser fails without a home


def saved_config(path: Path) -> dict[str, Any]:
    """Return the configuration that a run was started with.

    Raises:
        UserError: there is none.
    """
    body = read_json(path / "plan.json")
    if body is None or not isinstance(body.get("config"), dict):
        raise UserError(
            Problem(where=str(path), found="no readable plan.json", remedy="Give the folder of a run to resume.")
        )
    return _asked(body)


def _asked(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the user asked for. A plan that was made anew holds what was left to it, and this in `setbacks`."""
    setbacks = plan.get("setbacks")
    asked = setbacks.get("config") if isinstance(setbacks, dict) else None
    found = asked if isinstance(asked, dict) and asked else plan.get("config")
    return found if isinstance(found, dict) else {}


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None when there is no such file or object."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def _fresh(config: RunConfig) -> Path:
    if not config.run_dir:
        stem = Path(config.model.path.rstrip("/")).name or "run"
        return _unused((RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{_plain(stem)}").absolute())
    path = folder_of(config.run_dir)
    if path.exists() and not path.is_dir():
        raise UserError(
            Problem(where=f"run_dir={config.run_dir}", found="it is a file", remedy="Give a folder, or a new name.")
        )
    held = [name for name in _TRACES if (path / name).exists()]
    if held:
        raise UserError(
            Problem(
                where=f"run_dir={config.run_dir}",
                found=f"it already holds a run ({', '.join(held)})",
                remedy="Add resume=true to continue that run once it has ended, or give another run_dir.",
            )
        )
    return path


def _unused(path: Path) -> Path:
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _plain(name: str) -> str:
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name)
    return kept.strip("._-") or "run"


def _newest_like(config: RunConfig) -> Path:
    wanted = _identity(dump_config(config))
    folders = [path.parent for path in RUNS.glob("*/plan.json")]
    for path in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True):
        body = read_json(path / "plan.json")
        if body and _is_like(wanted, _identity(_completed(_asked(body)))):
            return path.absolute()
    raise UserError(
        Problem(
            where="resume=true",
            found=f"none of the {len(folders)} runs in {RUNS.absolute()} has this model, data and training settings",
            remedy="Repeat the command that started the run, or name its folder: resume=RUN_DIR.",
        )
    )


def _completed(saved: dict[str, Any]) -> dict[str, Any]:
    """Give keys that came after the run was made their defaults."""
    try:
        return dump_config(parse_config(saved))
    except UserError:
        return saved  # of a version whose keys this one does not know


def _is_like(wanted: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether the run has all that is wanted; what was left open it may have settled either way."""
    now, then = dict(leaves(wanted)), dict(leaves(saved))
    left = _left_open(now)
    return now.keys() == then.keys() and all(value == then[key] or key in left for key, value in now.items())


def _identity(config: dict[str, Any]) -> dict[str, Any]:
    found = {key: config.get(key) for key in _IDENTITY}
    batch = dict(found["batch"] or {})
    batch.pop("micro", None)  # the global batch decides; how it is cut does not
    return {**found, "batch": batch}
