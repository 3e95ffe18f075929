"""The side of a measuring process that talks to `run`: parts on request, results as lines of JSON.

`python -m MODULE REQUEST`, where REQUEST is JSON: {"parts": [...], "device": "cpu" or "cuda", "threads": n, "rank": r,
"ranks": n}. For each part it prints {"event": "ready", "part": ...}, waits for a line on standard input, so that ranks
measure at the same time, and prints {"event": "measured", "part": ..., "entries": [...]} or {"event": "failed",
"part": ..., "reason": ...}. The keys of an entry are those of `Entry`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from launch.parent_death import die_with_parent

_MOST_LETTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure, and as which of the ranks that do so at the same time."""

    parts: tuple[str, ...]
    device: str = "cpu"
    threads: int = 1
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A number as a process tells it: `calibration_file.Measured` without the device."""

    name: str
    value: float
    unit: str
    repeats: int
    spread: float
    how: str


Measure = Callable[[Request], Sequence[Entry]]


def serve(arguments: Sequence[str], measures: Mapping[str, Measure], versions: Callable[[], Mapping[str, str]]) -> int:
    """Measure the parts of the request in turn; a part that fails does not keep the next from running."""
    die_with_parent()
    body = json.loads(arguments[0])
    request = Request(**{**body, "parts": tuple(body["parts"])})
    # Libraries that greet on standard output must not get between our lines.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as lines:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for part in request.parts:
            _say(lines, event="ready", part=part)
            if not sys.stdin.readline():
                return 0  # the parent has given up
            _measure(lines, part, measures[part], request)
        _say(lines, event="end", versions=dict(versions()))
    return 0


def _measure(lines: IO[str], part: str, measure: Measure, request: Request) -> None:
    try:
        entries = [asdict(entry) for entry in measure(request)]
    except Exception as error:  # noqa: BLE001 - whatever a library raises is what the user wants to know
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_LETTERS]
        _say(lines, event="failed", part=part, reason=reason)
    else:
        _say(lines, event="measured", part=part, entries=entries)


def _say(lines: IO[str], **fields: Any) -> None:  # noqa: ANN401 - any part of JSON
    print(json.dumps(fields), file=lines, flush=True)
