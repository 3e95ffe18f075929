"""Patterns of storage: what they match, what they are refused for, and that adapters do not change with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config import AdapterConfig, BaseConfig, Quant
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError
from orchestrator.overrides import rewrite
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.model import ModelShape
from orchestrator.workload.quant_pattern import Kinds, kind_for, kinds_text, with_kinds, without_kinds

_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 96,
}


def _shape(**changes: Any) -> ModelShape:
    return shape_from_config("m", _CONFIG | changes)


def test_the_first_match_counts_and_an_escaped_dot_takes_all_inside() -> None:
    pairs: Kinds = ((r"layers\.1\.", Quant.none), ("down_proj", Quant.int8), (r"layers\.[0-3]\..*", Quant.fp4))
    kinds = {
        "model.layers.1.mlp.down_proj": Quant.none,
        "model.layers.1.self_attn.q_proj": Quant.none,
        "model.layers.11.mlp.down_proj": Quant.int8,
        "model.layers.3.mlp.up_proj": Quant.fp4,
        "model.layers.11.mlp.up_proj": None,
        "model.layers.11.mlp.my_down_proj": None,
    }
    assert {name: kind_for(name, pairs) for name in kinds} == kinds


def test_layers_part_by_what_they_hold_and_come_together_again() -> None:
    plain = _shape()
    mixed = with_kinds(plain, ((r"layers\.0\.", Quant.none), ("down_proj", Quant.int8)))
    assert sorted(len(group.layers) for group in mixed.groups) == [1, 11]
    assert mixed.packed_params == plain.packed_params - plain.layer_linear_params
    assert (mixed.linear_params, mixed.total_params) == (plain.linear_params, plain.total_params)
    assert without_kinds(mixed) == plain
    assert kinds_text(plain, Quant.nf4) == ""
    layer, down = plain.layer_linear_params, 64 * 128
    assert f"{11 * down:,} weights int8" in kinds_text(mixed, Quant.nf4)
    assert f"{layer:,} weights not quantised" in kinds_text(mixed, Quant.nf4)


@pytest.mark.parametrize("changes", [{}, {"rank_pattern": (("q_proj", 4.0),)}, {"dora": True}])
def test_adapters_are_the_same(changes: dict[str, Any]) -> None:
    adapter = AdapterConfig(rank=8, **changes)
    mixed = with_kinds(_shape(), (("q_proj", Quant.int8), (r"layers\.[0-4]\.", Quant.none)))
    assert adapter_shape(mixed, adapter) == adapter_shape(_shape(), adapter)


@pytest.mark.parametrize(
    ("model", "pattern", "told"),
    [
        (_shape(), "down_porj", "The nearest: down_proj"),
        (_shape(), "q_proj(", "is no regular expression"),
        (_shape(), "lm_head", "matches no linear module"),
        (_shape(model_type="mixtral", num_local_experts=4), "down_proj", "one 3-D tensor a layer"),
        (replace(_shape(), prequantised="nf4"), "q_proj", "nf4 already"),
        (replace(_shape(), groups=(), outside=()), "q_proj", "by their numbers alone"),
    ],
)
def test_what_cannot_be_is_refused(model: ModelShape, pattern: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        with_kinds(model, ((pattern, Quant.int8),))


def _parsed(**changes: Any) -> BaseConfig:
    raw = {"model": {"path": "m"}, "data": {"path": "d"}} | {
        group: value for group, value in changes.items() if group != "base"
    }
    return parse_config(raw | {"base": changes["base"]}).base


def test_a_configuration_is_read_back() -> None:
    text = r"down_proj:int8,layers\.0\.:none"
    base = _parsed(base={"quant_pattern": text})
    assert base.quant_pattern == (("down_proj", Quant.int8), (r"layers\.0\.", Quant.none))
    assert _parsed(base=dump_config(base)) == base
    assert _parsed(base={"quant_pattern": {"down_proj": "int8", r"layers\.0\.": None}}) == base
    assert _parsed(base={"quant_pattern": "none"}).quant_pattern == ()
    assert rewrite([f"base.quant_pattern={text}"], {}) != [f"base.quant_pattern={text}"]  # quoted for Hydra


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"base": {"quant_pattern": "q_proj:int9"}}, "Did you mean 'int8'"),
        ({"base": {"quant_pattern": "q_proj"}}, "PATTERN:KIND"),
        ({"base": {"quant": "none", "quant_pattern": "q_proj:int8"}}, "quantises nothing"),
        ({"base": {"quant_pattern": "q_proj:int8"}, "engine": {"name": "zero3"}}, "gathers all packed weights"),
        ({"base": {"quant_pattern": "q_proj:int8"}, "adapter": {"dora": True}}, "fails on 8-bit modules"),
        ({"base": {"quant": "int8"}, "adapter": {"dora": True}}, "fails on 8-bit modules"),
        ({"base": {"quant_pattern": "q_proj:int8"}, "adapter": {"init": "loftq"}}, "all of it in one kind"),
    ],
)
def test_rules(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        _parsed(**changes)
