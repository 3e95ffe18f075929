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


def test_pinned_shares_are_at_least_the_plain_ones(make_setting: Callable[..., Setting]) -> None:
    setting = make_setting(world_size=3)
    plain = (base.packed_bytes(setting) + base.unquantised_bytes(setting)) / 3
    assert 0.9 * plain < base.pinned_partition_bytes(setting) < 2 * plain
