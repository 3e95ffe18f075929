"""What a rank waits for, told from what it does."""

from __future__ import annotations

import time

import torch
from torch import nn

from orchestrator.train.waits import RunnableClock, StepWaits, Stopwatch, WaitMeter

CPU = torch.device("cpu")


def busy(seconds: float) -> None:
    """Compute for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Slow(torch.autograd.Function):
    """Takes its time in the backward pass, as a layer does."""

    @staticmethod
    def forward(ctx, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        busy(0.03)
        return gradient


def model() -> tuple[list[nn.Parameter], torch.Tensor]:
    """Two parameters; the gradient of the first comes last."""
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    return [first, second], (Slow.apply(first * 2.0) * second).sum()


def test_the_wait_begins_with_the_last_gradient() -> None:
    parameters, loss = model()
    meter = WaitMeter(parameters, CPU)

    def backward() -> None:
        loss.backward()
        busy(0.01)  # sums of gradients, which nothing hides

    meter.backward(backward)()
    waited = meter.take()
    assert waited is not None
    assert 0.01 <= waited < 0.03
    assert meter.take() == 0.0


def test_after_the_first_pass_one_parameter_is_watched_and_several_passes_add_up() -> None:
    parameters, loss = model()
    meter = WaitMeter(parameters, CPU)
    backward = meter.backward(lambda: (loss.backward(retain_graph=True), busy(0.01)))  # type: ignore[arg-type,return-value]
    backward()
    assert [index for index in meter._hooks] == [0]  # noqa: C416
    meter.take()
    backward()
    backward()
    waited = meter.take()
    assert waited is not None
    assert 0.02 <= waited < 0.05
    meter.close()
    backward()
    assert meter.take() is None  # no gradient was seen


def test_a_hooked_model_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    value = torch.randn(4, 8)
    layers(value).sum().backward()
    plain = [parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None]
    layers.zero_grad()
    WaitMeter(list(layers.parameters()), CPU)
    for _ in range(2):
        layers.zero_grad()
        layers(value).sum().backward()
        hooked = [parameter.grad for parameter in layers.parameters() if parameter.grad is not None]
        assert all(torch.equal(one, other) for one, other in zip(plain, hooked, strict=True))


def test_sleep_is_a_wait_and_work_is_not() -> None:
    clock = RunnableClock()
    if clock.take() is None:
        return
    busy(0.05)
    worked = clock.take()
    time.sleep(0.05)
    slept = clock.take()
    assert worked is not None
    assert slept is not None
    assert worked > 0.03
    assert slept < 0.02


def test_a_lone_rank_waits_for_nobody() -> None:
    waits = StepWaits(nn.Linear(2, 2), [], CPU, world_size=1)
    assert waits.take(0.5) == (0.5, 0.0)


def test_ranks_without_ddp_count_what_they_run() -> None:
    waits = StepWaits(nn.Linear(2, 2), [], CPU, world_size=2)
    waits.restart()
    busy(0.03)
    seconds, communication = waits.take(10.0)
    assert communication is None
    assert seconds is None or 0.02 < seconds < 1.0


def test_a_stopwatch_counts_calls_that_fail_too() -> None:
    watch = Stopwatch()

    def fail() -> None:
        busy(0.005)
        raise ValueError

    for _ in range(2):
        try:
            watch.timed(fail)()
        except ValueError:
            continue
    assert 0.01 <= watch.seconds < 0.1
