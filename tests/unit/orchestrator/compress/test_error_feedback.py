from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.compress import error_feedback
from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import Layout, mean_of
from orchestrator.compress.exchange import Flat, Gather, Split
from orchestrator.compress.residuals import Residuals
from orchestrator.errors import UserError
from orchestrator.planner.compression import CHUNK, Codec, Values
from tests.unit.orchestrator.compress.meeting import InMemory, Meeting, together

CPU = torch.device("cpu")
INT8 = Codec(kept=42, values=Values.int8)


def flat_reducer(transport: InMemory, codec: Codec = INT8, kind: type = Gather) -> Flat:
    clock = Clock(CPU)
    return Flat(kind(transport, codec, clock), codec, clock)


def alone(codec: Codec = INT8) -> Flat:
    return flat_reducer(InMemory(Meeting(1), 0), codec)


def test_each_parameter_begins_a_chunk_and_its_padding_is_zero() -> None:
    layout = Layout(names=("a", "none", "b"), numels=(CHUNK + 1, 0, 3))
    tensors = [torch.arange(CHUNK + 1.0), torch.empty(0), torch.tensor([7.0, 8, 9])]
    rows = layout.rows(tensors, torch.float32, CPU)
    assert rows.shape == (3, CHUNK)
    assert rows[1, 0] == CHUNK
    assert not rows[1, 1:].any()
    assert rows[2, :4].tolist() == [7, 8, 9, 0]
    assert all(torch.equal(view, tensor) for view, tensor in zip(layout.views(rows), tensors, strict=True))
    assert not layout.is_whole
    assert Layout(names=("a",), numels=(2 * CHUNK,)).is_whole


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=4), st.integers(1, 3), st.sampled_from([Gather, Split]))
@settings(max_examples=15)
def test_nothing_is_lost_over_several_steps(numels: list[int], size: int, kind: type) -> None:
    """After any number of steps, all gradients are in the decoded means and the residuals."""
    layout = Layout(names=tuple(map(str, range(len(numels)))), numels=tuple(numels))

    def run(rank: int, transport: InMemory) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        reducer = flat_reducer(transport, INT8, kind)
        state = error_feedback.init(layout, CPU, reducer)
        generator = torch.Generator().manual_seed(rank)
        given_, told = torch.zeros(sum(numels)), torch.zeros(sum(numels))
        for _ in range(3):
            gradients = {
                name: torch.randn(n, generator=generator) for name, n in zip(layout.names, numels, strict=True)
            }
            decoded, state = error_feedback.update(state, gradients, reducer)
            given_ += torch.cat(list(gradients.values()))
            told += torch.cat(list(decoded.values()))
        return given_, told, torch.cat(list(error_feedback.state_dict(state, reducer).values()))

    ranks = together(size, run)
    owed = sum(each[0].double() for each in ranks)
    left = sum(each[2].double() for each in ranks)
    assert torch.allclose(owed, size * ranks[0][1].double() + left, atol=1e-4)
    assert all(torch.equal(each[1], ranks[0][1]) for each in ranks)


def test_shapes_and_types_of_gradients_come_back() -> None:
    reducer = alone()
    state = error_feedback.init(Layout(names=("w",), numels=(6,)), CPU, reducer)
    decoded, _ = error_feedback.update(state, {"w": torch.ones(2, 3, dtype=torch.bfloat16)}, reducer)
    assert decoded["w"].shape == (2, 3)
    assert decoded["w"].dtype is torch.bfloat16
    assert (decoded["w"] == 1).all()


