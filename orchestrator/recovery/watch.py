"""Looks at the beats of an attempt while its launcher runs, and asks for all stacks before anything is ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from orchestrator.monitor.beat import DUMP_SIGNAL, ENDED, Beat, read_beats, stacks_path
from orchestrator.monitor.detectors import hang
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding
from orchestrator.monitor.readings import BeatReading

_LOOK_SECONDS: Final = 0.5
_GONE_SECONDS: Final = 5.0  # after which a launcher should have noticed that a rank is gone
_LEFT_SECONDS: Final = 20.0  # after which it should have ended when all its ranks have
_DUMP_SECONDS: Final = 1.0  # what a rank gets to write its stacks


class BeatWatch:
    """Watches the ranks of one attempt; `look` is called often and seldom does anything.

    Attributes:
        hang: that was found.
        gone: rank whose process vanished.
        code: its exit code, where it has failed by itself and said so; None where something ended it.
        detected_at: wall clock of either.
    """

    def __init__(self, run_dir: Path, attempt: int, facts: Facts, say: Callable[[str], None]) -> None:
        """Take what is expected of the attempt."""
        self._run_dir = run_dir
        self._attempt = attempt
        self._facts = facts
        self._say = say
        self._state = hang.State()
        self._beats: tuple[Beat, ...] = ()
        self._next_seconds = 0.0
        self._gone_since: dict[int, float] = {}
        self._ended_since: float | None = None
        self.hang: Finding | None = None
        self.gone: int | None = None
        self.code: int | None = None
        self.detected_at: float | None = None

    def look(self) -> str | None:
        """Return why the attempt must be ended; None where it need not."""
        now = time.monotonic()
        if now < self._next_seconds:
            return None
        self._next_seconds = now + _LOOK_SECONDS
        self._beats = read_beats(self._run_dir, self._attempt)
        if gone := self._missing(self._beats, now):
            self.gone, self.code, self.detected_at = gone.rank, gone.code, time.time()
            return f"the process of rank {gone.rank} is gone"
        if self._is_left_behind(now):
            self._say("all ranks have ended and what started them has not (is it stopped?): ending it")
            return "all ranks have ended, what started them has not"
        self._state, found = hang.update(self._state, [_reading(beat) for beat in self._beats], now, self._facts)
        if not found:
            return None
        self.hang, self.detected_at = found[0], time.time()
        self._say(found[0].evidence)
        self._dump(self._beats)
        return found[0].evidence

    def last_look(self) -> None:
        """Read where the ranks stood when all of them had ended."""
        self._beats = read_beats(self._run_dir, self._attempt)

    def newest_step(self) -> int:
        """Optimizer steps that every rank has done; -1 before there is a beat."""
        return min((beat.step for beat in self._beats), default=-1)

    def phase(self) -> str:
        """Of the rank that is furthest behind."""
        last = min(self._beats, key=lambda beat: (beat.step, beat.micro), default=None)
        return "" if last is None else last.phase

    def _missing(self, beats: tuple[Beat, ...], now: float) -> Beat | None:
        """A rank here whose process is gone in the middle of the work, while its launcher goes on.

        It has not noticed, or waits for the other ranks, which wait for the one that is gone. Where several are gone,
        the one that others were lost by: one that was ended comes first, then the one that failed first.
        """
        gone = [beat for beat in beats if beat.is_here and beat.phase != ENDED and not _lives(beat.pid)]
        self._gone_since = {beat.rank: self._gone_since.get(beat.rank, now) for beat in gone}
        if not any(now - since > _GONE_SECONDS for since in self._gone_since.values()):
            return None
        return min(gone, key=lambda beat: (beat.code is not None, beat.time))

    def _is_left_behind(self, now: float) -> bool:
        """Whether all ranks ended, those of this host to their last thread, and their launcher lives on for long."""
        ended = len(self._beats) >= self._facts.world_size and all(
            beat.phase == ENDED and not (beat.is_here and _is_rank(beat)) for beat in self._beats
        )
        if not ended:
            self._ended_since = None
            return False
        self._ended_since = now if self._ended_since is None else self._ended_since
        return now - self._ended_since > _LEFT_SECONDS

    def _dump(self, beats: tuple[Beat, ...]) -> None:
        asked = [beat for beat in beats if beat.is_here and _is_rank(beat)]
        for beat in asked:
            with suppress(OSError):
                os.kill(beat.pid, DUMP_SIGNAL)
        time.sleep(_DUMP_SECONDS)
        for beat in asked:
            if _is_stopped(beat):  # it reads signals only when it runs
                self._say(f"rank {beat.rank} (process {beat.pid}) is stopped and shows no stacks")
        if asked:
            self._say(f"stacks of all ranks: {stacks_path(self._run_dir, self._attempt, 0).parent}/stacks-*")


def _reading(beat: Beat) -> BeatReading:
    return BeatReading(
        rank=beat.rank,
        phase=beat.phase,
        count=beat.count,
        step=beat.step,
        micro=beat.micro,
        is_stopped=_is_stopped(beat),
    )


def _lives(pid: int) -> bool:
    """Whether it runs: one that has ended stays a zombie as long as its launcher does not look."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _is_rank(beat: Beat) -> bool:
    """Whether the process is still the one that beat: its number may belong to somebody else by now."""
    try:
        return "orchestrator.train.worker" in " ".join(psutil.Process(beat.pid).cmdline())
    except psutil.Error:
        return False


def _is_stopped(beat: Beat) -> bool:
    if not beat.is_here:
        return False
    try:
        return psutil.Process(beat.pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
