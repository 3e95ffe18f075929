"""Files of an adapter that are cut or of no use, and the configuration of a merged model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from orchestrator.cli import main
from orchestrator.compose import compose
from orchestrator.export.adapter_files import WEIGHTS
from orchestrator.export.run import model_config
from orchestrator.export.source import open_source


def _export(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["export", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("body", ["", "{", "[]", "{}"])
def test_a_damaged_adapter_is_told_and_gives_way_to_checkpoints(
    run: Any, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    (run.path / "adapter" / "adapter_config.json").write_text(body)
    code, _, err = _export(capsys, str(run.path))
    assert code == 2
    assert "adapter_config.json: it" in err
    newest = run.write_checkpoint(4)
    source = open_source(compose([str(run.path)], needs_job=False)[0])
    assert (source.adapter, source.checkpoints) == (None, (newest,))
    assert "the finished adapter was passed over" in source.notes[0]
    source = open_source(compose([str(run.path), "export.checkpoint=best"], needs_job=False)[0])
    assert source.checkpoints == (newest,)


def test_cut_weights_give_way_to_checkpoints(run: Any) -> None:
    weights = run.path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    newest = run.write_checkpoint(4)
    source = open_source(compose([str(run.path)], needs_job=False)[0])
    assert (source.adapter, source.checkpoints) == (None, (newest,))
    assert "adapter_model.safetensors" in source.notes[0]


@pytest.mark.parametrize(("kind", "value"), [(np.float32, np.nan), (np.float16, np.inf), (np.float64, -np.inf)])
def test_values_that_are_no_numbers_are_not_exported(
    run: Any, capsys: pytest.CaptureFixture[str], kind: Any, value: float
) -> None:
    whole, broken = np.full((4, 3), np.finfo(kind).max, kind), np.zeros((4, 3), kind)
    broken[3, 2] = value
    save_file({"layer.lora_A.weight": whole, "layer.lora_B.weight": broken}, run.path / "adapter" / WEIGHTS)
    code, _, err = _export(capsys, str(run.path))
    assert code == 2
    assert "layer.lora_B.weight holds values that are no finite numbers" in err
    assert "export.checkpoint=best" in err
    assert not (run.path / "export").exists()


def test_the_parts_of_a_composite_model_are_told_what_is_written() -> None:
    of_base = {
        "model_type": "gemma3",
        "torch_dtype": "float32",
        "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "x"},
        "generation": {"tie_word_embeddings": True},
        "text_config": {"vocab_size": 9, "dtype": "float32", "rope_parameters": {"dtype": "a"}, "_name_or_path": "/b"},
        "vision_config": {"hidden_size": 4, "torch_dtype": "float32"},
        "thinker_config": {"text_config": {"tie_word_embeddings": True}},
    }
    before = json.dumps(of_base)
    assert model_config(of_base, "bfloat16", is_untied=True) == {
        "model_type": "gemma3",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "generation": {"tie_word_embeddings": True},
        "text_config": {
            "vocab_size": 9,
            "dtype": "bfloat16",
            "rope_parameters": {"dtype": "a"},
            "tie_word_embeddings": False,
        },
        "vision_config": {"hidden_size": 4, "dtype": "bfloat16"},
        "thinker_config": {"text_config": {"tie_word_embeddings": False}},
    }
    assert json.dumps(of_base) == before
    tied = model_config(of_base, "bfloat16", is_untied=False)
    assert (tied["tie_word_embeddings"], "tie_word_embeddings" in tied["text_config"]) == (True, False)


def test_a_composite_model_of_the_library_is_untied_as_a_whole() -> None:
    transformers = pytest.importorskip("transformers")
    of_base = json.loads(transformers.Gemma3Config(text_config={"vocab_size": 9}, vision_config={}).to_json_string())
    made = transformers.Gemma3Config(**model_config(of_base, "bfloat16", is_untied=True))
    assert not made.tie_word_embeddings
    assert not made.text_config.tie_word_embeddings
