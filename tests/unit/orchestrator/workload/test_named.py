"""Presets: every one adds up to its known total, and is found by the names people use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.workload.named import Preset, find_preset, preset_shape, presets

# Counts that the models' authors or the headers of their weights give, written down a second time.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "tinyllama": 1_100_048_384,
    "yi-34b": 34_388_917_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen-7b": 7_721_324_544,
    "qwen-14b": 14_167_290_880,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-4b": 4_300_079_472,
    "phi-1.5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "falcon-7b": 6_921_720_704,
    "stablelm-alpha-3b": 3_637_321_728,
    "granite-4.0-micro": 3_402_836_480,
    "gpt-oss-20b": 20_914_757_184,
}
# `7B class` and `(user model)` name no model.
NO_MODEL = re.compile(r".* class|\(.*\)")
MEASURED = Path(__file__).parents[5] / "shared/corpus/memory_numbers.yaml"


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.id)
def test_totals(preset: Preset) -> None:
    shape = preset_shape(preset.id)
    assert shape.total_params == preset.parameters
    assert shape.source == f"preset {preset.id}"


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_published_totals(name: str, total: int) -> None:
    assert preset_shape(name).total_params == total


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("Llama 2 7 B", "meta-llama/Llama-2-7b-hf"),
        ("NousResearch/Llama-2-70b-hf", "meta-llama/Llama-2-70b-hf"),
        ("LLaMA-7B", "huggyllama/llama-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("unsloth/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B"),
        ("Qwen-1.8B", "Qwen/Qwen-1_8B"),
    ],
)
def test_names(name: str, hub_id: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    assert preset.id == hub_id


def test_names_belong_to_one_preset() -> None:
    for preset in presets():
        for name in (preset.id, *preset.names):
            found = find_preset(name)
            assert found is not None
            assert found.id == preset.id, name


def test_another_owner_is_told() -> None:
    assert "taken for" in preset_shape("someone/Llama-2-7b-hf").notes[-1]
    assert not preset_shape("NousResearch/Llama-2-7b-hf").notes


def test_what_is_not_verified_says_so() -> None:
    assert "no second public source" in preset_shape("qwen-72b").notes[-1]


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'llama-2-8b'.*The nearest: .*llama-2-7b"):
        preset_shape("llama-2-8b")


@pytest.mark.skipif(not MEASURED.is_file(), reason="the published measurements are not here")
def test_every_model_of_the_data_file_is_known() -> None:
    models = set(re.findall(r"^  model: (.+)$", MEASURED.read_text(), flags=re.MULTILINE))
    assert len(models) > 30
    unknown = {name for name in (model.strip("'\"") for model in models) if find_preset(name) is None}
    assert {name for name in unknown if NO_MODEL.fullmatch(name) is None} == set()
