"""Encoders, encoder-decoders and models of images or sound are named for what they are; decoders pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto import modeling_auto

from orchestrator.errors import UserError
from orchestrator.workload.families import SUPPORTED
from orchestrator.workload.headers import load_shape
from orchestrator.workload.named import presets
from orchestrator.workload.not_decoders import KINDS, Kind, kind_of

from .architectures import OWN_CODE

OTHERS: dict[str, Kind] = {
    "T5Config": Kind.encoder_decoder,
    "BartConfig": Kind.encoder_decoder,
    "T5GemmaConfig": Kind.encoder_decoder,
    "WhisperConfig": Kind.speech,
    "BertConfig": Kind.encoder,
    "ModernBertConfig": Kind.encoder,
    "DebertaV2Config": Kind.encoder,
    "ViTConfig": Kind.image,
    "SamConfig": Kind.image,
    "CLIPConfig": Kind.pair,
    "SiglipConfig": Kind.pair,
    "Wav2Vec2Config": Kind.audio,
}
DECODERS = (
    *("LlamaConfig", "GPT2Config", "MambaConfig", "LlavaConfig", "Qwen2VLConfig", "Gemma3Config", "Llama4Config"),
    *("Qwen2AudioConfig", "Blip2Config"),
)


def _config(name: str, **told: Any) -> dict[str, Any]:
    config: dict[str, Any] = getattr(transformers, name)(**told).to_dict()
    return config


@pytest.mark.parametrize(("name", "kind"), OTHERS.items())
def test_a_folder_of_another_kind_says_what_it_is(name: str, kind: Kind, tmp_path: Path) -> None:
    getattr(transformers, name)().save_pretrained(tmp_path)
    with pytest.raises(UserError) as caught:
        load_shape(tmp_path, "theirs")
    (problem,) = caught.value.problems
    assert problem.where == "model theirs"
    assert kind.value in problem.found
    assert "decoder-only language models" in problem.found
    assert "Give the folder of a decoder" in problem.remedy
    assert ("Seq2SeqTrainer" in problem.remedy) == (kind in {Kind.encoder_decoder, Kind.speech})


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_and_wrappers_of_decoders_pass(name: str) -> None:
    assert kind_of(_config(name)) is None


def test_a_bert_that_is_told_to_be_a_decoder_is_one() -> None:
    assert kind_of(_config("BertConfig", is_decoder=True)) is None
    assert kind_of({**_config("BartConfig"), "is_decoder": True, "is_encoder_decoder": False}) is None
    assert kind_of({"model_type": "bart", "is_decoder": True}) is Kind.encoder_decoder  # its default is both parts


def test_what_is_not_listed_is_told_by_the_file() -> None:
    assert kind_of({"model_type": "new", "is_encoder_decoder": True}) is Kind.encoder_decoder
    assert kind_of({"model_type": "new", "architectures": ["NewForMaskedLM"]}) is Kind.encoder
    assert kind_of({"model_type": "new", "architectures": ["NewForImageClassification"]}) is Kind.image
    assert kind_of({"model_type": "new", "architectures": ["NewForCausalLM"]}) is None
    assert kind_of({"model_type": "new", "architectures": ["NewForSequenceClassification"]}) is None
    assert kind_of({"model_type": "new", "architectures": "NewForMaskedLM"}) is None
    assert kind_of({"model_type": "new", "text_config": {"model_type": "bert"}}) is Kind.encoder


def test_no_decoder_is_listed() -> None:
    known = {str(kind_of(preset.config)) for preset in presets()}
    assert known == {"None"}
    assert not set(KINDS).intersection(SUPPORTED)
    causal = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    both = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    both |= set(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    both |= set(modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES)
    assert causal.intersection(KINDS) <= both
    assert set(SUPPORTED) - OWN_CODE - {"gemma3_text", "llama4_text", "ministral", "ministral3"} <= causal
