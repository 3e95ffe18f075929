"""What the launching side keeps in a run directory: the lock, requests to stop, what a refused attempt overwrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from launch.errors import LaunchError
from launch.lock import run_lock
from orchestrator.errors import Problem, RunFailed, UserError
from orchestrator.launch_inputs import as_user_error
from orchestrator.run_dir import RunDir

STOP_FILE: Final = "stop"
_OURS: Final = "supervisor"


@contextmanager
def sole_use(run: RunDir) -> Iterator[None]:
    """Hold the folder of a run against other commands.

    Raises:
        UserError: another one works there, or it cannot be written.
    """
    _make_folder(run.path)
    try:
        with run_lock(str(run.path)):
            yield
    except LaunchError as error:
        raise as_user_error(error) from error


def request_stop(run: RunDir) -> None:
    """Ask the ranks to stop at the next step, in the supervisor's own name; a user's request stays a user's."""
    path = run.path / STOP_FILE
    if not path.exists():
        path.write_text(_OURS, encoding="utf-8")


def take_back_request(run: RunDir) -> None:
    """Take away a request of the supervisor that nobody has obeyed."""
    path = run.path / STOP_FILE
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == _OURS:
            path.unlink()


def has_rows(run: RunDir) -> bool:
    """Whether the rows of the run were prepared; ranks look themselves whether they are still the right ones."""
    return (run.path / "data" / "manifest.json").is_file()


def newest_checkpoint(run_dir: Path) -> int:
    """Step of the newest checkpoint that has a name of its own; -1 where there is none."""
    names = [path.name.removeprefix("step-") for path in (run_dir / "checkpoints").glob("step-*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def kept_files(run: RunDir) -> dict[Path, bytes]:
    """What an attempt is going to overwrite."""
    names = ("plan.json", "config.yaml", "topology.json", "summary.json")
    return {path: path.read_bytes() for path in (run.path / name for name in names) if path.is_file()}


def put_back(run: RunDir, kept: dict[Path, bytes], number: int) -> None:
    """Put back what a refused attempt has overwritten: the run stays resumable."""
    for path, content in kept.items():
        path.write_bytes(content)
    (run.path / f"plan.{number}.json").unlink(missing_ok=True)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            Problem(
                where=f"run_dir={path}",
                found=f"cannot write there: {error.strerror}",
                remedy="Give a run_dir that you may write to.",
            )
        ) from error


def ask_to_stop(run: RunDir, say: Callable[[str], None]) -> None:
    """Pass a user's wish on to the ranks."""
    say("stopping at the next step boundary, with a checkpoint (again: stop at once)")
    (run.path / STOP_FILE).write_text("", encoding="utf-8")  # whoever asked before: this is a user's wish


def write_failure(run: RunDir, error: RunFailed) -> None:
    """Leave a summary for scripts: the ranks could not write theirs."""
    reason = "; ".join(problem.found.split(". Last lines", maxsplit=1)[0] for problem in error.problems)
    body = {"schema": 1, "status": "failed", "reason": reason}
    with suppress(OSError):  # a full disk has said so already
        (run.path / "summary.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
