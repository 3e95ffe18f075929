"""Frozen tensors as bytes and as views of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn

from orchestrator.errors import UserError
from orchestrator.weights import cut as cuts
from orchestrator.weights.cut import Tier
from orchestrator.weights.layers import FrozenParameter, decoder_layers, frozen_places, settle_biases
from orchestrator.weights.layout import ITEM_BYTES, BaseLayout, FrozenTensor, Role, extent_of
from orchestrator.weights.shards import Shards
from orchestrator.weights.views import bind, declare, hold, pack, raw_bytes, strayed, view

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3}
WIDE = {**SMALL, "intermediate_size": 24}
FAMILIES: dict[str, Any] = {
    "llama": lambda: hf.LlamaConfig(**WIDE),
    "qwen2": lambda: hf.Qwen2Config(**WIDE, num_key_value_heads=1),
    "gemma2": lambda: hf.Gemma2Config(**WIDE, num_key_value_heads=1, head_dim=8),
    "phi3": lambda: hf.Phi3Config(**WIDE, pad_token_id=0),
    "neox": lambda: hf.GPTNeoXConfig(**WIDE),
    "gpt2": lambda: hf.GPT2Config(vocab_size=32, n_embd=16, n_layer=3, n_head=2),
    "opt": lambda: hf.OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16),
    "falcon": lambda: hf.FalconConfig(**SMALL),
    "mixtral": lambda: hf.MixtralConfig(**WIDE, num_local_experts=3, num_key_value_heads=1),
}


def random_bytes(number: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (number,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@st.composite
def layouts(draw: st.DrawFn) -> BaseLayout:
    shape = st.lists(st.integers(0, 30), max_size=2).map(tuple)
    layer = st.lists(st.tuples(st.sampled_from(sorted(ITEM_BYTES)), shape), min_size=1, max_size=5)
    return BaseLayout(
        extents=tuple(
            extent_of(
                FrozenTensor(name=f"t{at}", role=Role.plain, dtype=dtype, shape=shape)
                for at, (dtype, shape) in enumerate(found)
            )
            for found in draw(st.lists(layer, min_size=1, max_size=3))
        )
    )


@given(layouts(), st.integers(0, 2**31))
def test_a_view_has_the_bytes_beneath_it(layout: BaseLayout, seed: int) -> None:
    for extent in layout.extents:
        memory = random_bytes(extent.nbytes, seed)
        for item in extent.items:
            found = view(memory, item)
            assert tuple(found.shape) == item.shape
            if item.dtype != "bool":  # of which only two patterns are values
                assert torch.equal(raw_bytes(found.clone()), memory[item.offset : item.end])
            assert not found.numel() or found.data_ptr() == memory.data_ptr() + item.offset


def test_every_pattern_of_two_bytes_survives_as_bf16_and_fp16() -> None:
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    for dtype in ("bfloat16", "float16"):
        stored = patterns.view(getattr(torch, dtype))
        assert stored.isnan().sum() > 100
        extent = extent_of([FrozenTensor(name="a", role=Role.plain, dtype=dtype, shape=(256, 256))])
        memory = torch.zeros(extent.nbytes, dtype=torch.uint8)
        memory[: 2**17].copy_(raw_bytes(stored))
        assert torch.equal(view(memory, extent.items[0]).view(torch.int16).flatten(), patterns)


@given(
    layouts(), st.lists(st.dictionaries(st.sampled_from(Tier), st.integers(1, 9)), min_size=1, max_size=4), st.data()
)
def test_pieces_in_all_tiers_make_up_the_layer(
    tmp_path_factory: pytest.TempPathFactory, layout: BaseLayout, wanted: list[dict[Tier, int]], data: st.DataObject
) -> None:
    if not any(wanted):
        wanted[0][Tier.device] = 1
    cut = cuts.cut_by_bytes(layout, wanted)
    ranks = [Shards(cut, rank, CPU, tmp_path_factory.getbasetemp() / "nvme") for rank in range(len(wanted))]
    layers = [random_bytes(nbytes, at) for at, nbytes in enumerate(layout.layer_bytes)]
    for at, whole in enumerate(layers):
        edges = sorted({0, whole.numel(), *data.draw(st.lists(st.integers(0, whole.numel()), max_size=3))})
        for shards in ranks:
            for begin, end in pairwise(edges):
                shards.write(at, begin, whole[begin:end])
    for at, whole in enumerate(layers):
        found = torch.zeros_like(whole)
        middle = data.draw(st.integers(0, whole.numel()))
        for shards in ranks:
            shards.read(at, 0, middle, found)
            shards.read(at, middle, whole.numel(), found)
        assert torch.equal(found, whole)
    for rank, shards in enumerate(ranks):
        assert all(shards.nbytes[tier] >= cut.held_bytes(rank, tier) for tier in Tier)
        shards.close()


def test_pieces_for_a_drive_want_a_folder(tmp_path: Path) -> None:
    cut = cuts.cut_by_weights(
        BaseLayout(extents=(extent_of([FrozenTensor(name="a", role=Role.plain, dtype="uint8", shape=(64,))]),)),
        [1],
        Tier.nvme,
    )
    with pytest.raises(UserError, match=r"engine\.nvme_path"):
        Shards(cut, 0, CPU)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="no room"):
        Shards(cut, 0, CPU, tmp_path / "file")


class Layer(nn.Module):
    """A quantised linear module with a bias, a norm and an adapter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        made: Any
        if kind.startswith("nf4"):
            double = kind.endswith("double")
            made = bnb.nn.Linear4bit(64, 128, quant_type="nf4", compress_statistics=double, compute_dtype=torch.float32)
            made.support_avx512bf16_for_cpu = False
        elif kind == "int8":
            made = bnb.nn.Linear8bitLt(64, 128, has_fp16_weights=False)
        else:
            made = nn.Linear(64, 128, dtype=torch.bfloat16 if kind == "bf16" else None)
        self.linear = made.to(CPU)
        self.norm = nn.LayerNorm(128)
        nn.init.normal_(self.norm.weight)
        self.requires_grad_(False)
        self.adapter = nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.adapter(self.norm(self.linear(x).float()))
        return found


