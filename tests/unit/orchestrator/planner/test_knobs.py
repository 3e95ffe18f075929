"""Knobs of ZeRO-3: derived, in elements, each with its derivation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.config import AdapterConfig, BatchConfig, Engine, EngineConfig, Offload, Precision, Quant
from orchestrator.errors import NothingFits
from orchestrator.planner.dtypes import swap_conflict
from orchestrator.planner.explain import explain
from orchestrator.planner.plan import Plan
from topology.presets import preset

Planner = Callable[..., Plan]
LAYER_8B = (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336) // 4  # two weights a byte, two bytes an element


def _zero3(plan_for: Planner, model: str, machine: Any, engine: dict[str, Any] | None = None, **changes: Any) -> Plan:
    settings = EngineConfig(name=Engine.zero3, **(engine or {}))
    return plan_for(model, machine, engine=settings, **changes)


def _value(plan: Plan, name: str) -> int:
    return next(knob.value for knob in plan.knobs if knob.name == name)


def test_every_knob_is_explained_and_is_what_runs(plan_for: Planner) -> None:
    plan = _zero3(plan_for, "8b", "2x24gb-pcie", devices=2)
    knobs = plan.chosen.strategy.zero3
    assert knobs is not None
    for name in (
        "prefetch_bucket_size",
        "max_live_parameters",
        "max_reuse_distance",
        "param_persistence_threshold",
        "reduce_bucket_size",
    ):
        assert _value(plan, name) == getattr(knobs, name)
    assert all(knob.why and knob.unit for knob in plan.knobs)
    text = explain(plan)
    assert all(knob.name in text and knob.why in text for knob in plan.knobs)


@pytest.mark.parametrize("machine", ["2x24gb-pcie", "8xh100", "4xv100-16gb"])
def test_prefetch_covers_a_layer_and_stays_bounded(plan_for: Planner, machine: str) -> None:
    plan = _zero3(plan_for, "8b", machine)
    value = _value(plan, "prefetch_bucket_size")
    assert LAYER_8B <= value <= 4 * LAYER_8B
    assert _value(plan, "max_live_parameters") >= LAYER_8B + value


def test_a_faster_link_prefetches_more(plan_for: Planner) -> None:
    slow = _zero3(plan_for, "8b", "2x24gb-pcie", devices=2, batch=BatchConfig(global_=16, micro=1))
    fast = _zero3(plan_for, "8b", "8xh100", devices=2, batch=BatchConfig(global_=16, micro=1))
    assert _value(fast, "prefetch_bucket_size") >= _value(slow, "prefetch_bucket_size")


def test_small_models_keep_what_works(plan_for: Planner) -> None:
    plan = _zero3(plan_for, "tiny", "cpu")
    layer = (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 688) // 4
    assert _value(plan, "prefetch_bucket_size") == _value(plan, "max_reuse_distance") == layer
    assert _value(plan, "param_persistence_threshold") == 0
    assert _value(plan, "sub_group_size") == 1_000_000_000


def test_given_values_win_and_tell_the_derived_one(plan_for: Planner) -> None:
    plan = _zero3(plan_for, "8b", "2x24gb-pcie", {"max_reuse_distance": 7})
    (knob,) = [knob for knob in plan.knobs if knob.name == "max_reuse_distance"]
    assert knob.value == 7
    assert knob.why == f"engine.max_reuse_distance was given (derived: {LAYER_8B:,})"


def test_nvme_gets_buffers_that_hold_the_largest_share(plan_for: Planner) -> None:
    nvme = {"offload_param": Offload.nvme, "offload_optimizer": Offload.nvme, "nvme_path": "/fast"}
    plan = _zero3(plan_for, "8b", "2x24gb-pcie", nvme, devices=2)
    extras = plan.chosen.strategy.extras
    assert extras is not None
    assert extras.param_buffer_size == 128256 * 4096 // 2
    assert extras.param_buffer_count >= 7 + 2
    assert extras.optimizer_buffer_count == 4
    adapters = plan.workload.trainable_params // 2
    assert adapters / 8 <= extras.sub_group_size < adapters


def test_a_second_copy_in_each_host_where_the_network_is_slow(plan_for: Planner) -> None:
    hosts = preset("8xa100-80gb", nodes=2)
    plan = _zero3(
        plan_for, "8b", hosts, {"offload_param": Offload.none}, nodes=2, batch=BatchConfig(global_=16, micro=1)
    )
    assert plan.chosen.strategy.extras is not None
    (knob,) = [knob for knob in plan.knobs if knob.name == "zero_hpz_partition_size"]
    assert knob.value == plan.chosen.strategy.extras.hpz_partition_size
    if knob.value > 1:
        assert knob.value == plan.chosen.strategy.processes_per_node
        assert "a copy in each host" in plan.chosen.strategy.label
        assert any(term.name == "second_copy" for term in plan.chosen.estimate.memory.train.terms)


def test_a_piece_on_nvme_is_never_below_what_deepspeed_swaps(plan_for: Planner) -> None:
    nvme = {"offload_optimizer": Offload.nvme, "offload_param": Offload.cpu, "nvme_path": "/fast"}
    for rank in (1, 8, 256):
        plan = _zero3(
            plan_for, "8b", "2x24gb-pcie", nvme, devices=2, adapter=AdapterConfig(rank=rank, targets=("v_proj",))
        )
        assert _value(plan, "sub_group_size") >= 262_144
        assert ("swaps no piece below 262,144" in explain(plan)) == (rank < 256)


@pytest.mark.parametrize("precision", Precision)
def test_parameters_go_to_nvme_only_in_the_dtype_of_the_passes(plan_for: Planner, precision: Precision) -> None:
    """DeepSpeed's swapper holds one dtype; under fp32 the packed bytes are stored as bf16."""
    nvme = {"offload_param": Offload.nvme, "offload_optimizer": Offload.cpu, "nvme_path": "/fast"}
    if precision is not Precision.fp32:
        assert _zero3(plan_for, "8b", "2x24gb-pcie", nvme, devices=2, precision=precision).knobs
        return
    with pytest.raises(NothingFits, match="DeepSpeed's swapper holds float32 alone, and packed weights are stored as"):
        _zero3(plan_for, "8b", "2x24gb-pcie", nvme, devices=2, precision=precision)
    assert swap_conflict(Quant.nf4, "fp32", Offload.cpu) is None
    assert swap_conflict(Quant.none, "fp32", Offload.nvme) is None
