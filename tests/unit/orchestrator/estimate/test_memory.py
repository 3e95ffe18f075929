"""Memory terms: they add up, grow with the work, and say what the engines say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer
from orchestrator.estimate import calibration
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.values import PhaseMemory

Make = Callable[..., Setting]
ENGINES = st.sampled_from([Engine.ddp, Engine.zero3])
MODES = st.sampled_from([Checkpointing.none, Checkpointing.full])
MACHINES = st.sampled_from(["cpu", "gpu"])


def _term(phase: PhaseMemory, name: str) -> int:
    return sum(term.bytes for term in phase.terms if term.name == name)


def _make(make: Make, machine: str, **changes: object) -> Setting:
    return make(machine="gpu", **changes) if machine == "gpu" else make(**changes)


@settings(max_examples=60, deadline=None)
@given(engine=ENGINES, mode=MODES, machine=MACHINES, micro=st.integers(1, 40), length=st.integers(8, 3000))
def test_terms_add_up_and_grow(
    make_setting: Make, engine: Engine, mode: Checkpointing, machine: str, micro: int, length: int
) -> None:
    def memory(micro: int, length: int) -> PhaseMemory:
        setting = _make(make_setting, machine, engine=engine, checkpointing=mode, micro=micro, seq_len=length)
        return estimate_memory(setting).train

    here = memory(micro, length)
    assert here.allocated_bytes == sum(term.bytes for term in here.terms)
    assert here.host_bytes == sum(term.bytes for term in here.host_terms)
    assert here.allocated_bytes <= here.reserved_bytes <= here.device_bytes
    for more in (memory(micro + 1, length), memory(micro, length + 1)):
        assert more.device_bytes >= here.device_bytes


def test_cpu_ranks_have_one_memory(make_setting: Make) -> None:
    for phase in (estimate_memory(make_setting()).load, estimate_memory(make_setting()).train):
        assert phase.device_bytes == phase.host_bytes


def test_checkpointing_trades_kept_for_recomputed(make_setting: Make) -> None:
    none = estimate_memory(make_setting(machine="gpu", micro=8, seq_len=1024)).train
    full = estimate_memory(make_setting(machine="gpu", micro=8, seq_len=1024, checkpointing=Checkpointing.full)).train
    assert _term(full, "activations") < 0.2 * _term(none, "activations")
    assert full.device_bytes < none.device_bytes


def test_adapter_states(make_setting: Make) -> None:
    params = make_setting().adapter.params
    fp32 = estimate_memory(make_setting(world_size=2)).train
    assert [_term(fp32, name) for name in ("adapters", "gradients", "optimizer", "ddp_buckets")] == [
        4 * params,
        4 * params,
        8 * params,
        4 * params,
    ]
    bf16 = estimate_memory(make_setting(adapter_dtype="bf16")).train
    assert _term(bf16, "optimizer") == 4 * params
    assert _term(bf16, "ddp_buckets") == 0
    eight = estimate_memory(make_setting(optimizer=Optimizer.adamw_8bit)).train
    assert 2 * params < _term(eight, "optimizer") < 2.1 * params


def test_zero3_partitions_all_but_the_scales(make_setting: Make) -> None:
    changes = {"engine": Engine.zero3, "machine": "gpu", "compute_dtype": "bf16", "load_dtype": "bf16"}
    one, four = (estimate_memory(make_setting(world_size=ranks, **changes)) for ranks in (1, 4))
    assert _term(four.train, "base_partition") == pytest.approx(_term(one.train, "base_partition") / 4, abs=4)
    assert _term(four.train, "absmax") == _term(one.train, "absmax")
    # Every rank loads the whole base first.
    assert _term(four.load, "base_packed") == _term(one.load, "base_packed") > 0


def test_offload_moves_the_partition_to_the_host(make_setting: Make) -> None:
    setting = make_setting(engine=Engine.zero3, machine="gpu", world_size=2)
    assert setting.zero3 is not None
    offloaded = replace(setting, zero3=replace(setting.zero3, offload_param=Offload.cpu, offload_optimizer=Offload.cpu))
    near, far = estimate_memory(setting).train, estimate_memory(offloaded).train
    moved = near.allocated_bytes - far.allocated_bytes
    assert moved > 0
    assert far.host_bytes - near.host_bytes >= moved


def test_plain_logits_cost_more_than_the_fused_head(make_setting: Make) -> None:
    fused = make_setting(machine="gpu", model={"vocab_size": 128_256}, micro=8, seq_len=1024, compute_dtype="bf16")
    plain = replace(fused, stack="hf_plain")
    logits = [_term(estimate_memory(setting).train, "logits") for setting in (fused, plain)]
    assert logits[1] == 8 * 1024 * (128_256 * 12 + 4 * 256)  # three fp32 copies, and the final norm's input
    assert logits[0] < logits[1] / 10


def test_llama_2_7b_marginal_bytes_per_token_match_published_ones(make_setting: Make) -> None:
    """Four published series: 2 x hidden x layers + 12.8 bytes a logit = 670,760 bytes per token."""
    llama = {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
    }

    def allocated(length: int) -> int:
        setting = make_setting(
            model=llama,
            machine="gpu",
            micro=4,
            seq_len=length,
            padded=False,
            compute_dtype="bf16",
            load_dtype="bf16",
            checkpointing=Checkpointing.full,
            stack="hf_plain",
        )
        return estimate_memory(setting).train.allocated_bytes

    per_token = (allocated(4096) - allocated(2048)) / (4 * 2048)
    assert per_token == pytest.approx(670_760, rel=0.02)


def test_every_constant_names_its_source() -> None:
    constants = calibration.table()
    assert len(constants) > 20
    for name, constant in constants:
        assert constant.value > 0, name
        assert len(constant.source) > 10, name
        assert constant.unit, name
