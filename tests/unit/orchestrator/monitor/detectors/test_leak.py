"""Memory that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.leak import WINDOW, State, device_use, host_use, update
from orchestrator.monitor.finding import Kind

GIB, MIB = 2**30, 2**20
LIMIT = 16 * GIB


def run(
    made: Any,
    steps: int,
    used: Callable[[int], float],
    *,
    limit: int | None = LIMIT,
    num_steps: int | None = None,
    **terms: Any,
) -> list[Any]:
    state, found = State(), []
    for step in range(1, steps + 1):
        live = tuple((name, int(size(step))) for name, size in terms.items())
        reading = made.rank(step, device_bytes=int(used(step)), live_bytes=live)
        state, more = update(
            state, reading, device_use(reading, limit), Kind.device_memory_leak, warmup_steps=3, num_steps=num_steps
        )
        found += more
    return found


@pytest.mark.parametrize("begin", [0, 100])
def test_a_leak_is_found_within_a_window_and_told_once(made: Any, begin: int) -> None:
    found = run(made, begin + 200, lambda step: 10 * GIB + 20 * MIB * max(0, step - begin))
    assert made.kinds(found) == ["device_memory_leak"]
    assert found[0].step <= begin + WINDOW + 4


def test_it_names_the_step_at_which_memory_ends(made: Any) -> None:
    (found,) = run(made, 60, lambda step: 10 * GIB + 32 * MIB * step)
    assert dict(found.numbers)["last_step"] == pytest.approx(6 * GIB / (32 * MIB), abs=2)
    assert dict(found.numbers)["bytes_per_step"] == pytest.approx(32 * MIB)
    assert found.severity.value == "error"
    assert "used up after step" in found.evidence


def test_a_leak_that_the_run_outlives_is_a_warning(made: Any) -> None:
    (found,) = run(made, 60, lambda step: 10 * GIB + 32 * MIB * step, num_steps=100)
    assert found.severity.value == "warning"
    assert "ends at step 100" in found.evidence


def test_it_names_the_term_that_grows(made: Any) -> None:
    terms = {"adapter": lambda step: 100 * MIB, "logits": lambda step: 32 * MIB * step}
    (found,) = run(made, 60, lambda step: 10 * GIB + 32 * MIB * step, **terms)
    assert "the term logits grows" in found.evidence
    (found,) = run(made, 60, lambda step: 10 * GIB + 32 * MIB * step, adapter=lambda step: 100 * MIB)
    assert "none of the known terms" in found.evidence


def test_a_slow_leak_is_found_on_a_longer_scale(made: Any) -> None:
    found = run(made, 1600, lambda step: 10 * GIB + 0.8 * MIB * step)
    assert made.kinds(found)[:1] == ["device_memory_leak"]
    assert found[0].step > WINDOW


def test_without_a_limit_a_tenth_of_the_level_counts(made: Any) -> None:
    assert run(made, 60, lambda step: GIB + 10 * MIB * step, limit=None)
    assert not run(made, 60, lambda step: GIB + 0.1 * MIB * step, limit=None)


def test_the_hosts_memory(made: Any) -> None:
    state, found = State(), []
    for step in range(1, 60):
        reading = made.rank(step, host_bytes=GIB + 10 * MIB * step)
        use = host_use(reading, 3 * GIB)
        state, more = update(state, reading, use, Kind.host_memory_leak, warmup_steps=3, num_steps=None)
        found += more
    assert made.kinds(found) == ["host_memory_leak"]


def test_memory_that_is_not_known_is_not_judged(made: Any) -> None:
    reading = made.rank(1, device_bytes=None, host_bytes=None)
    assert device_use(reading, LIMIT) is None
    assert host_use(reading, LIMIT) is None
    assert update(State(), reading, None, Kind.host_memory_leak, warmup_steps=3, num_steps=None) == (State(), ())


@pytest.mark.parametrize("at", range(5, 60, 5))
def test_one_jump_is_no_leak(made: Any, at: int) -> None:
    assert not run(made, 120, lambda step: 10 * GIB + 2 * GIB * (step >= at))


def test_a_curve_that_flattens_out_is_no_leak(made: Any) -> None:
    assert not run(made, 600, lambda step: 10 * GIB + 2 * GIB * (1 - 0.9**step))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    noise=st.floats(0, 0.1),
    every=st.integers(5, 60),
    jump=st.floats(-2, 4),
    first=st.floats(0, 3),
)
@example(seed=2870, noise=0.09375, every=19, jump=1.0, first=0.0)
def test_healthy_memory_never_alarms(made: Any, seed: int, noise: float, every: int, jump: float, first: float) -> None:
    """Noise, evaluations and saves that take more for a step, first steps that allocate, one cache that stays."""
    chance = made.chance(seed)
    stays = chance.randrange(400)

    def used(step: int) -> float:
        level = 10 + min(first, step) * 0.3 + (0.5 if step >= stays else 0.0)
        return GIB * (level + abs(chance.gauss(0, noise)) + (jump if step % every == 0 else 0.0))

    assert not run(made, 400, used)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), leak=st.floats(30, 200))
def test_a_leak_is_found_in_noise_and_between_evaluations(made: Any, seed: int, leak: float) -> None:
    chance = made.chance(seed)

    def used(step: int) -> float:
        return 8 * GIB + leak * MIB * max(0, step - 40) + abs(chance.gauss(0, 20)) * MIB + GIB * (step % 10 == 0)

    found = run(made, 150, used, limit=64 * GIB if leak > 150 else LIMIT)
    assert made.kinds(found)[:1] == ["device_memory_leak"]
    assert 40 < found[0].step <= 40 + 2 * WINDOW
