"""Files the user asked for: checked before the work, and written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def check_can_save(config: RunConfig) -> None:
    """Find out before hours of training whether the results can be written where the user wants them."""
    outputs = {"save": config.save, "save_readings": config.save_readings, "picture": config.picture}
    problems = [
        Problem(where=f"{key}={path}", found="cannot write there", remedy="Give another file.")
        for key, path in outputs.items()
        if path and not _is_writable(Path(path).absolute())
    ]
    problems += _collisions(config, {key: Path(path) for key, path in outputs.items() if path})
    if problems:
        raise UserError(*problems)


def _collisions(config: RunConfig, outputs: dict[str, Path]) -> list[Problem]:
    """Outputs that would replace what is read, or each other."""
    given = {
        "model": config.model.path,
        "data": config.data.path,
        "data.eval_path": config.data.eval_path,
        "topology": config.topology.path,
        "calibration": config.calibration,
    }
    inputs = {key: Path(path).resolve() for key, path in given.items() if path and Path(path).exists()}
    found, seen = [], dict[Path, str]()
    for key, path in outputs.items():
        target = path.resolve()
        for other, read in inputs.items():
            # What lies in a model's folder, or a folder of data, belongs to it; a topology is saved beside others.
            inside = read.is_dir() and other != "topology" and read in target.parents
            if (target == read and not _is_stream(target)) or (inside and target.exists()):
                told = f"it would replace what {other}={given[other]} reads"
                found.append(Problem(where=f"{key}={path}", found=told, remedy="Give another file."))
        if target in seen and not _is_stream(target):
            told = f"two outputs cannot share a file, and {seen[target]}= has it already"
            found.append(Problem(where=f"{key}={path}", found=told, remedy="Give each its own file."))
        seen[target] = key
    return found


def _is_stream(path: Path) -> bool:
    """A terminal, a pipe or /dev/null, which loses nothing."""
    return path.exists() and not path.is_file()


def _is_writable(path: Path) -> bool:
    folder = next(parent for parent in path.parents if parent.exists())
    target = path if path.exists() else folder
    return not path.is_dir() and folder.is_dir() and os.access(target, os.W_OK) and not str(folder).startswith("/proc")


def write_and_say(path: Path, text: str, key: str) -> None:
    """Write a file as `write_whole`, and tell on stderr where it is and which folder was made for it.

    Raises:
        UserError: it cannot be written.
    """
    made = _missing_folder(path)
    write_whole(path, text, key)
    if path.is_file():  # not a pipe or a terminal
        print(f"{key}: wrote {path}{f' (new folder {made})' if made else ''}", file=sys.stderr)


def _missing_folder(path: Path) -> Path | None:
    """The outermost of the folders on the way to a file that does not exist yet."""
    with contextlib.suppress(OSError):  # writing tells what is wrong
        missing = [parent for parent in path.parents if not parent.exists()]
        return missing[-1] if missing else None
    return None


def write_whole(path: Path, text: str, key: str) -> None:
    """Write a file that the key `key` names; one that is there stays as it is until the new one is complete.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a pipe, a terminal
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()  # a link stays a link
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        problem = Problem(where=f"{key}={path}", found=f"cannot write: {error.strerror}", remedy="Give another path.")
        raise UserError(problem) from error
