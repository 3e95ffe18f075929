"""Bytes of the quantised base against layers that bitsandbytes really quantised."""

from __future__ import annotations

from collections.abc import Callable

import bitsandbytes as bnb
import pytest
import torch

from orchestrator.config import Quant
from orchestrator.estimate import base
from orchestrator.estimate.setting import Setting
from orchestrator.workload.model import LinearShape


def _storage_bytes(layer: bnb.nn.Linear4bit) -> tuple[int, int]:
    """Bytes of the packed weight, and of everything in its quantisation state."""
    state = layer.weight.quant_state
    tensors = [state.absmax, state.code]
    if state.nested:
        tensors += [state.state2.absmax, state.state2.code, state.offset]
    weight = layer.weight
    return weight.numel() * weight.element_size(), sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("double_quant", [True, False])
@pytest.mark.parametrize(("out_features", "in_features"), [(96, 64), (688, 256), (130, 64), (33, 32)])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_4_bit_layers_are_counted_exactly(
    *, out_features: int, in_features: int, double_quant: bool, storage: torch.dtype
) -> None:
    layer = bnb.nn.Linear4bit(
        in_features,
        out_features,
        bias=False,
        compute_dtype=torch.float32,
        compress_statistics=double_quant,
        quant_type="nf4",
        quant_storage=storage,
    )
    layer = layer.to("cpu")  # quantises
    packed, scales = _storage_bytes(layer)
    shape = LinearShape(name="x", out_features=out_features, in_features=in_features, bias=False)

    assert base.linear_packed_bytes(shape, Quant.nf4, 4) == packed
    assert base.linear_absmax_bytes(shape, Quant.nf4, double_quant=double_quant) == scales


def test_unquantised_bases_count_every_byte(make_setting: Callable[..., Setting]) -> None:
    setting = make_setting(quant=Quant.none, load_dtype="bf16")
    assert base.packed_bytes(setting) + base.unquantised_bytes(setting) == 2 * setting.model.total_params
    assert base.absmax_bytes(setting) == 0
    assert base.dequantised_bytes(setting) == 0


def test_only_packed_modules_have_scales(make_setting: Callable[..., Setting]) -> None:
    """Experts in one parameter, and subclasses of nn.Linear, keep the load dtype."""
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    setting = make_setting(model=experts, load_dtype="bf16")
    model = setting.model
    assert model.expert_params > model.packed_params > 0
    assert base.packed_bytes(setting) == model.packed_params / 2
    assert base.unquantised_bytes(setting) == 2 * (model.total_params - model.packed_params)
    falcon = make_setting(model={"model_type": "falcon", "num_kv_heads": 4}, load_dtype="bf16")
    assert base.absmax_bytes(falcon) == 0
    assert base.packed_bytes(falcon) == 2 * falcon.model.linear_params


def test_conv1d_is_packed(make_setting: Callable[..., Setting]) -> None:
    setting = make_setting(model={"model_type": "gpt2"}, load_dtype="bf16")
    assert base.packed_bytes(setting) == setting.model.linear_params / 2


def test_the_largest_layer_counts_what_it_stores(make_setting: Callable[..., Setting]) -> None:
    plain = make_setting(load_dtype="bf16")
    norms = 2 * 2 * plain.model.hidden
    assert base.largest_layer_bytes(plain) == plain.model.layer_linear_params / 2 + norms
    mixed = make_setting(
        model={
            "model_type": "qwen2_moe",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "mlp_only_layers": [0],
        },
        load_dtype="bf16",
    )
    assert len(mixed.model.groups) == 2
    whole = base.packed_bytes(mixed) + base.unquantised_bytes(mixed)
    assert whole / mixed.model.layers < base.largest_layer_bytes(mixed) + 2 * mixed.model.embedding_params


def test_pinned_shares_are_at_least_the_plain_ones(make_setting: Callable[..., Setting]) -> None:
    setting = make_setting(world_size=3)
    plain = (base.packed_bytes(setting) + base.unquantised_bytes(setting)) / 3
    assert 0.9 * plain < base.pinned_partition_bytes(setting) < 2 * plain
