"""The timeline: against a slow event-by-event reference, and what must hold for every schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.estimate.timeline import (
    Schedule,
    Stream,
    Task,
    Visit,
    busiest_seconds,
    end_seconds,
    segments_of,
    serial_seconds,
    simulate,
    tasks_of,
)

_SECONDS = st.one_of(st.just(0.0), st.floats(0.001, 5.0))


def reference(tasks: Sequence[Task]) -> list[tuple[float, float]]:
    """Advance time from event to event: a stream that is free takes its next task once what it waits for is done."""
    queues = {stream: [i for i, task in enumerate(tasks) if task.stream is stream] for stream in Stream}
    running: dict[Stream, tuple[float, int]] = {}
    times: dict[int, tuple[float, float]] = {}
    done: set[int] = set()
    now = 0.0
    while len(done) < len(tasks):
        progress = True
        while progress:
            progress = False
            for stream, queue in queues.items():
                if stream in running or not queue or not done.issuperset(tasks[queue[0]].after):
                    continue
                index = queue.pop(0)
                times[index] = (now, now + tasks[index].seconds)
                running[stream] = (times[index][1], index)
                progress = True
            for stream, (end, index) in list(running.items()):
                if end <= now:
                    del running[stream]
                    done.add(index)
                    progress = True
        if running:
            now = min(end for end, _ in running.values())
    return [times[i] for i in range(len(tasks))]


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    for index in range(draw(st.integers(1, 14))):
        after = draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True)) if index else []
        stream = draw(st.sampled_from(list(Stream)))
        tasks.append(Task(name=str(index), stream=stream, seconds=draw(_SECONDS), after=tuple(after)))
    return tasks


@st.composite
def visits(draw: st.DrawFn) -> Visit:
    return Visit(
        host=draw(_SECONDS),
        compute=draw(_SECONDS),
        gather=draw(_SECONDS),
        copy=draw(_SECONDS),
        window=draw(st.integers(0, 4)),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    return Schedule(
        layers=draw(st.integers(1, 9)),
        forward=draw(visits()),
        backward=draw(visits()),
        head_seconds=draw(_SECONDS),
        reduce_seconds=draw(_SECONDS),
        group_layers=draw(st.integers(1, 10)),
        tail_seconds=draw(_SECONDS),
        start_seconds=draw(_SECONDS),
    )


def resident(schedule: Schedule) -> Schedule:
    forward, backward = (replace(x, gather=0.0, copy=0.0) for x in (schedule.forward, schedule.backward))
    return replace(schedule, forward=forward, backward=backward)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_simulation_agrees_with_the_reference(tasks: list[Task]) -> None:
    found = simulate(tasks)
    for segment, (start, end) in zip(found, reference(tasks), strict=True):
        assert segment.start_seconds == pytest.approx(start)
        assert segment.end_seconds == pytest.approx(end)


@settings(max_examples=150, deadline=None)
@given(schedules(), st.booleans())
def test_short_form_agrees_with_the_tasks(schedule: Schedule, keeps: bool) -> None:
    schedule = schedule if keeps else resident(schedule)
    ends = [end for _, end in reference(tasks_of(schedule))]
    assert end_seconds(schedule) == pytest.approx(max(ends))


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_between_the_busiest_stream_and_no_overlap(schedule: Schedule) -> None:
    end = end_seconds(schedule)
    assert busiest_seconds(schedule) <= end * (1 + 1e-9)
    assert end <= serial_seconds(schedule) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(schedules(), st.floats(1.0, 4.0), st.sampled_from(["host", "compute", "gather", "copy"]))
def test_slower_work_never_ends_earlier(schedule: Schedule, factor: float, what: str) -> None:
    slower = replace(
        schedule,
        forward=replace(schedule.forward, **{what: factor * getattr(schedule.forward, what)}),
        backward=replace(schedule.backward, **{what: factor * getattr(schedule.backward, what)}),
    )
    assert end_seconds(slower) >= end_seconds(schedule) - 1e-9


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_a_wider_window_never_hurts_what_only_gathers(schedule: Schedule) -> None:
    """With reductions in between a gather issued early may delay one, so there are none here."""
    plain = replace(schedule, reduce_seconds=0.0)
    wider = replace(
        plain,
        forward=replace(plain.forward, window=plain.forward.window + 1),
        backward=replace(plain.backward, window=plain.backward.window + 1),
    )
    assert end_seconds(wider) <= end_seconds(plain) + 1e-9


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_without_a_window_a_layer_waits_for_its_weights(schedule: Schedule) -> None:
    plain = replace(schedule, start_seconds=0.0, reduce_seconds=0.0)
    visits_ = [replace(x, host=0.0, window=0) for x in (plain.forward, plain.backward)]
    alone = replace(plain, forward=visits_[0], backward=visits_[1])
    # Only the head may hide the first gather of the backward pass.
    hidden = min(alone.head_seconds, alone.backward.gather + alone.backward.copy)
    assert end_seconds(alone) >= serial_seconds(alone) - hidden - 1e-9


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_segments_tile_their_streams(schedule: Schedule) -> None:
    ends = dict.fromkeys(Stream, 0.0)
    for segment in segments_of(schedule):
        assert segment.start_seconds >= ends[segment.stream] - 1e-12
        assert segment.end_seconds > segment.start_seconds
        ends[segment.stream] = segment.end_seconds


def test_one_gather_runs_beside_the_layer_before() -> None:
    visit = Visit(compute=2.0, gather=1.0, window=1)
    plan = Schedule(layers=2, forward=visit, backward=visit)
    # 1 s for the first gather; the three others hide behind 2 s of compute each.
    assert end_seconds(plan) == pytest.approx(9.0)
    none = replace(visit, window=0)
    assert end_seconds(replace(plan, forward=none, backward=none)) == pytest.approx(12.0)


def test_launches_run_ahead_of_compute() -> None:
    visit = Visit(host=1.0, compute=3.0)
    assert end_seconds(Schedule(layers=3, forward=visit, backward=visit)) == pytest.approx(19.0)
    slow = Visit(host=3.0, compute=1.0)
    assert end_seconds(Schedule(layers=3, forward=slow, backward=slow)) == pytest.approx(19.0)


def test_names_say_layer_and_way() -> None:
    visit = Visit(compute=1.0, gather=1.0)
    names = [segment.name for segment in segments_of(Schedule(layers=2, forward=visit, backward=visit))]
    assert names.count("layer 1 backward") == 1
    assert names.index("layer 1 backward") < names.index("layer 0 backward")
    assert "gather 0 forward" in names


def test_impossible_schedules_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Schedule(layers=0, forward=Visit(), backward=Visit())
    with pytest.raises(ValueError, match="below 0"):
        Schedule(layers=1, forward=Visit(compute=-1.0), backward=Visit())
