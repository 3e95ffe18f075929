"""`trainmaster watch RUN_DIR`: a run as it goes on, from another shell; plain lines where no terminal is."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from orchestrator import runs
from orchestrator.monitor.beat import read_beats
from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from orchestrator.monitor.store import Follower
from orchestrator.planner.plan import Plan, loads
from orchestrator.report.live import (
    Live,
    bottleneck,
    event_words,
    headroom,
    lines_of,
    pace,
    plain_line,
)
from orchestrator.report.panel import Panel
from orchestrator.terminal import is_live, wants_colour

__all__ = ["Watch", "watch"]

_EVERY_SECONDS: Final = 1.0
_SHOWN_EVENTS: Final = 5
_OVER: Final = frozenset({"done", "stopped", "failed", "cancelled", "ended", "planned"})


class Watch:
    """Reads what has come since the last look."""

    def __init__(self, run_dir: Path) -> None:
        """Take a run; raises UserError where its plan cannot be read."""
        self.run_dir = run_dir
        self.plan: Plan = loads((run_dir / "plan.json").read_text(encoding="utf-8"))
        self._follower = Follower(run_dir)
        self._newest: dict[tuple[str, object], RankReading | DeviceReading | HostReading] = {}
        self._metrics, self._events = _Lines(run_dir / "metrics.jsonl"), _Lines(run_dir / "events.jsonl")
        self.fresh: tuple[str, ...] = ()

    def look(self) -> Live:
        """Return how it stands now; `fresh` holds the events that came since the last look, in words."""
        for reading in self._follower.read():
            if isinstance(reading, RankReading):
                self._newest["rank", reading.rank] = reading
            elif isinstance(reading, DeviceReading):
                self._newest["device", reading.device] = reading
            elif isinstance(reading, HostReading):
                self._newest["host", reading.host] = reading
        self._metrics.read()
        self.fresh = tuple(filter(None, map(event_words, self._events.read())))
        state = runs.state_of_run(self.run_dir)
        losses = [record for record in self._metrics.all if "loss" in record]
        evals = [record for record in self._metrics.all if "eval_loss" in record]
        beats = read_beats(self.run_dir, state.attempt)
        last = min(beats, key=lambda beat: (beat.step, beat.micro), default=None)
        step, num_steps = state.step or 0, self.num_steps()
        typical = pace(losses)
        is_over = state.status in _OVER
        values = list(self._newest.values())
        ranks = [one for one in values if isinstance(one, RankReading)]
        newest = max((one.step for one in ranks), default=0)
        return Live(
            status=state.status,
            attempt=state.attempt,
            step=step,
            num_steps=num_steps,
            phase="" if is_over or last is None else last.phase,
            left_seconds=None if is_over or typical is None or num_steps is None else (num_steps - step) * typical,
            loss=losses[-1]["loss"] if losses else None,
            eval_loss=evals[-1]["eval_loss"] if evals else None,
            tokens_per_second=losses[-1].get("tokens_per_second") if losses else None,
            bottleneck=bottleneck([one for one in ranks if one.step == newest]),
            headroom=headroom(
                ranks,
                [one for one in values if isinstance(one, DeviceReading)],
                [one for one in values if isinstance(one, HostReading)],
                self.plan.device_memory_bytes if self.plan.device_kind == "gpu" else None,
            ),
            told=tuple(filter(None, map(event_words, self._events.all)))[-_SHOWN_EVENTS:],
        )

    def num_steps(self) -> int | None:
        """Optimizer steps of the whole run, as planned."""
        batch, rows = self.plan.run_config.batch, self.plan.workload.rows_per_epoch
        steps = math.ceil(rows * batch.epochs / max(1, batch.global_))
        return batch.max_steps or steps or None


class _Lines:
    """The whole lines of a file that grows, as records; it is read again where it became shorter."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.all: list[Mapping[str, Any]] = []

    def read(self) -> list[Mapping[str, Any]]:
        """Return the records since the last call."""
        try:
            if self._path.stat().st_size < self._offset:
                self._offset, self.all = 0, []
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                text = stream.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = list(_records(whole.splitlines()))
        self.all += found
        return found


def _records(lines: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def watch(run_dir: Path, stream: TextIO, *, every_seconds: float = _EVERY_SECONDS) -> Live:
    """Show a run until it has ended; returns how it then stood.

    A terminal gets a few lines that are written anew each time, anything else a line for each new step and event.
    """
    watched = Watch(run_dir)
    panel, last = Panel(stream) if is_live(stream) else None, ""
    while True:
        live = watched.look()
        if panel is not None:
            panel.show(lines_of(live, colour=wants_colour(stream)))
        else:
            stream.writelines(f"{line}\n" for line in watched.fresh)
            line = plain_line(live)
            if line != last:
                stream.write(f"{line}\n")
                last = line
        stream.flush()
        if live.status in _OVER:
            return live
        time.sleep(every_seconds)
