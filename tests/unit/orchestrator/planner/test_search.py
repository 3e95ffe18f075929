"""What the planner chooses on drawn machines, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import (
    AdapterConfig,
    Backend,
    BatchConfig,
    Checkpointing,
    DataConfig,
    Dtype,
    Engine,
    EngineConfig,
    LaunchConfig,
    Offload,
    Padding,
    Precision,
)
from orchestrator.errors import ExitCode, NothingFits, UserError
from orchestrator.planner.explain import explain
from orchestrator.planner.plan import Plan, dumps
from topology.model import Device, DeviceKind, Host, Topology
from topology.presets import cpu_host, preset
from topology.units import GIB

Planner = Callable[..., Plan]


def _one_gpu(name: str, memory_gib: int, capability: tuple[int, int]) -> Topology:
    device = Device(
        id="GPU-0",
        host="h",
        kind=DeviceKind.gpu,
        name=name,
        memory_bytes=memory_gib * GIB,
        compute_capability=capability,
    )
    return Topology(hosts=(Host(name="h", memory_bytes=64 * GIB, cores=8, devices=(device,)),))


def test_8b_on_one_24_gb_card_is_not_sharded(plan_for: Planner) -> None:
    plan = plan_for("8b", "1x24gb", tokens=2048)
    strategy = plan.chosen.strategy
    assert (strategy.engine, strategy.world_size, strategy.precision) == (Engine.ddp, 1, "bf16")
    assert (strategy.adapter_dtype, strategy.quant_storage) == ("fp32", "uint8")
    assert plan.chosen.estimate.memory.device_bytes < 0.92 * 24 * GIB


def test_8b_on_two_cards_prefers_copies(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie")
    assert plan.chosen.strategy.engine is Engine.ddp
    assert any(choice.strategy.engine is Engine.zero3 for choice in plan.ranked)


def test_70b_fits_eight_80_gb_cards(plan_for: Planner) -> None:
    plan = plan_for("70b", "8xa100-80gb", tokens=2048)
    assert plan.chosen.strategy.world_size == 8
    assert plan.chosen.strategy.engine is Engine.ddp


def test_70b_on_one_24_gb_card_with_little_host_memory_is_refused_with_all_reasons(plan_for: Planner) -> None:
    machine = preset("1x24gb")
    (host,) = machine.hosts
    small = replace(machine, hosts=(replace(host, memory_bytes=20 * GIB, available_memory_bytes=20 * GIB),))
    with pytest.raises(NothingFits) as caught:
        plan_for("70b", small, tokens=2048)
    text = str(caught.value)
    assert caught.value.exit_code is ExitCode.NOTHING_FITS
    assert "ddp on 1 rank" in text
    assert "zero3 on 1 rank, offload cpu" in text
    assert "streamed on 1 rank, window 3" in text
    assert "base_packed 31.9" in text
    assert "has 24.0 GiB" in text


def test_7b_on_a_t4_trains_in_fp16(plan_for: Planner) -> None:
    plan = plan_for("7b", _one_gpu("Tesla T4", 16, (7, 5)))
    assert plan.chosen.strategy.precision == "fp16"
    assert plan.chosen.strategy.adapter_dtype == "fp32"
    assert any("7.5" in reason for reason in plan.reasons)


def test_cpu_hosts_take_up_to_two_ranks_of_one_thread(plan_for: Planner) -> None:
    strategy = plan_for("tiny", "cpu").chosen.strategy
    assert (strategy.world_size, strategy.threads_per_process, strategy.precision) == (2, 1, "fp32")
    assert strategy.allocator == ""
    one = plan_for("tiny", "cpu", devices=1).chosen.strategy
    assert (one.world_size, one.threads_per_process) == (1, 2)


def test_more_cpu_ranks_than_cores_is_warned_about(plan_for: Planner) -> None:
    plan = plan_for("tiny", "cpu", devices=4)
    assert plan.chosen.strategy.world_size == 4
    assert any("share 2 cores" in warning for warning in plan.warnings)


def test_global_batch_is_kept_by_uneven_shares(plan_for: Planner) -> None:
    plan = plan_for("tiny", cpu_host(slots=3), devices=3, batch=BatchConfig(global_=16))
    assert sum(plan.chosen.strategy.shares) == 16
    assert set(plan.chosen.strategy.shares) == {5, 6}


def test_faster_cards_take_more_rows(plan_for: Planner) -> None:
    fast, slow = preset("1x24gb").hosts[0], _one_gpu("Tesla T4", 16, (7, 5)).hosts[0]
    devices = (fast.devices[0], replace(slow.devices[0], host=fast.name))
    plan = plan_for("7b", Topology(hosts=(replace(fast, devices=devices),)), devices=2)
    shares = plan.chosen.strategy.shares
    assert shares[0] > shares[1]
    assert any("differ" in warning for warning in plan.warnings)


def test_forced_settings_are_kept(plan_for: Planner) -> None:
    plan = plan_for(
        "tiny",
        "cpu",
        engine=EngineConfig(name=Engine.zero3),
        checkpointing=Checkpointing.full,
        batch=BatchConfig(global_=16, micro=2),
    )
    strategy = plan.chosen.strategy
    assert (strategy.engine, strategy.checkpointing) == (Engine.zero3, Checkpointing.full)
    assert (strategy.micro, strategy.accumulation) == ((2, 2), 4)
    assert (strategy.adapter_dtype, strategy.quant_storage) == ("fp32", "bfloat16")
    assert strategy.zero3 is not None
    # What the user asks for reaches DeepSpeed, on a CPU too, where device and host are one memory.
    assert strategy.zero3.offload_param is Offload.cpu
    assert strategy.zero3.param_persistence_threshold == 0


def test_user_knobs_win(plan_for: Planner) -> None:
    engine = EngineConfig(name=Engine.zero3, prefetch_bucket_size=123, offload_param=Offload.none)
    knobs = plan_for("8b", "2x24gb-pcie", engine=engine).chosen.strategy.zero3
    assert knobs is not None
    assert (knobs.prefetch_bucket_size, knobs.offload_param) == (123, Offload.none)
    assert knobs.param_persistence_threshold == 40_960


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 4}, "4 GPUs asked for, 2 found"),
        ({"nodes": 2}, "2 hosts asked for"),
        ({"batch": BatchConfig(global_=1), "devices": 2}, "cannot feed 2 ranks"),
        ({"launch": LaunchConfig(backend=Backend.local), "devices": 2}, "starts one rank"),
        ({"adapter": AdapterConfig(targets=("q_prj",))}, "q_proj"),
    ],
)
def test_impossible_requests_are_user_errors(plan_for: Planner, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        plan_for("7b", "2x24gb-pcie", **changes)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_local_launch_takes_one_device(plan_for: Planner) -> None:
    plan = plan_for("7b", "2x24gb-pcie", launch=LaunchConfig(backend=Backend.local))
    assert plan.chosen.strategy.world_size == 1


def test_small_batches_leave_devices_idle(plan_for: Planner) -> None:
    plan = plan_for("7b", "8xh100", batch=BatchConfig(global_=4))
    assert plan.chosen.strategy.world_size == 4
    assert any("feeds only 4" in warning for warning in plan.warnings)


def test_conflicting_types_are_rejections_with_reasons(plan_for: Planner) -> None:
    plan = plan_for("8b", "1x24gb", adapter=AdapterConfig(dtype=Dtype.fp32))
    assert any("DeepSpeed casts" in rejection.reason for rejection in plan.rejected)
    with pytest.raises(NothingFits, match="cannot unscale"):
        plan_for(
            "8b",
            "1x24gb",
            engine=EngineConfig(name=Engine.ddp),
            precision=Precision.fp16,
            adapter=AdapterConfig(dtype=Dtype.fp16),
        )


def test_zero3_has_no_fp16_on_cpus(plan_for: Planner) -> None:
    forced = EngineConfig(name=Engine.zero3)
    with pytest.raises(NothingFits, match="no fp16 on CPU ranks") as caught:
        plan_for("tiny", "cpu", engine=forced, precision=Precision.fp16)
    assert caught.value.problems[0].remedy.startswith("Change one of the settings")
    assert plan_for("tiny", "cpu", engine=forced).chosen.strategy.precision == "fp32"
    plan = plan_for("tiny", "cpu", precision=Precision.fp16)
    assert plan.chosen.strategy.engine is Engine.ddp
    assert any("no fp16 on CPU" in rejection.reason for rejection in plan.rejected)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(("model", "length"), [("tiny", 1024), ("8b", 2048)])
def test_estimated_lengths_never_cut_rows(plan_for: Planner, packing: bool, model: str, length: int) -> None:
    data = DataConfig(path="rows.jsonl", packing=packing)
    plan = plan_for(model, "8xh100", tokens=40, data=data)
    assert plan.chosen.strategy.seq_len == length
    assert not any("is cut at" in warning for warning in plan.warnings)
    long = plan_for(model, "8xh100", tokens=5000, data=data)
    assert any(f"about 5000 tokens and is cut at {length}" in warning for warning in long.warnings)


def test_static_rows_are_padded_to_the_longest_unless_the_user_says(plan_for: Planner) -> None:
    automatic = DataConfig(path="rows.jsonl", padding=Padding.static)
    short = plan_for("tiny", "8xh100", tokens=64, data=automatic)
    full = plan_for("tiny", "8xh100", tokens=64, data=replace(automatic, seq_len=1024))
    assert short.chosen.estimate.memory.device_bytes < full.chosen.estimate.memory.device_bytes


def test_large_batches_are_planned_at_once(plan_for: Planner) -> None:
    start_seconds = time.process_time()
    plan = plan_for("tiny", "cpu", batch=BatchConfig(global_=65_536))
    assert sum(plan.chosen.strategy.shares) == 65_536
    assert time.process_time() - start_seconds < 5.0  # 0.3 s on an idle core; the margin is for a busy machine


def test_host_memory_is_a_limit_too(plan_for: Planner) -> None:
    host = cpu_host().hosts[0]
    small = Topology(hosts=(replace(host, available_memory_bytes=1 * GIB),))
    with pytest.raises(NothingFits, match="of host memory a rank"):
        plan_for("tiny", small)


@settings(max_examples=5, deadline=None)
@given(
    rows=st.integers(2, 70),
    machine=st.sampled_from(["1x24gb", "2x24gb-pcie", "4xv100-16gb", "8xh100", "cpu"]),
    tokens=st.integers(16, 1024),
)
def test_plans_are_deterministic_and_keep_the_batch(
    fresh_plan_for: Planner, rows: int, machine: str, tokens: int
) -> None:
    first, second = (fresh_plan_for("tiny", machine, tokens=tokens, batch=BatchConfig(global_=rows)) for _ in range(2))
    assert dumps(first) == dumps(second)
    for choice in first.ranked:
        strategy = choice.strategy
        assert sum(strategy.shares) == rows
        assert len(strategy.micro) == strategy.world_size


def _mixed_hosts() -> Topology:
    def host(name: str, gpu: str, memory_gib: int, capability: tuple[int, int]) -> Host:
        device = Device(
            id=name,
            host=name,
            kind=DeviceKind.gpu,
            name=gpu,
            memory_bytes=memory_gib * GIB,
            compute_capability=capability,
        )
        devices = tuple(replace(device, id=f"{name}-{at}") for at in range(2))
        return Host(name=name, memory_bytes=256 * GIB, cores=64, devices=devices)

    slow, fast = ("a", "NVIDIA A100-SXM4-40GB", 40, (8, 0)), ("h", "NVIDIA H100 80GB HBM3", 80, (9, 0))
    return Topology(hosts=(host(*slow), host(*fast)))


def test_mixed_hosts_share_rows_by_speed_and_tell_what_equal_rows_would_take(plan_for: Planner) -> None:
    plan = plan_for("8b", _mixed_hosts(), tokens=1024, nodes=2, devices=4, batch=BatchConfig(global_=48))
    shares = plan.chosen.strategy.shares
    assert sum(shares) == 48
    assert shares[2] > shares[0]
    (sentence,) = [reason for reason in plan.reasons if "equal shares would take" in reason]
    assert float(sentence.split("would take ")[1].split(" times")[0]) > 1.05
    assert "2 x NVIDIA A100-SXM4-40GB (40.0 GiB), 2 x NVIDIA H100 80GB HBM3 (80.0 GiB)" in plan.machine


def test_fewer_devices_are_an_answer(plan_for: Planner) -> None:
    """Two cards that only a slow network joins do not help a tiny step: one is as fast."""
    plan = plan_for("tiny", "2x24gb-pcie", tokens=64, batch=BatchConfig(global_=2))
    assert plan.chosen.strategy.world_size == 1
    assert any("of 2 devices (one GPU)" in reason for reason in plan.reasons)
    whole = plan_for("tiny", "2x24gb-pcie", tokens=64, batch=BatchConfig(global_=2), devices=2)
    assert plan.chosen.estimate.tokens_per_second > 0.98 * whole.chosen.estimate.tokens_per_second


def test_the_short_list_tells_where_time_and_memory_go(plan_for: Planner) -> None:
    text = explain(plan_for("8b", "2x24gb-pcie"))
    assert "time goes to" in text
    assert "memory goes to" in text
    assert text.count("products ") >= 3


def test_offload_is_searched_where_it_is_open(plan_for: Planner) -> None:
    found = plan_for("8b", "2x24gb-pcie", engine=EngineConfig(name=Engine.zero3), devices=2).ranked
    places = {choice.strategy.zero3.offload_param for choice in found if choice.strategy.zero3 is not None}
    assert places == {Offload.none, Offload.cpu}
    fixed = EngineConfig(name=Engine.zero3, offload_param=Offload.cpu)
    only = plan_for("8b", "2x24gb-pcie", engine=fixed, devices=2).ranked
    assert {c.strategy.zero3.offload_param for c in only if c.strategy.zero3 is not None} == {Offload.cpu}


def test_what_fits_nearer_is_not_offloaded(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie")
    assert any("fit with the base nearer" in entry.reason for entry in plan.rejected)
    nvme = EngineConfig(name=Engine.zero3, nvme_path="/fast")
    asked = replace(nvme, offload_param=Offload.nvme)
    forced = plan_for("8b", "2x24gb-pcie", engine=asked, devices=2).ranked
    assert {c.strategy.zero3.offload_param for c in forced if c.strategy.zero3 is not None} == {Offload.nvme}
