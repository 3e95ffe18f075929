"""A damaged or unusual config.json is answered with what is wrong, never with an exception of Python."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import AdapterConfig
from orchestrator.errors import Problem, UserError
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.families import SUPPORTED, is_known, shape_from_config

from .architectures import OWN_CODE, SMALL

KINDS = sorted(set(SUPPORTED) - OWN_CODE)
LLAMA: dict[str, Any] = {"model_type": "llama", **SMALL}
ODD = st.sampled_from(
    [None, "", "4096", "abc", -1, 0, 1, 1.5, 10**12, True, False, [], {}, [1, 2], {"a": 1}, ["sliding_attention"]]
)
QUANTISED = st.sampled_from(
    [
        None,
        "x",
        {},
        {"quant_method": ["a"]},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf8"},
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": [None, 3, "("]},
    ]
)


@cache
def _defaults(kind: str) -> str:
    config = transformers.AutoConfig.for_model(kind).to_dict()
    layers = {key: 4 for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if key in config}
    return json.dumps({**config, **layers}, default=str)


@st.composite
def _configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(_defaults(draw(st.sampled_from(KINDS))))
    for key in draw(st.lists(st.sampled_from(sorted(set(config) - {"model_type"})), max_size=4, unique=True)):
        if draw(st.booleans()):
            del config[key]
        else:
            config[key] = draw(ODD)
    if draw(st.booleans()):
        config["quantization_config"] = draw(QUANTISED)
    if draw(st.integers(0, 5)) == 0:
        outer = draw(st.sampled_from(["llava", "gemma3", "mistral3", "llama4"]))
        vision = draw(st.sampled_from([None, {}, {"hidden_size": "x"}, {"patch_size": 0}]))
        return {"model_type": outer, "text_config": draw(st.sampled_from([config, None, "x"])), "vision_config": vision}
    return config


@given(_configs())
def test_odd_files_give_a_shape_or_tell_what_is_wrong(config: dict[str, Any]) -> None:
    if not is_known(config):
        return
    problems: tuple[Problem, ...] = ()
    counted = 0
    try:
        shape = shape_from_config("m", config)
        counted = min(shape.total_params, adapter_shape(shape, AdapterConfig(rank=8)).params)
    except UserError as error:
        problems = error.problems
    assert counted > 0 or problems
    assert all(problem.found and problem.remedy for problem in problems)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**12}, ["num_hidden_layers", "10,000"]),
        ({"num_hidden_layers": 10_001}, ["num_hidden_layers", "10,000"]),
        ({"hidden_size": 10**10, "vocab_size": 10**10}, ["hidden_size", "vocab_size", "1,000,000,000"]),
        ({"hidden_size": "64"}, ["hidden_size", "'64'"]),
        (
            {"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf8"}},
            ["bnb_4bit_quant_type", "'nf8'"],
        ),
    ],
)
def test_all_that_is_wrong_is_named(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        shape_from_config("m", {**LLAMA, **changes})
    assert [word for word in words if word not in str(raised.value)] == []
