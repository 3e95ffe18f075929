"""Counting on the meta device: the same numbers as the formulas, and whatever has no formula."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from orchestrator.errors import UserError
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.meta import built, main, shape_of_folder, shape_of_model
from orchestrator.workload.model import ModelShape
from orchestrator.workload.parameters import Parameter
from orchestrator.workload.shape_codec import shape_from_json, shape_to_json

from .architectures import CASES, SMALL, config_of, meta_model

# A formula has no say in these: the reader of config.json does not look at them, or names them otherwise.
COMPARED = (
    "architecture",
    "hidden",
    "layers",
    "heads",
    "head_dim",
    "vocab",
    "tied",
    "norm_params",
    "head_params",
    "bias_params",
    "expert_params",
    "experts",
    "experts_per_token",
    "expert_width",
    "linear_params",
    "packed_params",
    "total_params",
    "prefix",
    "logit_softcap",
    "attention_softcap",
    "sliding_window",
    "windowed_layers",
)


def _parameters(shape: ModelShape) -> set[tuple[str, Parameter]]:
    inner = {(str(group.layers), parameter) for group in shape.groups for parameter in group.parameters}
    return inner | {("", parameter) for parameter in shape.outside}


@pytest.mark.parametrize("name", CASES)
def test_formula_and_meta_device_agree(name: str) -> None:
    model, skipped = built(config_of(name))
    formula, counted = shape_from_config(name, model.config.to_dict()), shape_of_model(model, name, skipped)
    assert {key: getattr(counted, key) for key in COMPARED} == {key: getattr(formula, key) for key in COMPARED}
    if "vision" not in str(model.config):
        assert _parameters(counted) == _parameters(formula)
        assert set(counted.linear_counts) == set(formula.linear_counts)


def test_shapes_survive_json() -> None:
    shape = shape_from_config("m", meta_model("qwen2_moe-mixed").config.to_dict())
    assert shape_from_json(shape_to_json(shape)) == shape
    with pytest.raises(UserError, match="nonsense"):
        shape_from_json('{"shape": {"name": 1}}')


def _saved(tmp_path: Path, config: transformers.PretrainedConfig) -> Path:
    config.save_pretrained(tmp_path)
    return tmp_path


def test_architectures_without_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _saved(tmp_path, transformers.PersimmonConfig(**SMALL))
    assert main([str(folder), "--name", "m"]) == 0
    shape = shape_from_json(capsys.readouterr().out)
    assert (shape.architecture, shape.layers, shape.source) == ("persimmon", 3, "meta device")
    assert {linear.leaf for linear in shape.linears} == {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
    assert "slower" in shape.notes[0]


def test_a_wrapper_without_a_causal_model_is_counted_whole(tmp_path: Path) -> None:
    text = transformers.Qwen2Config(**SMALL)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    folder = _saved(tmp_path, transformers.LlavaConfig(text_config=text.to_dict(), vision_config=vision.to_dict()))
    whole = shape_of_folder(folder, "m")
    part = shape_from_config("m", json.loads((folder / "config.json").read_text()))
    assert whole.total_params > part.total_params
    assert (whole.layers, part.layers) == (3, 3)
    assert "Only the language part of llava" in part.notes[0]


def test_problems_come_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "novel"}')
    assert main([str(tmp_path), "--name", "m"]) == 2
    with pytest.raises(UserError, match=r"model m: transformers cannot build it .*trust_remote_code"):
        shape_from_json(capsys.readouterr().out)


def test_more_layers_than_any_model_has_are_not_built(tmp_path: Path) -> None:
    folder = _saved(tmp_path, transformers.PersimmonConfig(**SMALL))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    with pytest.raises(UserError, match=r"num_hidden_layers is 1000000000, more than 10,000"):
        shape_of_folder(folder, "m")


def test_prequantised_weights_keep_their_skipped_modules(tmp_path: Path) -> None:
    folder = _saved(tmp_path, transformers.PersimmonConfig(**SMALL))
    config = json.loads((folder / "config.json").read_text())
    told = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    told["llm_int8_skip_modules"] = ["lm_head", "dense"]
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": told}))
    shape = shape_of_folder(folder, "m")
    assert shape.prequantised == "nf4"
    assert {linear.leaf for linear in shape.linears if not linear.packed} == {"dense"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UserError, match="GPTQ"):
        shape_of_folder(folder, "m")
