"""Step times: bounds, measured points of the reference machine, and what each lever costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Checkpointing, Engine
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time import estimate_time, flops_per_token

Make = Callable[..., Setting]


@pytest.mark.parametrize(
    ("rows", "length", "mode", "measured_seconds"),
    [
        (1, 128, Checkpointing.none, 0.049),
        (4, 128, Checkpointing.none, 0.158),
        (8, 256, Checkpointing.none, 0.667),
        (1, 128, Checkpointing.full, 0.085),
        (4, 128, Checkpointing.full, 0.245),
        (8, 256, Checkpointing.full, 0.903),
    ],
)
def test_measured_points(
    make_setting: Make, rows: int, length: int, mode: Checkpointing, measured_seconds: float
) -> None:
    """Forward and backward of NF4 + LoRA in fp32, one thread of a core that reaches 88 GFLOP/s, plain head."""
    setting = make_setting(micro=rows, rows=rows, accumulation=1, seq_len=length, checkpointing=mode, stack="hf_plain")
    setting = replace(
        setting,
        batch=replace(setting.batch, fixed=True),
        machine=replace(setting.machine, flops_per_second=88e9),
    )
    time = estimate_time(setting)
    # The trainer's own loop and the optimizer were not part of the measurement.
    ours = time.step_seconds - sum(t.seconds for t in time.terms if t.name == "optimizer") - 8e-3
    assert ours == pytest.approx(measured_seconds, rel=0.25)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 32),
    engine=st.sampled_from([Engine.ddp, Engine.zero3]),
    gpu=st.booleans(),
    ranks=st.integers(2, 8),
)
def test_bounds_and_growth(make_setting: Make, rows: int, engine: Engine, gpu: bool, ranks: int) -> None:
    changes = {"machine": "gpu"} if gpu else {}

    def time(rows: int) -> Setting:
        return make_setting(engine=engine, micro=1, rows=rows, accumulation=rows, world_size=ranks, **changes)

    now, more = estimate_time(time(rows)), estimate_time(time(rows + 1))
    assert now.lower_seconds <= now.step_seconds <= now.upper_seconds
    assert now.step_seconds == pytest.approx(sum(term.seconds for term in now.terms))
    assert more.step_seconds > now.step_seconds


def test_flops_follow_the_passes(make_setting: Make) -> None:
    none = make_setting(batch=replace(make_setting().batch, longest_tokens=1, real_tokens_per_row=1.0, fixed=True))
    full = replace(none, checkpointing=Checkpointing.full)
    head = 6 * none.model.vocab * none.model.hidden
    assert flops_per_token(none) == pytest.approx(
        4 * none.model.linear_params + 6 * none.adapter.params + head, rel=0.01
    )
    assert flops_per_token(full) / flops_per_token(none) < 1.5


def test_sharding_costs_time(make_setting: Make) -> None:
    ddp = estimate_time(make_setting(machine="gpu", world_size=2))
    zero3 = estimate_time(make_setting(machine="gpu", engine=Engine.zero3))
    assert zero3.step_seconds > ddp.step_seconds
    assert {term.name for term in zero3.terms} - {term.name for term in ddp.terms} == {"gathers"}
