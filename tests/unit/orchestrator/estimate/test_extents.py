"""Bytes of the layers as estimated, against the layout that the loader makes of real models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from orchestrator.config import Quant
from orchestrator.estimate import extents
from orchestrator.estimate.extents import Stored, layer_bytes, outside_bytes, resident_indices, slot_bytes
from orchestrator.weights import layout as layouts
from orchestrator.weights.checkpoint import open_checkpoint
from orchestrator.weights.cut import even_cut, resident_layers
from orchestrator.weights.skeleton import BaseSource, build_skeleton
from orchestrator.weights.slots import rules_of
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.model import ModelShape

WIDTHS: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 272,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
FAMILIES = {"llama": hf.LlamaForCausalLM, "qwen2": hf.Qwen2ForCausalLM}  # without biases, and with


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelShape]:
    """A model's folder and its shape."""
    family = FAMILIES[request.param]
    config = family.config_class(**WIDTHS)
    folder = tmp_path_factory.mktemp(request.param)
    family(config).to(torch.bfloat16).save_pretrained(folder)
    return folder, shape_from_config("m", config.to_dict())


@pytest.mark.parametrize(
    ("quant", "double"), [(Quant.nf4, True), (Quant.nf4, False), (Quant.int8, False), (Quant.none, False)]
)
def test_layers_take_what_the_loader_lays_out(saved: tuple[Path, ModelShape], quant: Quant, *, double: bool) -> None:
    folder, shape = saved
    quantization: Any = None
    if quant is Quant.int8:
        quantization = hf.BitsAndBytesConfig(load_in_8bit=True)
    elif quant is not Quant.none:
        quantization = hf.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=quant.value,
            bnb_4bit_use_double_quant=double,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    source = BaseSource(folder=folder, dtype=torch.bfloat16, quantization=quantization, device=torch.device("cpu"))
    real = build_skeleton(source, open_checkpoint(folder)).layout
    stored = Stored(quant=quant, double_quant=double, load_bytes=2)
    assert layer_bytes(shape, stored) == real.layer_bytes
    for window in (1, 2, 3):
        slots = rules_of(real, even_cut(real, 2), 0, window).slot_bytes
        assert slot_bytes(layer_bytes(shape, stored), window) == sum(slots)


def test_the_alignment_is_the_layouts() -> None:
    assert extents.ALIGNMENT_BYTES == layouts.ALIGNMENT_BYTES


def test_layers_and_the_rest_are_the_whole(saved: tuple[Path, ModelShape]) -> None:
    """In 16 bits nothing is added but the alignment."""
    _, shape = saved
    stored = Stored(quant=Quant.none, double_quant=False, load_bytes=2)
    whole = sum(layer_bytes(shape, stored)) + outside_bytes(shape, stored, is_gpu=False)
    assert whole == pytest.approx(2 * shape.total_params, rel=0.005)
    assert outside_bytes(shape, stored, is_gpu=False) == 2 * (2 * 128 * 96 + 96)


def test_resident_layers_are_those_that_the_engine_takes() -> None:
    tensors = [
        layouts.FrozenTensor(name="a", role=layouts.Role.plain, dtype="uint8", shape=(64 * size,))
        for size in range(1, 8)
    ]
    real = layouts.BaseLayout(extents=tuple(layouts.extent_of([tensor]) for tensor in tensors))
    sizes = real.layer_bytes
    for count in range(len(sizes) + 1):
        room = sum(sorted(sizes, reverse=True)[:count])
        assert resident_indices(sizes, count) == frozenset(resident_layers(real, room))
    whole = resident_indices(sizes, 2)
    assert even_cut(real, 2, residents=tuple(whole)).residents == whole
