"""What servers take: rules against the facts of vLLM, and against its own loader where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export.serving import VLLM_RANKS, mergeable, sglang, to_line, vllm

_CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "bias": "none"}
_NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
_TENSORS = {_NAME.format("A"): ("BF16", (16, 64)), _NAME.format("B"): ("BF16", (64, 16))}


@pytest.mark.parametrize(
    ("rank", "argument"), [(1, "1"), (2, "8"), (8, "8"), (16, ""), (17, "32"), (200, "256"), (300, "320"), (512, "512")]
)
def test_names_the_smallest_rank_that_holds_it(rank: int, argument: str) -> None:
    found = vllm(_CONFIG | {"r": rank}, _TENSORS)
    assert found.loads
    assert found.arguments == ("--enable-lora", *(["--max-lora-rank", argument] if argument else []))


def test_the_largest_rank_of_a_pattern_counts() -> None:
    found = vllm(_CONFIG | {"rank_pattern": {"q_proj": 40}}, _TENSORS)
    assert found.arguments[-1] == "64"
    assert "by pattern" in to_line(found)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"r": 513}, "rank 513"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
        ({"init_lora_weights": "pissa"}, "path_initial_model"),
        ({"peft_type": "ADALORA"}, "ADALORA"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
    ],
)
def test_says_why_it_does_not_load(change: dict[str, Any], word: str) -> None:
    found = vllm(_CONFIG | change, _TENSORS)
    assert not found.loads
    assert word in to_line(found)


@pytest.mark.parametrize("change", [{"modules_to_save": ["score"]}, {"init_lora_weights": "eva"}, {"use_rslora": True}])
def test_loads_what_vllm_has_learned(change: dict[str, Any]) -> None:
    assert vllm(_CONFIG | change, _TENSORS).loads


def test_names_a_tensor_that_vllm_does_not_know() -> None:
    found = vllm(_CONFIG, _TENSORS | {_NAME.format("magnitude_vector"): ("BF16", (64,))})
    assert not found.loads
    assert "lora_magnitude_vector" in to_line(found)


def test_tells_that_fp32_is_rounded() -> None:
    assert "rounded" in to_line(vllm(_CONFIG, {_NAME.format("A"): ("F32", (16, 64))}))


def test_a_model_that_vllm_serves_without_adapters() -> None:
    assert "GPT2LMHeadModel without adapters" in to_line(vllm(_CONFIG, _TENSORS, "GPT2LMHeadModel"))
    assert vllm(_CONFIG, _TENSORS, "LlamaForCausalLM").loads


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"use_rslora": True}, "alpha / r"),
        ({"use_dora": True}, "DoRA"),
        ({"rank_pattern": {"q_proj": 8}}, "by pattern"),
        ({"modules_to_save": ["lm_head"]}, "trained whole"),
        ({"target_modules": ["q_proj", "o_proj"]}, "none on v_proj"),
        ({"target_modules": ["v_proj"]}, "none on q_proj"),
    ],
)
def test_says_what_sglang_would_get_wrong(change: dict[str, Any], word: str) -> None:
    found = sglang(_CONFIG | {"target_modules": ["q_proj", "v_proj"]} | change)
    assert not found.loads
    assert word in to_line(found)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["gate_proj", "up_proj"], "all-linear"])
def test_sglang_loads_plain_lora(targets: Any) -> None:
    assert sglang(_CONFIG | {"target_modules": targets}).loads


def test_what_cannot_be_merged() -> None:
    assert not list(mergeable(_CONFIG | {"use_dora": True, "modules_to_save": ["lm_head"]}))
    assert list(mergeable(_CONFIG | {"bias": "all"}))
    assert list(mergeable(_CONFIG | {"init_lora_weights": "pissa"}))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize(
    "change",
    [{}, {"r": 512}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"init_lora_weights": "pissa"}, {"r": 600}],
)
def test_agrees_with_vllm_itself(change: dict[str, Any], tmp_path: Path) -> None:
    from vllm.config.lora import LoRAConfig  # type: ignore[import-not-found]
    from vllm.lora.peft_helper import PEFTHelper  # type: ignore[import-not-found]

    config = _CONFIG | change
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    ours = vllm(config, _TENSORS)
    limit = int(ours.arguments[-1]) if "--max-lora-rank" in ours.arguments else min(VLLM_RANKS[-1], 16)
    theirs = PEFTHelper.from_local_dir(str(tmp_path), max_position_embeddings=None)
    if ours.loads:
        theirs.validate_legal(LoRAConfig(max_lora_rank=limit))
    else:
        with pytest.raises(ValueError, match=r"."):
            theirs.validate_legal(LoRAConfig(max_lora_rank=VLLM_RANKS[-1]))
