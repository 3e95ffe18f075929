"""Where a run lives: a new folder, a given one, or the one to resume."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.config_codec import dump_config
from orchestrator.errors import Problem, UserError

RUNS = Path("runs")
_TRACES = ("summary.json", "metrics.jsonl", "checkpoints", "adapter")
# What two commands must share for one to continue the other's run.
_IDENTITY = ("model", "data", "base", "adapter", "batch", "optimizer", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """The folder of a run, and whether the run goes on there."""

    path: Path
    resuming: bool

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
        UserError: the folder holds another run, nothing to resume, or the folder cannot be made.
    """
    resume = config.resume.strip()
    if resume.lower() in {"", "false"}:
        return RunDir(path=_fresh(config), resuming=False)
    if resume.lower() == "true":
        path = Path(config.run_dir).absolute() if config.run_dir else _newest_like(config)
    else:
        path = Path(resume).absolute()
    if not (path / "plan.json").is_file():
        raise UserError(
            Problem(where=f"resume={resume}", found=f"no plan.json in {path}", remedy="Give the folder of a run.")
        )
    return RunDir(path=path, resuming=True)


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
    found: dict[str, Any] = body["config"]
    return found


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
    path = Path(config.run_dir).expanduser().absolute()
    held = [name for name in _TRACES if (path / name).exists()]
    if held:
        raise UserError(
            Problem(
                where=f"run_dir={config.run_dir}",
                found=f"it already holds a run ({', '.join(held)})",
                remedy="Add resume=true to continue that run, or give another run_dir.",
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
    kept = "".join(char if char.isalnum() or char in "._-" else "-" for char in name)
    return kept.strip("._-") or "run"


def _newest_like(config: RunConfig) -> Path:
    wanted = _identity(dump_config(config))
    folders = [path.parent for path in RUNS.glob("*/plan.json")]
    for path in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True):
        body = read_json(path / "plan.json")
        if body and _identity(body.get("config", {})) == wanted:
            return path.absolute()
    raise UserError(
        Problem(
            where="resume=true",
            found=f"none of the {len(folders)} runs in {RUNS.absolute()} has this model, data and training settings",
            remedy="Repeat the command that started the run, or name its folder: resume=RUN_DIR.",
        )
    )


def _identity(config: dict[str, Any]) -> dict[str, Any]:
    found = {key: config.get(key) for key in _IDENTITY}
    batch = dict(found["batch"] or {})
    batch.pop("micro", None)  # the global batch decides; how it is cut does not
    return {**found, "batch": batch}