KINDS = {"nf4": 5, "nf4_double": 7, "int8": 4, "fp32": 4, "bf16": 4}


def bound(kind: str) -> tuple[Layer, Sequence[FrozenParameter], Any, torch.Tensor]:
    layer = Layer(kind)
    layers = nn.ModuleList([layer])
    settle_biases(layers)
    (places,) = frozen_places(layers, layers)
    extent = declare(places)
    memory = torch.ones(extent.nbytes, dtype=torch.uint8)
    pack(places, extent, memory)
    bind(places, extent, memory)
    return layer, places, extent, memory


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runs_first", [False, True])
def test_a_bound_layer_computes_the_same_from_the_memory_alone(kind: str, runs_first: bool) -> None:
    plain = Layer(kind)
    # bitsandbytes multiplies 8-bit weights by other kernels in evaluation.
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()
    wanted = plain(x)
    gradient = torch.autograd.grad(wanted.square().sum(), [x, *plain.adapter.parameters()])
    layer, places, extent, memory = bound(kind)
    assert len(extent.items) == KINDS[kind]
    if runs_first:
        layer(x)
    kept = memory.clone()
    memory.zero_()
    assert not torch.equal(layer(x), wanted)
    memory.copy_(kept)
    found = layer(x)
    assert torch.equal(found, wanted)
    # The memory is refilled between the passes: only bytes count, not what autograd knows of changes.
    memory.zero_()
    memory.copy_(kept)
    ours = torch.autograd.grad(found.square().sum(), [x, *layer.adapter.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(ours, gradient, strict=True))
    assert strayed(places, extent, memory) == []


@pytest.mark.parametrize("kind", KINDS)
def test_moving_a_model_leaves_views_alone(kind: str) -> None:
    layer, places, extent, memory = bound(kind)
    assert strayed(places, extent, memory) == []
    hold(places)
    names = list(layer.state_dict())
    layer.to(torch.device("cpu", 0))  # not the same as `cpu`, to torch: it copies
    layer.to(torch.float64)
    assert strayed(places, extent, memory) == []
    assert layer.adapter.weight.dtype == torch.float64
    assert list(layer.state_dict()) == names


def test_what_strayed_is_named() -> None:
    layer, places, extent, memory = bound("nf4_double")
    layer.norm.weight.data = layer.norm.weight.data.clone()
    state: Any = layer.linear.weight.quant_state
    state.absmax = state.absmax.clone()
    assert strayed(places, extent, memory) == ["linear.weight (absmax)", "norm.weight (plain)"]
    bind(places, extent, memory)
    assert strayed(places, extent, memory) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_every_family_are_found(family: str) -> None:
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(FAMILIES[family]())
    model.requires_grad_(False)
    layers = decoder_layers(model)
    assert len(layers) == 3
    places = frozen_places(model, layers)
    inside = sum(p.numel() for p in layers.parameters())
    assert sum(place.parameter.numel() for own in places for place in own) == inside
    names = [[place.name for place in own] for own in places]
    assert names[0] == names[1] == names[2]
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    layers = decoder_layers(adapted)
    found = [[place.name for place in own] for own in frozen_places(adapted, layers)]
    assert found == names


def test_what_layers_share_stays_where_it_is() -> None:
    layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    layers[1].bias = layers[0].bias
    model = nn.ModuleDict({"layers": layers, "head": nn.Linear(4, 4)}).requires_grad_(False)
    model["head"].weight = layers[1].weight
    assert [[place.name for place in own] for own in frozen_places(model, layers)] == [["weight"], []]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (hf.T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2), "an encoder and a decoder"),
        (hf.LlamaConfig(**WIDE), "no list of 7 decoder layers"),
    ],
)
def test_models_without_decoder_layers_are_refused(config: Any, words: str) -> None:
    kind = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    if not config.is_encoder_decoder:
        model.config.num_hidden_layers = 7
    with pytest.raises(UserError, match=words):
        decoder_layers(model)
