"""Devices that a run has lost and that stay out of it, also when it is resumed, until a person takes them off the list.

`RUN_DIR/quarantine.json`: {"schema": 1, "devices": {ID: {"time", "why"}}}. Who has mended a card deletes its entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from orchestrator.run_dir import read_json
from orchestrator.train.run_files import write_json

FILE: Final = "quarantine.json"
_SCHEMA: Final = 1


def quarantined(run_dir: Path) -> dict[str, str]:
    """Return the devices on the list, each with the reason; none where the list cannot be read."""
    body = read_json(run_dir / FILE) or {}
    devices = body.get("devices")
    if not isinstance(devices, dict):
        return {}
    return {name: str(entry.get("why", "")) if isinstance(entry, dict) else "" for name, entry in devices.items()}


def add(run_dir: Path, devices: Iterable[str], why: str) -> None:
    """Put devices on the list; those that are there keep their reason."""
    known = read_json(run_dir / FILE) or {}
    entries = known.get("devices") if isinstance(known.get("devices"), dict) else {}
    fresh = {name: {"time": time.time(), "why": why} for name in devices}
    write_json(run_dir / FILE, {"schema": _SCHEMA, "devices": {**fresh, **(entries or {})}})


def words(run_dir: Path) -> list[str]:
    """Say what is left out, and how it comes back."""
    return [
        f"{name} is left out: {why or 'it is on the list'}. Once it is mended, take it off {run_dir / FILE}"
        for name, why in quarantined(run_dir).items()
    ]
