"""How long a sequence a model takes, with and without scaled rotary embeddings."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from orchestrator.workload.families import SUPPORTED, shape_from_config
from orchestrator.workload.positions import has_table, positions_of

from .architectures import OWN_CODE, SMALL


@pytest.mark.parametrize("kind", sorted(set(SUPPORTED) - OWN_CODE))
def test_a_silent_file_means_the_default_of_transformers(kind: str) -> None:
    config = CONFIG_MAPPING[kind]()
    assert positions_of(kind, 0, {}) == (
        getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None) or 0
    )


@pytest.mark.parametrize(
    ("told", "positions"),
    [
        ({}, 4096),
        ({"rope_scaling": None}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16_384),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 8192),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}, 16_384),
        # The file names what is reached already.
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}}, 4096),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, 8192),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": "many"}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, 4096),
        ({"rope_scaling": {"type": "linear"}}, 4096),
    ],
)
def test_scaling_counts(told: dict[str, Any], positions: int) -> None:
    assert positions_of("llama", 4096, told) == positions
    config = {"model_type": "llama", **SMALL, "max_position_embeddings": 4096, **told}
    assert shape_from_config("m", config).max_positions == positions


def test_some_look_positions_up() -> None:
    assert has_table("gpt2")
    assert not has_table("llama")
    assert positions_of("gpt2", 1024, {"rope_scaling": {"type": "linear", "factor": 4}}) == 1024
    assert positions_of("unheard", 0, {}) == 0
