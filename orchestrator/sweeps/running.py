"""Trials started, watched and ended: whichever has room starts; a failure concerns no other; a signal stops all."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Protocol

from orchestrator.errors import ExitCode
from orchestrator.report.trained import INTERRUPTED, TrainTrial
from orchestrator.sweeps.allot import Place, Room, next_start
from orchestrator.sweeps.needs import Needs
from orchestrator.sweeps.trial import TrialJob, ended

_POLL_SECONDS = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Handle(Protocol):
    """A trial that was started."""

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""

    def stop(self) -> None:
        """Ask it to end with a checkpoint; asked again, end it at once."""

    @property
    def reason(self) -> str:
        """Why it ended, where its own output cannot tell."""


Start = Callable[[TrialJob, Place], Handle]
Say = Callable[[str], None]


@dataclass(slots=True)
class Signals:
    """How often this process was asked to end."""

    count: int = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count SIGINT, SIGTERM and SIGHUP instead of ending."""

        def note(_number: int, _frame: FrameType | None) -> None:
            self.count += 1

        before = {number: signal.signal(number, note) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(slots=True)
class _Running:
    job: TrialJob
    place: Place
    handle: Handle
    began: float
    log: IO[str] | None = None
    asked: int = 0


@dataclass(slots=True)
class Runner:
    """Runs batches of trials; `results` grows as they end. `signals` outlives a batch: after one nothing starts."""

    room: Room
    needs: Needs
    start: Start
    say: Say
    signals: Signals
    results: list[TrainTrial]
    _running: list[_Running] = field(default_factory=list)

    def run(self, jobs: Sequence[TrialJob]) -> list[TrainTrial]:
        """Run these to their ends; returns them in the order given."""
        waiting = list(jobs)
        with self.signals.caught():
            while waiting or self._running:
                if not self.signals.count:
                    self._start_what_fits(waiting)
                elif waiting:
                    self.results.extend(ended(job, None, "", "the sweep was stopped") for job in waiting)
                    waiting.clear()
                self._pass_signals()
                for one in [one for one in self._running if one.handle.poll() is not None]:
                    self.results.append(self._ended(one))
                if self._running:
                    self._echo()
                    time.sleep(_POLL_SECONDS)
        found = {trial.number: trial for trial in self.results}
        return [found[job.number] for job in jobs]

    def _start_what_fits(self, waiting: list[TrialJob]) -> None:
        while waiting:
            places = [one.place for one in self._running]
            chosen = next_start(self.room, places, (self.needs.of(job.asked) for job in waiting))
            if chosen is None or self.signals.count:
                return
            at, place = chosen
            job = waiting.pop(at)
            job.folder.mkdir(parents=True, exist_ok=True)
            where = f" on {place}" if self.room.limit > 1 else ""
            self.say(f"trial {job.number}: {job.title or 'as given'}{where}; log {job.log}")
            job.log.touch()
            self._running.append(
                _Running(
                    job=job,
                    place=place,
                    handle=self.start(job, place),
                    began=time.monotonic(),
                    # Several at once would mix their lines: they go to the logs alone.
                    log=job.log.open(encoding="utf-8", errors="replace") if self.room.limit == 1 else None,
                )
            )

    def _pass_signals(self) -> None:
        for one in self._running:
            while one.asked < self.signals.count:
                if one.asked == 0:
                    self.say(f"trial {one.job.number}: stopping with a checkpoint (again: stop at once)")
                one.handle.stop()
                one.asked += 1

    def _echo(self) -> None:
        for one in self._running:
            if one.log is not None and (text := one.log.read()):
                self.say(text.rstrip("\n"))

    def _ended(self, one: _Running) -> TrainTrial:
        self._echo()
        if one.log is not None:
            one.log.close()
        self._running.remove(one)
        code, told = one.handle.poll(), {int(code) for code in ExitCode}
        if one.asked and code not in told and not (one.job.run_dir / "plan.json").exists():
            code = INTERRUPTED  # however a process that has hardly begun answers a signal
        trial = ended(one.job, code, str(one.place), one.handle.reason)
        loss = "" if trial.loss is None else f", held-out loss {trial.loss:.4f}"
        reason = f" ({trial.reason})" if trial.reason else ""
        self.say(f"trial {trial.number}: {trial.status}{loss}{reason}, {time.monotonic() - one.began:.0f} s")
        return trial
