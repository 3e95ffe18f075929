"""Defaults of transformers that `config.json` may leave out, and what a wrapper says about its head."""

from __future__ import annotations

import pytest
import transformers

from orchestrator.config import AdapterConfig
from orchestrator.errors import UserError
from orchestrator.workload import unsaid
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.unsaid import activation_of, drops_residuals
from orchestrator.workload.wrappers import language_part

from .architectures import SMALL

OWN_ACTIVATIONS = {"bloom", "mpt"}  # in code, not in the configuration
KINDS = sorted((set(unsaid._ACTIVATIONS) | set(unsaid._DROPOUT)) - OWN_ACTIVATIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    told = transformers.AutoConfig.for_model(kind).to_dict()
    assert activation_of(kind, {}) == activation_of("", told)
    assert drops_residuals(kind, {}) == drops_residuals(kind, told)


def test_what_is_told_wins() -> None:
    assert activation_of("opt", {"activation_function": "gelu"}) == "gelu"
    assert activation_of("novel", {}) == ""
    assert drops_residuals("opt", {})
    assert not drops_residuals("opt", {"dropout": 0.0})
    assert not drops_residuals("gpt2", {"resid_pdrop": "many"})
    assert not drops_residuals("llama", {"dropout": 0.5})


@pytest.mark.parametrize("kind", ["phimoe", "llama4_text"])
def test_all_linear_leaves_routers_that_return_tuples(kind: str) -> None:
    config = {**SMALL, "model_type": kind, "num_local_experts": 4, "intermediate_size_mlp": 48, "head_dim": 8}
    model = shape_from_config("m", config)
    assert "router" not in {linear.leaf for linear, _ in model.linear_counts}
    adapters = adapter_shape(model, AdapterConfig(rank=4))
    assert not any("router" in piece.name for piece in adapters.all_pieces)
    with pytest.raises(UserError, match="'router' names no linear module"):
        adapter_shape(model, AdapterConfig(rank=4, targets=("router",)))


@pytest.mark.parametrize(
    ("outer", "kind", "inner", "tied"),
    [
        (True, "mistral3", False, True),
        (False, "llava", True, True),
        (False, "llava", None, False),
        (True, "llama4", False, False),
        (None, "mistral3", False, False),
    ],
)
def test_either_part_of_a_wrapper_ties_the_head(outer: bool | None, kind: str, inner: bool | None, tied: bool) -> None:
    text = {} if inner is None else {"tie_word_embeddings": inner}
    whole = {} if outer is None else {"tie_word_embeddings": outer}
    part = language_part({"model_type": kind, **whole, "text_config": {"model_type": "mistral", **text}})
    assert part is not None
    assert part["tie_word_embeddings"] is tied
