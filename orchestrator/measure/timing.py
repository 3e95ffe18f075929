"""Median seconds of something that is run again and again, and how far the repeats lie apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MIN_REPEATS: Final = 5
_MAX_REPEATS: Final = 15
_ROUNDS: Final = 11
_REPEAT_SECONDS: Final = 0.02  # a repeat shorter than this would measure the clock and the wake-up of threads
_BUDGET_SECONDS: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How something is timed: `wait` returns when the device is done with what it was given, `clock` tells seconds."""

    wait: Callable[[], None]
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Median `seconds` of one call, and half the distance between the quartiles as a share of it."""

    seconds: float
    repeats: int
    spread: float


def watch_of(*, is_cpu: bool, threads: int, wait: Callable[[], None] = lambda: None) -> Watch:
    """The watch of a rank.

    One that computes in a single thread is timed by the CPU time it took: a core that other work has taken meanwhile
    says nothing of the machine. With more threads, or on a GPU, it is the time on the wall.
    """
    return Watch(wait=wait, clock=time.process_time if is_cpu and threads == 1 else time.perf_counter)


def timed(call: Callable[[], object], watch: Watch) -> Timing:
    """Run `call` in at least five repeats, each of as many calls as fill some milliseconds.

    Its first run, which sets things up, does not count.
    """
    _lasts(call, 1, watch)
    once = _lasts(call, 1, watch)
    calls = max(1, round(_REPEAT_SECONDS / max(once, 1e-7)))
    repeats = max(MIN_REPEATS, min(_MAX_REPEATS, int(_BUDGET_SECONDS / max(once * calls, 1e-7))))
    return summed_up([_lasts(call, calls, watch) for _ in range(repeats)])


def timed_rounds(calls: Sequence[Callable[[], object]], watch: Watch) -> tuple[tuple[float, ...], ...]:
    """Run several things in turns, some rounds long; returns the seconds of each by round.

    What is computed from the numbers of one round does not depend on how busy the machine was in another.
    """
    for call in calls:
        call()
    once = sum(_lasts(call, 1, watch) for call in calls)
    each = max(1, round(_REPEAT_SECONDS * len(calls) / max(once, 1e-7)))
    repeats = max(_ROUNDS, min(_MAX_REPEATS, int(_BUDGET_SECONDS * len(calls) / max(once * each, 1e-7))))
    return tuple(tuple(_lasts(call, each, watch) for call in calls) for _ in range(repeats))


def _lasts(call: Callable[[], object], calls: int, watch: Watch) -> float:
    watch.wait()
    begin = watch.clock()
    for _ in range(calls):
        call()
    watch.wait()
    return (watch.clock() - begin) / calls


def summed_up(seconds: list[float]) -> Timing:
    """The median of some repeats, with their spread.

    Raises:
        ArithmeticError: it is not above 0, which only differences can be.
    """
    middle = statistics.median(seconds)
    if middle <= 0:
        raise ArithmeticError("no time is left after what was taken off: the machine was too busy to tell")
    low, _, high = statistics.quantiles(seconds, n=4)
    return Timing(seconds=middle, repeats=len(seconds), spread=(high - low) / 2 / middle)
