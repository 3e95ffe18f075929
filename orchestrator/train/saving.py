"""When a run saves, and what becomes of a save that fails: rank 0 decides, all ranks follow at a step boundary.

A snapshot is taken between two steps; a thread writes it (`checkpoint_writer`). One that cannot be written costs no
more than a line and an event, since training can go on and the next one may succeed. The run ends, resumable, when

- the last one of the run, or the one of a stop, cannot be written: nothing would be left of the work since;
- `PATIENCE` in a row failed and more than `checkpoint.max_lost_minutes` of work would be lost.

A disk too slow for the interval stretches it: a checkpoint that is due waits a moment for the one before, then it is
put off until that one is done.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from orchestrator.config import CheckpointConfig
from orchestrator.errors import Problem, RunStopped
from orchestrator.recovery.event import FAULT_PREFIX
from orchestrator.train.cadence import Bounds, SaveCost, bounds, interval_steps
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore, WriteError, Written
from orchestrator.train.checkpoint_writer import CheckpointWriter
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import EventLog

PATIENCE: Final = 3  # failures in a row, before the work at risk counts
_FIRST_STEPS: Final = 2  # with every=auto: after so many, to learn what a save costs and whether the disk takes it
_UNKNOWN_SECONDS: Final = 60.0  # between tries, as long as no save was measured
_GRACE_SECONDS: Final = 5.0  # that a due checkpoint waits for the one before
_LAST_SECONDS: Final = 1800.0  # that the last one may take
_RECENT_STEPS: Final = 64  # that say what a step takes
_TOLD_CHANGE: Final = 1.25  # of the interval, that is worth an event


class Saver:
    """Takes snapshots, has them written, and tells what became of them; all ranks have one, rank 0's decides."""

    def __init__(
        self,
        config: CheckpointConfig,
        store: CheckpointStore,
        group: MetricsGroup,
        events: EventLog,
        *,
        is_main: bool,
        say: Callable[[str], None],
        beat: Callable[[], None],
    ) -> None:
        """Take the user's wishes, the disk, the other ranks, and where to tell what happens."""
        self._every = config.every
        self._allowed: Bounds = bounds(config.mtbf_hours, config.max_lost_minutes, group.world_size)
        self._store, self._group, self._events = store, group, events
        self._is_main, self._say, self._beat = is_main, say, beat
        self._writer = CheckpointWriter(store)
        self._failures: list[WriteError] = []  # since the last good one
        self._pending = self._was_late = False
        self._next_step: int | None = None  # with every=auto
        self._interval: int | None = None
        self._began = self._blocking_seconds = self._slower_seconds = 0.0  # of the save that is being written
        self._saved_step = 0
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)  # seconds of steps beside which nothing was written
        # Seconds of steps: all, at the last snapshot, and at the last one that is on the disk.
        self._work = self._work_in_snapshot = self._work_on_disk = 0.0

    def flags(self, step: int, seconds: float) -> list[float]:
        """Return whether this rank wants to save now, and whether the run must end; sums over ranks are above 0 if so.

        Args:
            step: that has ended.
            seconds: it took.
        """
        if not self._is_main:
            return [0.0, 0.0]
        typical_seconds = self._typical_seconds(seconds)
        if self._writer.has_job:
            self._slower_seconds += seconds - typical_seconds
        elif self._work > 0:  # the first step of a process pays for allocation and tracing
            self._recent.append(seconds)
        self._work += seconds
        self._collect(typical_seconds)
        self._tell_if_stuck()
        at_risk = self._work - self._work_on_disk
        lost = len(self._failures) >= PATIENCE and at_risk > self._allowed.max_lost_seconds
        self._pending = self._pending or self._is_due(step)
        return [float(self._pending and not self._is_late(step)), float(lost)]

    def _tell_if_stuck(self) -> None:
        """Say once that the disk has not taken a checkpoint for long, though no other one is due yet."""
        seconds = time.perf_counter() - self._began
        if not self._writer.has_job or self._was_late or seconds < _UNKNOWN_SECONDS:
            return
        self._was_late = True
        self._say(f"warning: the checkpoint of step {self._saved_step} is still being written after {seconds:.0f} s")
        self._events.add("checkpoint_slow", step=self._saved_step, seconds=seconds)

    def save(self, step: int, capture: Callable[[], Checkpoint], *, last: bool) -> None:
        """Take a snapshot and have it written; collective.

        Args:
            step: that the snapshot is of.
            capture: makes it, collective; later steps must not change it.
            last: of this run: wait until it is on the disk.

        Raises:
            RunStopped: on all ranks, when the last one cannot be written.
        """
        began = time.perf_counter()
        self._wait()
        self._collect(math.nan)
        checkpoint = capture()
        if self._is_main:
            self._pending, self._saved_step, self._slower_seconds = False, step, 0.0
            self._began, self._work_in_snapshot = began, self._work
            self._writer.start(checkpoint)
            self._blocking_seconds = time.perf_counter() - began
        self._next_step = sys.maxsize if self._interval is None else step + self._interval  # not before it is measured
        if last:
            self._wait()
            self._blocking_seconds = time.perf_counter() - began
            self._collect(math.nan, last=True)
            self.end_if_lost(len(self._failures) > 0)

    def end_if_lost(self, is_lost: bool) -> None:  # noqa: FBT001 - the agreed flag
        """End the run on all ranks, if they have agreed that it must; collective.

        Raises:
            RunStopped: naming the last good checkpoint.
        """
        if not self._group.from_main(is_lost):
            return
        problems: tuple[Problem, ...] = ()
        if self._is_main:
            failure = self._failures[-1]
            problems = failure.problems
            body = {"kind": "disk", "what": failure.kind, "phase": "saving", "step": self._saved_step, "rank": 0}
            self._say(FAULT_PREFIX + json.dumps({**body, "words": str(problems[0])}))
        raise RunStopped(*self._group.from_main(problems))

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Let what is being written come to an end, whatever ended the run."""
        self._writer.close(timeout_seconds)
        self._collect(math.nan)

    def _wait(self) -> None:
        """Wait for rank 0's disk; all ranks beat meanwhile, so that nobody takes them for hung."""
        limit = time.perf_counter() + _LAST_SECONDS
        while not self._group.from_main(not self._is_main or self._writer.wait(1.0)):
            self._beat()
            if self._group.from_main(time.perf_counter() > limit):
                found = f"the disk has not taken a checkpoint for {_LAST_SECONDS / 60:.0f} minutes"
                remedy = "Look at the file system of the run, then run again with resume=true."
                raise RunStopped(Problem(where="checkpoints", found=found, remedy=remedy))

    def _typical_seconds(self, seconds: float) -> float:
        return statistics.median(self._recent) if self._recent else seconds

    def _is_due(self, step: int) -> bool:
        if self._every is not None:
            return self._every > 0 and step % self._every == 0
        if self._next_step is None:
            self._next_step = step - 1 + _FIRST_STEPS
        return step >= self._next_step

    def _is_late(self, step: int) -> bool:
        """Whether the one before keeps the disk busy."""
        is_late = not self._writer.wait(0.0 if self._was_late else _GRACE_SECONDS)
        if is_late and not self._was_late:
            seconds = time.perf_counter() - self._began
            self._say(
                f"the checkpoint of step {self._saved_step} is still being written after {seconds:.0f} s: "
                f"that of step {step} is put off until the disk is done"
            )
            self._events.add("checkpoint_slow", step=self._saved_step, seconds=seconds, put_off=step)
        self._was_late = is_late
        return is_late

    def _collect(self, step_seconds: float, *, last: bool = False) -> None:
        """Take what became of the newest save, if it has ended; the `last` one's failure is told by an error."""
        done = self._writer.take()
        if isinstance(done, WriteError):
            if not last:
                self._say(f"warning: {done.problems[0].found}; training goes on. {done.kept}")
            self._failed(done, step_seconds)
        elif done is not None:
            self._succeeded(done, step_seconds)

    def _succeeded(self, done: Written, step_seconds: float) -> None:
        self._failures.clear()
        self._work_on_disk = self._work_in_snapshot
        slower_seconds = max(0.0, self._slower_seconds)
        cost = SaveCost(blocking_seconds=self._blocking_seconds + slower_seconds, writing_seconds=done.seconds)
        details: dict[str, Any] = {"removed": list(done.removed)} if done.removed else {}
        self._events.add(
            "checkpoint",
            step=done.step,
            path=str(done.path),
            bytes=done.nbytes,
            seconds_blocking=self._blocking_seconds,
            seconds_slower=slower_seconds,
            seconds_writing=done.seconds,
            **details,
        )
        if self._every is None and step_seconds > 0:
            self._adapt(cost, step_seconds)

    def _adapt(self, cost: SaveCost, step_seconds: float) -> None:
        before, now = self._interval, interval_steps(cost, step_seconds, self._allowed)
        self._interval = now
        self._next_step = self._saved_step + now
        if before is None or not 1 / _TOLD_CHANGE <= now / before <= _TOLD_CHANGE:
            measured = {**asdict(cost), "step_seconds": step_seconds, **asdict(self._allowed)}
            self._events.add("cadence", steps=now, seconds=now * step_seconds, **measured)

    def _failed(self, error: WriteError, step_seconds: float) -> None:
        self._failures.append(error)
        self._events.add(
            "checkpoint_failed",
            step=self._saved_step,
            kind=error.kind,
            reason=error.reason,
            in_a_row=len(self._failures),
            last_good=None if error.last_good is None else str(error.last_good),
        )
        if self._interval is None and step_seconds > 0:
            self._next_step = self._saved_step + max(_FIRST_STEPS, math.ceil(_UNKNOWN_SECONDS / step_seconds))
