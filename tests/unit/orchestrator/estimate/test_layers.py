"""Saved bytes of one layer under other stacks' code, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import Checkpointing, Quant
from orchestrator.estimate.layers import Input, input_of, kept_per_token, layer_bytes, transient_per_token
from orchestrator.estimate.setting import Setting, Trained
from orchestrator.estimate.stacks import Code, Stack

Make = Callable[..., Setting]
HF = Stack(name="hf", source="")
LITGPT = Stack(name="litgpt", source="", code=Code.litgpt)
# As in conftest: hidden 256, intermediate 688, 8 heads, 4 for keys, so key width 128.
H, WIDE, Q, K, R = 256, 688, 256, 128, 16
NORMS, KERNEL = 2 * 4 * H, 2 * (2 * Q + 2 * K) + 4 * 8


@pytest.fixture(name="setting")
def _setting(make_setting: Make) -> Setting:
    return make_setting(compute_dtype="bf16", load_dtype="bf16", adapter_dtype="bf16", padded=False)


@pytest.mark.parametrize(
    ("name", "width", "tensor"),
    [
        ("self_attn.q_proj", H, Input.attention),
        ("self_attn.o_proj", Q, Input.context),
        ("mlp.gate_proj", H, Input.mlp),
        ("mlp.down_proj", WIDE, Input.product),
        ("attention.query_key_value", H, Input.attention),
        ("attention.dense", H, Input.context),
        ("mlp.dense_h_to_4h", H, Input.mlp),
        ("mlp.dense_4h_to_h", WIDE, Input.product),
        ("attn.c_attn", H, Input.attention),
        ("attn.c_proj", H, Input.context),
        ("mlp.w1", H, Input.mlp),
    ],
)
def test_what_a_module_reads(setting: Setting, name: str, width: int, tensor: Input) -> None:
    assert input_of(name, width, setting) is tensor


def test_a_llama_layer_under_adapters_everywhere(setting: Setting) -> None:
    found = layer_bytes(setting, HF)
    inputs = 2 * (H + H + WIDE)  # of attention, MLP and the last module; the kernel's output is there already
    assert found.saved == NORMS + KERNEL + 2 * 3 * WIDE + inputs + 2 * R * 7
    assert found.gradients == 2 * (3 * WIDE + H) + 8 * H


def test_full_fine_tuning_also_saves_normed_inputs(setting: Setting) -> None:
    trained = layer_bytes(replace(setting, trained=Trained.everything, quant=Quant.none), HF)
    assert trained.saved == NORMS + 2 * 2 * H + KERNEL + 2 * 3 * WIDE + 2 * (H + H + WIDE)


def test_dropout_keeps_a_copy_and_a_mask_for_each_adapter(setting: Setting) -> None:
    dropped = replace(setting, adapter=replace(setting.adapter, dropout=0.1))
    widths = 3 * H + Q + 2 * H + WIDE
    assert layer_bytes(dropped, HF).saved == NORMS + KERNEL + 2 * 3 * WIDE + 3 * widths + 2 * R * 7


def test_litgpt_repeats_grouped_keys(setting: Setting) -> None:
    assert layer_bytes(setting, LITGPT).saved - layer_bytes(setting, HF).saved == 2 * 2 * (Q - K)


def test_checkpointing_keeps_layer_inputs(setting: Setting) -> None:
    full = replace(setting, checkpointing=Checkpointing.full)
    assert kept_per_token(full, HF) == 4 * 2 * H
    assert kept_per_token(replace(full, upcasts=True), HF) == 4 * 4 * H
    assert kept_per_token(replace(full, offload_activations=True), HF) == 2 * 2 * H
    assert kept_per_token(setting, HF) == 4 * layer_bytes(setting, HF).saved
    assert transient_per_token(full, HF) - transient_per_token(setting, HF) == layer_bytes(setting, HF).saved


def test_the_layer_factor_scales_what_is_counted(setting: Setting) -> None:
    more = replace(HF, layer_factor=1.5)
    assert transient_per_token(setting, more) == 1.5 * transient_per_token(setting, HF)


def test_experts_run_one_after_the_other(make_setting: Make) -> None:
    experts = make_setting(
        model={"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        compute_dtype="bf16",
        load_dtype="bf16",
    )
    # All chosen experts' activations are saved, but one expert's gradients are alive: an eighth of the chosen rows.
    assert layer_bytes(experts, HF).gradients == 2 * (3 * 2 * WIDE / 8 + H) + 8 * H
    assert layer_bytes(experts, HF).saved > NORMS + KERNEL + 2 * 3 * 2 * WIDE
