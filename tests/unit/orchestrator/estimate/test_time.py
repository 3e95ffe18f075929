"""Step times: bounds, measured points of the reference machine, and what each lever costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Checkpointing, Engine, Offload
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time import estimate_time, flops_per_token, schedule_of, timeline_of
from orchestrator.estimate.timeline import end_seconds

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
    assert {term.name for term in zero3.terms} - {term.name for term in ddp.terms} == {
        "gathers",
        "landing",
        "contention",
    }


@settings(max_examples=40, deadline=None)
@given(
    engine=st.sampled_from([Engine.ddp, Engine.zero3]),
    field=st.sampled_from(
        [
            "flops_per_second",
            "memory_bytes_per_second",
            "link_bytes_per_second",
            "gather_bytes_per_second",
            "h2d_bytes_per_second",
        ]
    ),
    factor=st.floats(1.0, 20.0),
    accumulation=st.integers(1, 3),
)
def test_faster_machines_never_take_longer(
    make_setting: Make, engine: Engine, field: str, factor: float, accumulation: int
) -> None:
    now = make_setting(machine="gpu", engine=engine, world_size=4, rows=2 * accumulation, accumulation=accumulation)
    if now.zero3 is not None:
        now = replace(now, zero3=replace(now.zero3, offload_param=Offload.cpu))
    faster = replace(now, machine=replace(now.machine, **{field: factor * getattr(now.machine, field)}))
    assert estimate_time(faster).step_seconds <= estimate_time(now).step_seconds * (1 + 1e-9)


def test_each_offload_target_costs_more(make_setting: Make) -> None:
    big = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 8}

    def seconds(target: Offload) -> float:
        setting = make_setting(machine="gpu", engine=Engine.zero3, model=big)
        assert setting.zero3 is not None
        return estimate_time(replace(setting, zero3=replace(setting.zero3, offload_param=target))).step_seconds

    assert seconds(Offload.none) < seconds(Offload.cpu) < seconds(Offload.nvme)


def test_a_prefetch_bucket_hides_gathers(make_setting: Make) -> None:
    wide = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
    setting = make_setting(machine="gpu", engine=Engine.zero3, model=wide, seq_len=2048)
    assert setting.zero3 is not None
    none = replace(setting, zero3=replace(setting.zero3, prefetch_bucket_size=0))
    hidden, exposed = (next(term for term in estimate_time(x).terms if term.name == "gathers") for x in (setting, none))
    assert hidden.total_seconds == pytest.approx(exposed.total_seconds)
    assert hidden.seconds < exposed.seconds
    assert "100% of it beside other work" in hidden.why


@pytest.mark.parametrize("engine", [Engine.ddp, Engine.zero3])
@pytest.mark.parametrize("gpu", [True, False])
def test_the_timeline_ends_with_the_step(make_setting: Make, engine: Engine, gpu: bool) -> None:
    changes = {"machine": "gpu"} if gpu else {}
    setting = make_setting(engine=engine, world_size=2, rows=2, accumulation=1, **changes)
    step = estimate_time(setting).step_seconds
    assert end_seconds(schedule_of(setting)) == pytest.approx(step)
    assert max(segment.end_seconds for segment in timeline_of(setting)) == pytest.approx(step)


def test_launches_bound_short_rows(make_setting: Make) -> None:
    short = estimate_time(make_setting(machine="gpu", seq_len=64, micro=1, rows=1, accumulation=1))
    overhead = next(term for term in short.terms if term.name == "overhead")
    assert overhead.seconds > 0.5 * short.step_seconds
    # Launches that compute hides add nothing to the step.
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    long = estimate_time(make_setting(machine="gpu", model=wide, seq_len=8192, micro=4, rows=4, accumulation=1))
    overhead = next(term for term in long.terms if term.name == "overhead")
    assert overhead.seconds < 0.02 * long.step_seconds < overhead.total_seconds + 0.02 * long.step_seconds
