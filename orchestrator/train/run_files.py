"""The files of a run directory that the ranks write."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
_CUT: set[Path] = set()  # files whose last line may have been cut


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record as a line of its own; infinities and NaN, which JSON has not, become null.

    A disk that takes no more costs lines and one warning, not the run.
    """
    line = json.dumps(_finite(record), allow_nan=False) + "\n"
    data = (("\n" if path in _CUT else "") + line).encode()
    try:
        with path.open("ab", buffering=0) as stream:
            written = stream.write(data)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        written = 0
    if written == len(data):
        _CUT.discard(path)
    elif path not in _CUT:
        _CUT.add(path)
        print(f"warning: the disk takes no more lines of {path}", file=sys.stderr, flush=True)


@contextmanager
def sparing_full_disk(path: Path) -> Iterator[None]:
    """Do without a new version of a file, with a warning, where the disk takes no more."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        print(f"warning: the disk takes no new {path}", file=sys.stderr, flush=True)


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(_finite(body), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole records of a file that may end in the middle of one (kill -9)."""
    records: list[dict[str, Any]] = []
    if not path.is_file():
        return records
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def keep_steps_until(path: Path, step: int) -> None:
    """Drop metrics of steps after a checkpoint: they are about to be run again."""
    kept = [record for record in read_json_lines(path) if record.get("step", 0) <= step]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
    temporary.replace(path)


class EventLog:
    """`events.jsonl`: what happened and when, for people and for `trainmaster status`."""

    def __init__(self, run_dir: Path, *, enabled: bool) -> None:
        """Write into the run directory; only one rank is enabled."""
        self._path = run_dir / "events.jsonl"
        self._enabled = enabled

    def add(self, event: str, **details: object) -> None:
        """Append an event with the wall-clock time."""
        if self._enabled:
            append_json_line(self._path, {"time": time.time(), "event": event, **details})
