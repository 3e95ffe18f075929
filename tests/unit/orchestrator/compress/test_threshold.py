from __future__ import annotations

import torch

from orchestrator.compress import error_feedback
from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import Layout
from orchestrator.compress.threshold import Threshold, exact_threshold, select, steered
from orchestrator.planner.compression import CHUNK, Values, codec_of
from tests.unit.orchestrator.compress.meeting import InMemory, together

CPU = torch.device("cpu")
LAYOUT = Layout(names=("a", "b"), numels=(20 * CHUNK, 4 * CHUNK + 5))
ELEMENTS = sum(LAYOUT.numels)


def gradients(rank: int, step: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    made = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(100 * rank + step)) * size
    return dict(zip(LAYOUT.names, made.split(list(LAYOUT.numels)), strict=True))


def run(rank: int, transport: InMemory, sizes: list[float], density: float) -> tuple[Threshold, list[int], float]:
    """Exchange steps; give the number of elements said in each, and the worst deviation from the law."""
    reducer = Threshold(transport, codec_of(density, Values.int8), Clock(CPU))
    state = error_feedback.init(LAYOUT, CPU, reducer)
    said, worst = [], 0.0
    for step, size in enumerate(sizes):
        given = gradients(rank, step, size)
        old = state.base.clone()
        decoded, state = error_feedback.update(state, given, reducer)
        assert not state.candidate.isnan().any()
        said.append(sum(int(value.count_nonzero()) for value in decoded.values()))
        made, told = (
            LAYOUT.rows(list(given.values()), torch.float32, CPU),
            LAYOUT.rows(list(decoded.values()), torch.float32, CPU),
        )
        shares = transport.meeting.swap(rank, (made + old - state.base).double())
        largest = max(sizes[: step + 1])  # what residuals still hold
        gap = (sum(shares) - transport.size * told.double()).abs().max() / largest
        worst = max(worst, float(gap))
    return reducer, said, worst


def test_a_threshold_is_the_size_of_the_last_wanted() -> None:
    values = torch.tensor([3.0, -5.0, 1.0, 0.0])
    assert exact_threshold(values, 1) == 5
    assert exact_threshold(values, 2) == 3
    assert 0 < exact_threshold(values, 4) < 1e-37  # zeros are never selected
    assert 0 < exact_threshold(torch.empty(0), 4) < 1e-37


def test_a_threshold_is_steered_by_what_it_selects() -> None:
    assert steered(1.0, 100, 100) == steered(1.0, 80, 100) == steered(1.0, 125, 100) == 1.0
    assert steered(1.0, 79, 100) < 1.0
    assert steered(1.0, 126, 100) > 1.0


def test_a_lost_threshold_is_found_exactly() -> None:
    values = torch.arange(1.0, 1001.0)
    for lost in (1e-3, 1e6):
        chosen, after = select(values, lost, 50)
        assert chosen.tolist() == list(range(950, 1000))
        assert after == 951
    chosen, after = select(values, 941.0, 50)  # 60: within a quarter
    assert (len(chosen), after) == (60, 941.0)


def test_counts_follow_gradients_that_grow_and_shrink_and_nothing_is_lost() -> None:
    sizes = [1.0] * 18 + [30.0] * 6 + [0.05] * 6
    wanted = codec_of(0.01, Values.int8).density * LAYOUT.num_chunks * CHUNK
    found = together(3, lambda rank, transport: run(rank, transport, sizes, 0.01))
    assert all(said == found[0][1] for _, said, _ in found)
    assert max(worst for *_, worst in found) < 1e-5
    counts = found[0][1]
    assert all(wanted / 3 <= count <= wanted * 3 for count in counts[10:18]), counts  # residuals have grown
    assert all(0 < count < 8 * wanted for count in counts), counts
    for reducer, *_ in found:
        (memory,) = reducer.memories.values()
        assert memory.dense_steps == 0
        assert memory.steps == len(sizes)
        assert sum(memory.regions) == LAYOUT.num_chunks * CHUNK


def test_too_many_selected_elements_travel_dense() -> None:
    found = together(2, lambda rank, transport: run(rank, transport, [1.0, 1.0], 0.4))
    for reducer, said, worst in found:
        (memory,) = reducer.memories.values()
        assert memory.dense_steps == 2
        assert min(said) > 0.99 * ELEMENTS
        assert worst < 1e-6


def test_regions_get_about_as_many_elements_each() -> None:
    """Large gradients lie in the first tenth only: so do most regions."""

    def skewed(rank: int, transport: InMemory) -> list[int]:
        reducer = Threshold(transport, codec_of(0.01, Values.int8), Clock(CPU))
        state = error_feedback.init(LAYOUT, CPU, reducer)
        given = gradients(rank, 0)
        given["a"][8000:] *= 1e-3
        given["b"] *= 1e-3
        error_feedback.update(state, given, reducer)
        return reducer.memories[LAYOUT.names].regions

    for regions in together(4, skewed):
        assert sum(regions[:3]) < 8000
        assert max(regions[:3]) < 1.5 * min(regions[:3])


def test_a_bad_step_forgets_its_thresholds() -> None:
    def one(rank: int, transport: InMemory) -> bool:
        reducer = Threshold(transport, codec_of(0.01, Values.int8), Clock(CPU))
        state = error_feedback.init(LAYOUT, CPU, reducer)
        _, state = error_feedback.update(state, gradients(rank, 0), reducer)
        bad = gradients(rank, 1)
        if rank == 1:
            bad["a"][7] = float("inf")
        decoded, after = error_feedback.update(state, bad, reducer)
        assert not decoded["b"].isfinite().any()
        assert reducer.memories[LAYOUT.names].steps == 0
        decoded, _ = error_feedback.update(after, gradients(rank, 2), reducer)
        return after is state and bool(decoded["a"].isfinite().all())

    assert together(2, one) == [True, True]
