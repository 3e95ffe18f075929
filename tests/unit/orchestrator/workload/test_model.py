"""Shapes as values, and configurations that no shape can be made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import UserError
from orchestrator.workload.families import is_known, shape_from_config
from orchestrator.workload.parameters import Role

SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
MOE = {
    **SMALL,
    "model_type": "qwen2_moe",
    "num_experts": 6,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "decoder_sparse_step": 2,
}


def test_counts_of_a_llama() -> None:
    shape = shape_from_config("m", SMALL)
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 176 * 64
    assert (shape.linear_params, shape.packed_params) == (3 * layer, 3 * layer)
    assert (shape.embedding_params, shape.head_params, shape.norm_params) == (320 * 64, 320 * 64, 7 * 64)
    assert shape.total_params == 3 * layer + 2 * 320 * 64 + 7 * 64
    assert (shape.largest_linear, shape.is_uniform, shape.expert_params) == (176 * 64, True, 0)
    assert shape.active_params == shape.linear_params
    assert (shape.largest_param, shape.largest_layer_params) == (320 * 64, layer + 2 * 64)


def test_layers_that_differ_are_counted_one_by_one() -> None:
    shape = shape_from_config("m", MOE)
    assert [group.layers for group in shape.groups] == [(0, 2), (1,)]
    assert not shape.is_uniform
    assert sum(count for linear, count in shape.linear_counts if linear.name == "self_attn.q_proj") == 3
    assert sum(count for linear, count in shape.linear_counts if linear.name.startswith("mlp.shared_expert.")) == 3
    assert shape.expert_params == 6 * 3 * 24 * 64
    assert shape.expert_width == 24
    assert shape.largest_param == 320 * 64 > 6 * 48 * 64
    assert shape.largest_layer_params == max(group.layer_elements for group in shape.groups)
    assert "6 experts (4 a token)" in shape.summary


def test_the_head_and_tables_are_never_packed() -> None:
    shape = shape_from_config("m", MOE)
    kept = [x for group in shape.groups for x in group.parameters if not x.packed] + list(shape.outside)
    assert {x.role for x in kept} == {Role.experts, Role.router, Role.norm, Role.bias, Role.embedding, Role.head}


def test_groups_must_hold_every_layer() -> None:
    shape = shape_from_config("m", SMALL)
    with pytest.raises(ValueError, match=r"hold layers \[0, 1, 2\], not 0 to 3"):
        replace(shape, layers=4)


def test_missing_keys_are_named_all_at_once() -> None:
    with pytest.raises(UserError) as caught:
        shape_from_config("broken", {"model_type": "llama", "hidden_size": 64, "vocab_size": "many"})
    text = str(caught.value)
    for key in ("intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert key in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": -1, "moe_intermediate_size": 0.5}, ["num_experts: -1", "moe_intermediate_size: 0.5"]),
        ({"mlp_only_layers": "all"}, ["mlp_only_layers: 'all' instead of a list of layers"]),
    ],
)
def test_keys_of_a_family_are_checked(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        shape_from_config("broken", {**MOE, **changes})
    for text in words:
        assert text in str(caught.value)


def test_language_part_of_a_wrapper() -> None:
    text = {key: value for key, value in SMALL.items() if key != "model_type"}
    config = {"model_type": "mistral3", "text_config": {**text, "model_type": "mistral"}, "dtype": "bfloat16"}
    shape = shape_from_config("m", config)
    assert shape.total_params == shape_from_config("m", {**SMALL, "model_type": "mistral"}).total_params
    assert (shape.architecture, shape.dtype) == ("mistral", "bfloat16")
    assert "Only the language part of mistral3" in shape.notes[0]


def test_text_config_leaves_out_what_is_default() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    shape = shape_from_config("m", {"model_type": "gemma3", "text_config": text})
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.tied) == (8, 4, 256, 262_208, True)


def test_layers_without_attention_are_left_to_transformers() -> None:
    config = {**SMALL, "model_type": "granitemoehybrid", "layer_types": ["attention", "mamba", "attention"]}
    assert not is_known(config)
    assert is_known({**config, "layer_types": ["attention"] * 3})