def test_a_scaled_gradient_leaves_an_unscaled_residual() -> None:
    reducer, layout = alone(Codec(kept=2, values=Values.fp32)), Layout(names=("w",), numels=(4,))
    state = error_feedback.init(layout, CPU, reducer)
    gradient = {"w": torch.tensor([8.0, 4.0, 2.0, 1.0])}
    decoded, state = error_feedback.update(state, gradient, reducer, scale=4.0)
    assert decoded["w"].tolist() == [8, 4, 0, 0]
    assert error_feedback.state_dict(state, reducer)["w"].tolist() == [0, 0, 0.5, 0.25]
    decoded, state = error_feedback.update(state, {"w": torch.zeros(4)}, reducer, scale=8.0)
    assert decoded["w"].tolist() == [0, 0, 4, 2]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_changes_no_state(value: float) -> None:
    reducer, layout = alone(), Layout(names=("w",), numels=(9000,))
    state = error_feedback.init(layout, CPU, reducer)
    _, state = error_feedback.update(state, {"w": torch.randn(9000)}, reducer)
    before = state.base.clone()
    bad = torch.randn(9000)
    bad[5000] = value
    decoded, after = error_feedback.update(state, {"w": bad}, reducer)
    assert not decoded["w"].isfinite().any()
    assert after is state
    assert torch.equal(state.base, before)


def test_a_mean_too_large_for_fp16_changes_no_state() -> None:
    """The residual may have grown beyond what the scaled type holds: then the step is left out, and nothing lost."""
    reducer, layout = alone(Codec(kept=2, values=Values.fp32)), Layout(names=("w",), numels=(4,))
    state = error_feedback.init(layout, CPU, reducer)
    held = error_feedback.load(state, {"w": torch.tensor([100.0, 0, 0, 0])}, reducer)[0]
    gradient = {"w": torch.ones(4, dtype=torch.float16)}
    decoded, after = error_feedback.update(held, gradient, reducer, scale=1024.0)
    assert not decoded["w"].isfinite().any()
    assert after is held
    assert held.base[0, 0] == 100
    decoded, after = error_feedback.update(held, gradient, reducer, scale=64.0)
    assert decoded["w"][0] == 6400 + 1
    assert after is not held


def test_other_gradients_than_the_states_are_refused() -> None:
    reducer = alone()
    state = error_feedback.init(Layout(names=("w",), numels=(4,)), CPU, reducer)
    for wrong in ({}, {"v": torch.zeros(4)}, {"w": torch.zeros(5)}, {"w": torch.zeros(4), "v": torch.zeros(1)}):
        with pytest.raises(UserError, match="'w': 4"):
            error_feedback.update(state, wrong, reducer)


def test_the_mean_of_residuals() -> None:
    mean = mean_of([{"w": torch.tensor([2.0, 4.0])}, {"w": torch.tensor([0.0, -4.0])}])
    assert mean["w"].tolist() == [1, 0]


def test_residuals_follow_their_parameters_into_new_buckets() -> None:
    reducer, codec = alone(), Codec(kept=2, values=Values.fp32)
    held = Residuals(reducer, CPU)
    numels = {"a": 3, "b": 5000, "c": 4}
    saved = {name: torch.randn(numel) for name, numel in numels.items()}
    assert held.put_back({**saved, "c": torch.ones(9)}, numels) == ("c",)
    first = held.of(Layout(names=("a", "b"), numels=(3, 5000)))
    assert torch.equal(first.base[0, :3], saved["a"])
    held.of(Layout(names=("c",), numels=(4,)))
    again = held.of(Layout(names=("c", "b"), numels=(4, 5000)))
    assert torch.equal(again.base[1:].view(-1)[:5000], saved["b"])
    told = held.dump()
    assert torch.equal(told["a"], saved["a"])  # of a bucket that is gone, until its next one is known
    assert torch.equal(told["b"], saved["b"])
    assert not told["c"].any()
    assert codec.kept == 2


def test_a_bad_step_moves_no_bucket() -> None:
    held, layout = Residuals(alone(), CPU), Layout(names=("a",), numels=(3,))
    state = held.of(layout)
    state.candidate.fill_(5)
    held.advance(("a",), torch.tensor(True))
    assert not held.dump()["a"].any()
    held.advance(("a",), torch.tensor(False))
    assert held.dump()["a"].tolist() == [5, 5, 5]
