"""Ranks without progress, on a clock of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.hang import State, update
from orchestrator.monitor.facts import Facts, Patience
from orchestrator.monitor.finding import Finding
from orchestrator.monitor.readings import BeatReading

LOOK = 0.5


def at_second(
    second: float, rank: int, *, step_seconds: float = 1.0, micros: int = 1, until: float = 1e9, phase: str = "training"
) -> BeatReading:
    """A rank that trains since second 0 and stands still after `until`."""
    done = int(min(second, until) / step_seconds * micros + 1e-9)
    return BeatReading(rank=rank, phase=phase, step=done // micros, micro=done % micros, count=done + 3)


def watch(
    beats: Callable[[float], Sequence[BeatReading]],
    seconds: float,
    facts: Facts,
    clock: Callable[[float], float] = lambda second: second,
) -> list[tuple[float, Finding]]:
    """Look twice a second; return what was found, with the second."""
    state, found = State(), []
    for at in range(int(seconds / LOOK)):
        state, more = update(state, beats(at * LOOK), clock(at * LOOK), facts)
        found += [(at * LOOK, one) for one in more]
    return found


@pytest.mark.parametrize(("step_seconds", "limit"), [(0.2, 10.0), (1.0, 10.0), (5.0, 15.0), (20.0, 60.0)])
def test_a_hang_is_found_within_ten_seconds_or_three_steps(step_seconds: float, limit: float) -> None:
    facts, stop = Facts(world_size=2), 20 * step_seconds
    found = watch(
        lambda s: [at_second(s, r, step_seconds=step_seconds, until=stop) for r in range(2)], stop + 90, facts
    )
    ((second, one),) = found
    assert stop + limit - 1 <= second <= stop + limit + 2
    assert (one.kind.value, one.rank) == ("hang", None)
    assert "all 2 ranks" in one.evidence


def test_the_rank_that_is_behind_the_others_is_to_blame() -> None:
    facts = Facts(world_size=3)

    def beats(second: float) -> list[BeatReading]:
        """Rank 1 stops in the second of four micro-steps; the others end theirs and wait."""
        ends = (22.0 - 0.25, 21.5, 22.0 - 0.25)
        return [at_second(second, r, step_seconds=1.0, micros=4, until=ends[r]) for r in range(3)]

    ((second, one),) = watch(beats, 60, facts)
    assert one.rank == 1
    assert second <= 21.5 + 12


def test_a_stopped_process_is_to_blame() -> None:
    def beats(second: float) -> list[BeatReading]:
        both = [at_second(second, r, until=20) for r in range(2)]
        return [both[0], BeatReading(rank=1, phase="training", step=20, count=23, is_stopped=second > 20)]

    ((_, one),) = watch(beats, 60, Facts(world_size=2))
    assert one.rank == 1
    assert "stopped" in one.evidence


def test_ranks_that_wait_for_a_slow_one_do_not_hang() -> None:
    """Rank 0 is done with each step at once; rank 1 goes through 60 micro-steps of 1 s."""

    def beats(second: float) -> list[BeatReading]:
        slow = at_second(second, 1, step_seconds=60, micros=60)
        return [BeatReading(rank=0, phase="training", step=slow.step, micro=59, count=slow.step), slow]

    assert not watch(beats, 600, Facts(world_size=2))


def test_it_is_told_once_and_again_after_progress() -> None:
    def beats(second: float) -> list[BeatReading]:
        gone = min(second, 20.0) + max(0.0, min(second, 120.0) - 60.0)
        return [at_second(gone, 0)]

    seconds = [second for second, _ in watch(beats, 200, Facts())]
    assert seconds == [pytest.approx(30, abs=2), pytest.approx(130, abs=62)]


@pytest.mark.parametrize(
    ("phase", "limit"), [("starting", 300), ("loading", 1800), ("evaluating", 600), ("saving", 600), ("finishing", 900)]
)
def test_each_phase_has_its_own_limit(phase: str, limit: int) -> None:
    def beats(second: float) -> list[BeatReading]:
        return [at_second(second, 0) if second < 20 else BeatReading(rank=0, phase=phase, step=20, count=99)]

    found = watch(beats, 20 + limit + 60, Facts())
    assert [pytest.approx(20 + limit, abs=2)] == [second for second, _ in found]
    assert f"while {phase}" in found[0][1].evidence


def test_a_rank_that_never_beats_is_starting() -> None:
    facts = Facts(world_size=2, patience=Patience(starting=30))
    found = watch(lambda second: [at_second(second, 0, until=0)], 60, facts)
    assert [one.rank for _, one in found] == [1]


def test_others_wait_for_one_that_loads() -> None:
    def beats(second: float) -> list[BeatReading]:
        slow = BeatReading(rank=0, phase="loading", count=2)
        return [slow, at_second(0, 1)] if second < 400 else [at_second(second - 400, at) for at in range(2)]

    assert not watch(beats, 440, Facts(world_size=2))


def test_others_wait_for_one_that_prepares_the_rows() -> None:
    """Ranks that wait for its lock do not beat: they are excused as long as it does, and no longer."""

    def beats(second: float) -> list[BeatReading]:
        made = BeatReading(rank=0, phase="starting", count=2 + int(min(second, 1000) / 10))
        return [made, BeatReading(rank=1, phase="starting", count=2)]

    ((second, one),) = watch(beats, 1400, Facts(world_size=2))
    assert second == pytest.approx(1300, abs=12)
    assert "while starting" in one.evidence


def test_others_may_wait_for_one_that_saves_or_evaluates() -> None:
    """Rank 0 saves for a minute while the others stand in training."""

    def beats(second: float) -> list[BeatReading]:
        gone = second if second < 20 else max(20.0, second - 60)
        both = [at_second(gone, rank) for rank in range(2)]
        return [BeatReading(rank=0, phase="saving", step=20, count=1000), both[1]] if 20 < second < 80 else both

    assert not watch(beats, 200, Facts(world_size=2))


@pytest.mark.parametrize(("phase", "limit"), [("training", 10), ("finishing", 900)])
def test_nobody_waits_for_a_rank_that_has_ended(phase: str, limit: int) -> None:
    """Rank 1 does not come out of the end of the run, at the same step as rank 0, which did."""

    def beats(second: float) -> list[BeatReading]:
        if second < 20:
            return [at_second(second, rank) for rank in range(2)]
        return [BeatReading(rank=rank, phase=("ended", phase)[rank], step=20, count=99) for rank in range(2)]

    ((second, one),) = watch(beats, 20 + limit + 60, Facts(world_size=2))
    assert second == pytest.approx(20 + limit, abs=2)
    assert (one.rank, one.evidence.split(":")[0].split(" after")[0].split(" while")[0]) == (1, "rank 1 hangs")


def test_the_first_step_has_time() -> None:
    def beats(second: float) -> list[BeatReading]:
        return [at_second(max(0.0, second - 90), 0)]

    assert not watch(beats, 140, Facts(step_seconds=1.0))
    assert len(watch(lambda second: [at_second(0, 0)], 140, Facts(step_seconds=1.0))) == 1
    assert not watch(lambda second: [at_second(0, 0)], 140, Facts(step_seconds=60.0))


def test_a_resumed_run_begins_at_a_later_step() -> None:
    def beats(second: float) -> list[BeatReading]:
        beat = at_second(max(0.0, second - 30), 0, until=20)
        return [BeatReading(rank=0, phase=beat.phase, step=beat.step + 500, count=beat.count)]

    ((second, _),) = watch(beats, 100, Facts())
    assert second == pytest.approx(60, abs=2)


def test_the_readers_own_pauses_and_clocks_do_not_count() -> None:
    """The reader sleeps for an hour, then its clock goes back."""

    def clock(second: float) -> float:
        return second + (3600 if 30 < second <= 60 else -50 if second > 60 else 0)

    assert not watch(lambda second: [at_second(second, rank) for rank in range(2)], 120, Facts(world_size=2), clock)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    step_seconds=st.floats(0.1, 20),
    micros=st.integers(1, 8),
    noise=st.floats(0, 0.5),
)
def test_healthy_runs_never_alarm(made: Any, seed: int, step_seconds: float, micros: int, noise: float) -> None:
    """Slow first steps, evaluations and saves of half a minute, micro-steps of different lengths."""
    chance = made.chance(seed)
    events: list[tuple[float, BeatReading]] = []
    now, count = 0.0, 0

    def say(phase: str, step: int, micro: int = 0) -> None:
        nonlocal count
        count += 1
        events.append((now, BeatReading(rank=0, phase=phase, step=step, micro=micro, count=count)))

    say("loading", 0)
    now += 200
    for step in range(40):
        if step % 10 == 0:
            say("evaluating", step)
            now += 30
        say("training", step)
        for micro in range(micros):
            now += step_seconds / micros * (1 + noise * chance.random()) + (60 if step == 0 and micro == 0 else 0)
            say("training", step, micro + 1)
        say("training", step + 1)
        if step % 15 == 0:
            say("saving", step + 1)
            now += 45

    times = iter(events)
    upcoming = next(times)
    state, found, beat = State(), [], BeatReading(rank=0, phase="starting")
    look = max(LOOK, now / 2000)
    facts = Facts(step_seconds=step_seconds, patience=Patience(look=2 * look))
    for at in range(int(now / look)):
        while upcoming is not None and upcoming[0] <= at * look:
            beat, upcoming = upcoming[1], next(times, None)  # type: ignore[assignment]
        state, more = update(state, [beat], at * look, facts)
        found += more
    assert not found
