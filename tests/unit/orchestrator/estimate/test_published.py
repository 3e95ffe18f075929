"""Engines and stacks of published runs: their terms add up, and say what those engines keep where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Checkpointing, Optimizer, Quant
from orchestrator.estimate import base
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Gradients, Setting, Sharding, Stage, Trained
from orchestrator.estimate.stacks import DEFAULT, STACKS, Stack
from orchestrator.estimate.states import gradient_term
from orchestrator.estimate.values import PhaseMemory

Make = Callable[..., Setting]
PLAIN = Stack(name="plain", source="nothing beyond what is counted", workspace_bytes=0.0)
WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "vocab_size": 32000}


def _make(make: Make, **changes: Any) -> Setting:
    defaults = {
        "machine": "gpu",
        "model": WIDE,
        "compute_dtype": "bf16",
        "load_dtype": "bf16",
        "adapter_dtype": "bf16",
        "checkpointing": Checkpointing.full,
        "stack": "some-new-stack",
        "calibrated": PLAIN,
        "accumulation": 1,
    }
    return make(**{**defaults, **changes})


def _terms(phase: PhaseMemory) -> dict[str, int]:
    return {term.name: term.bytes for term in (*phase.terms, *phase.host_terms)}


@settings(max_examples=60, deadline=None)
@given(
    stage=st.sampled_from([None, *Stage]),
    trained=st.sampled_from(Trained),
    stack=st.sampled_from([DEFAULT, *STACKS.values()]),
    mode=st.sampled_from([Checkpointing.none, Checkpointing.full]),
    offloads=st.booleans(),
    ranks=st.integers(1, 8),
    micro=st.integers(1, 8),
    length=st.integers(8, 3000),
)
def test_terms_add_up_and_grow(
    make_setting: Make,
    *,
    stage: Stage | None,
    trained: Trained,
    stack: Stack,
    mode: Checkpointing,
    offloads: bool,
    ranks: int,
    micro: int,
    length: int,
) -> None:
    sharding = Sharding(stage=stage, offload_params=offloads, offload_optimizer=offloads) if stage else None

    def memory(micro: int, length: int) -> PhaseMemory:
        setting = _make(
            make_setting,
            trained=trained,
            sharding=sharding,
            calibrated=stack,
            checkpointing=mode,
            world_size=ranks,
            micro=micro,
            seq_len=length,
            offload_activations=offloads,
            quant=Quant.none if trained is Trained.everything else Quant.nf4,
        )
        return estimate_memory(setting).train

    here = memory(micro, length)
    assert here.allocated_bytes == sum(term.bytes for term in here.terms)
    assert here.host_bytes == sum(term.bytes for term in here.host_terms) >= here.pinned_bytes
    assert here.allocated_bytes <= here.reserved_bytes <= here.device_bytes
    assert all(term.bytes > 0 and term.why for term in here.terms)
    for more in (memory(micro + 1, length), memory(micro, length + 1)):
        assert more.device_bytes >= here.device_bytes


def test_micro_steps_that_are_not_synchronised_keep_whole_gradients(make_setting: Make) -> None:
    def setting(kind: Gradients, accumulation: int) -> Setting:
        sharding = Sharding(stage=Stage.fsdp, gradients=kind)
        return _make(make_setting, sharding=sharding, world_size=4, accumulation=accumulation)

    sharded, trained, flat = (gradient_term(setting(kind, 8)).bytes for kind in Gradients)
    some = setting(Gradients.flat, 8)
    params, size = some.trained_params, some.adapter_bytes
    assert sharded == -(-params // 4) * size
    assert trained == params * size
    assert flat == trained + base.packed_bytes(some) + base.unquantised_bytes(some)
    assert {gradient_term(setting(kind, 1)).bytes for kind in Gradients} == {sharded}


def test_what_each_stage_divides(make_setting: Make) -> None:
    def terms(stage: Stage | None, ranks: int) -> dict[str, int]:
        sharding = Sharding(stage=stage) if stage else None
        setting = _make(make_setting, sharding=sharding, world_size=ranks, micro=8, seq_len=1024)
        return _terms(estimate_memory(setting).train)

    whole = terms(None, 1)
    assert terms(None, 4)["base_packed"] == whole["base_packed"]
    zero2 = terms(Stage.zero2, 4)
    assert zero2["base_packed"] == whole["base_packed"]
    assert zero2["masters"] == pytest.approx(terms(Stage.zero2, 1)["masters"] / 4, abs=4)
    for stage in (Stage.zero3, Stage.fsdp, Stage.fsdp2):
        one, four = terms(stage, 1), terms(stage, 4)
        assert four["base_partition"] == pytest.approx(one["base_partition"] / 4, abs=4)
        assert four["absmax"] == one["absmax"]
    one, four = terms(Stage.streamed, 1), terms(Stage.streamed, 4)
    # The scales travel with the packed bytes; what is not quantised stays, and adapters are under DDP.
    assert one["base_shard"] == whole["base_packed"] + whole["absmax"]
    assert four["base_shard"] == pytest.approx(one["base_shard"] / 4, abs=4)
    assert four["base_unquantised"] == whole["base_unquantised"]
    assert four["optimizer"] == whole["optimizer"]
    assert four["ddp_buckets"] > 0


@pytest.mark.parametrize("stage", [Stage.zero3, Stage.fsdp, Stage.fsdp2])
def test_offload_moves_the_share_to_pinned_memory(make_setting: Make, stage: Stage) -> None:
    near = _make(make_setting, sharding=Sharding(stage=stage), world_size=2)
    far = replace(near, sharding=Sharding(stage=stage, offload_params=True, offload_optimizer=True))
    here, there = estimate_memory(near).train, estimate_memory(far).train
    assert there.allocated_bytes < here.allocated_bytes
    assert here.pinned_bytes == 0
    assert there.pinned_bytes > _terms(here)["base_partition"]
    assert {"offloaded_base", "offloaded_optimizer"} <= set(_terms(there))


def test_activation_offload_leaves_two_layers_inputs(make_setting: Make) -> None:
    near = _make(make_setting, micro=8, seq_len=1024)
    far = estimate_memory(replace(near, offload_activations=True)).train
    kept = 8 * 1024 * 1024 * 2  # rows, tokens, hidden, bytes
    terms = _terms(far)
    assert terms["activations"] == pytest.approx(2 * kept, rel=0.05)
    assert terms["offloaded_activations"] == 8 * kept == far.pinned_bytes


def test_full_fine_tuning_in_16_bits_peaks_at_its_step(make_setting: Make) -> None:
    """Weights, gradients, two moments and a copy that AdamW makes of what it updates: 10 bytes a parameter."""
    setting = _make(make_setting, trained=Trained.everything, quant=Quant.none, micro=1, seq_len=8)
    assert estimate_memory(setting).train.allocated_bytes == 10 * setting.model.total_params


def test_deepspeed_keeps_fp32_masters(make_setting: Make) -> None:
    setting = _make(
        make_setting,
        trained=Trained.everything,
        quant=Quant.none,
        micro=1,
        seq_len=8,
        sharding=Sharding(stage=Stage.zero2),
    )
    terms = _terms(estimate_memory(setting).train)
    params = setting.model.total_params
    assert terms["masters"] == terms["optimizer_transient"] == 4 * params
    assert terms["optimizer"] == 8 * params


def test_gradients_meet_activations_only_when_accumulated(make_setting: Make) -> None:
    once = _make(make_setting, trained=Trained.everything, quant=Quant.none, micro=8, seq_len=2048)
    often = replace(once, accumulation=4)
    first, second = estimate_memory(once).train, estimate_memory(often).train
    assert "gradients" not in _terms(first)
    assert second.allocated_bytes - first.allocated_bytes == _terms(second)["gradients"] == 2 * once.model.total_params


def test_optimizer_states_by_kind(make_setting: Make) -> None:
    setting = _make(make_setting, micro=8, seq_len=1024)
    params = setting.adapter.params

    def states(**changes: Any) -> int:
        return _terms(estimate_memory(replace(setting, **changes)).train).get("optimizer", 0)

    assert states() == 4 * params
    assert states(adapter_dtype="fp32") == 8 * params
    assert states(moment_bytes=4.0) == 8 * params
    assert 2 * params < states(optimizer=Optimizer.adamw_8bit) < 2.1 * params
    assert states(optimizer=Optimizer.paged_adamw_8bit) == states(paged_optimizer=True) == 0


def test_trained_tables_are_copies(make_setting: Make) -> None:
    setting = _make(make_setting)
    tables = 2 * 32000 * 1024
    assert replace(setting, trained_tables=True).trained_params == setting.adapter.params + tables


def test_upcasts_widen_what_is_not_packed(make_setting: Make) -> None:
    setting = _make(make_setting)
    assert base.unquantised_bytes(replace(setting, upcasts=True)) == 2 * base.unquantised_bytes(setting)
    sixteen = replace(setting, quant=Quant.none)
    assert base.unquantised_bytes(replace(sixteen, upcasts=True)) == base.unquantised_bytes(sixteen)


def test_logits_count_as_the_stack_says(make_setting: Make) -> None:
    setting = _make(make_setting, micro=8, seq_len=2048, calibrated=replace(PLAIN, logit_copies=3.0))
    logits, hidden = 8 * 2048 * 32000, 8 * 2048 * 1024

    def head(**changes: Any) -> int:
        return _terms(estimate_memory(replace(setting, **changes)).train)["logits"]

    assert head() == 3 * 4 * logits + 3 * 2 * hidden
    half = replace(PLAIN, logit_copies=3.0, half_loss=True)
    assert head(calibrated=half) == head()  # under autocast the loss is in fp32
    assert head(calibrated=half, autocast=False) == 3 * 2 * logits + 3 * 2 * hidden
    assert head(logit_chunks=2) == 3 * 2 * logits + 3 * 2 * hidden


def test_a_whole_load_can_be_the_peak(make_setting: Make) -> None:
    setting = _make(make_setting, sharding=Sharding(stage=Stage.fsdp), world_size=8, micro=1, seq_len=8)
    whole = estimate_memory(replace(setting, loads_whole=True)).load
    assert whole.allocated_bytes > estimate_memory(setting).load.allocated_bytes
    assert whole.allocated_bytes > estimate_memory(setting).train.allocated_bytes


def test_an_unknown_stack_has_the_default_constants(make_setting: Make) -> None:
    setting = _make(make_setting, calibrated=None)
    assert setting.constants is DEFAULT
    assert estimate_memory(setting) == estimate_memory(replace(setting, calibrated=DEFAULT))
    assert replace(setting, stack="qwen").constants is STACKS["qwen"]


def test_our_own_stacks_keep_their_head_under_a_sharding_engine(make_setting: Make) -> None:
    plain = _make(
        make_setting, stack="hf_plain", calibrated=None, sharding=Sharding(stage=Stage.streamed), micro=8, seq_len=2048
    )
    fused = replace(plain, stack="trl")
    logits = 3 * 4 * 8 * 2048 * 32000
    assert _terms(estimate_memory(plain).train)["logits"] > logits
    assert estimate_memory(plain).train.allocated_bytes - estimate_memory(fused).train.allocated_bytes > logits / 2
