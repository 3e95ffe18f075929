"""What has come already: a file for each, written before the fault, so that it survives whatever the fault ends."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.config import Fault

FOLDER: Final = "faults"
EVENTS: Final = "events.jsonl"
_NAME: Final = re.compile(r"(?P<fault>\w+)-(?P<step>\d+)\.json")


def fired(run_dir: Path, fault: Fault) -> frozenset[int]:
    """Return the steps for which a fault has come in a run, in any attempt."""
    folder = run_dir / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    return frozenset(int(match["step"]) for match in found if match["fault"] == fault.value)


def mark(run_dir: Path, fault: Fault, step: int, details: Mapping[str, Any]) -> bool:
    """Write that a fault comes now, to the disk; False where another process has done so before."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fault.value}-{step}.json"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    _write(descriptor, json.dumps(details) + "\n")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def tell(run_dir: Path, event: str, **details: object) -> None:
    """Append an event of the run, and bring it to the disk: the process may not live a moment longer."""
    line = json.dumps({"time": time.time(), "event": event, **details}) + "\n"
    _write(os.open(run_dir / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), line)


def _write(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
