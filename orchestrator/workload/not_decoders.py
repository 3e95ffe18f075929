"""Models that are no decoder-only language models: what they are, and what to do instead.

Kinds by `model_type`, from the mappings of `models/auto/modeling_auto.py` in transformers 5.24; a kind that is not
listed is told by `is_encoder_decoder` and the class in `architectures`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.layout import Config


class Kind(StrEnum):
    """What a model is, where it is no decoder-only language model; the value is told to the user."""

    encoder_decoder = "an encoder-decoder model"
    speech = "an encoder-decoder model of speech"
    encoder = "an encoder-only model, which does not generate text"
    image = "an image model, with no language model in it"
    pair = "a model that compares images and text, with no language model in it"
    audio = "an audio model, with no language model in it"


_LISTED: Final = MappingProxyType(
    {
        Kind.encoder_decoder: (
            "bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder florence2 fsmt led longt5 m2m_100 "
            "marian mbart mt5 mvp nllb-moe pegasus pegasus_x pix2struct plbart prophetnet switch_transformers t5 "
            "t5gemma t5gemma2 udop umt5 vision-encoder-decoder"
        ),
        Kind.speech: (
            "canary cohere_asr dia moonshine moonshine_streaming pop2piano seamless_m4t seamless_m4t_v2 "
            "speech-encoder-decoder speech_to_text speecht5 whisper"
        ),
        Kind.encoder: (
            "albert bert big_bird bros camembert canine convbert data2vec-text deberta deberta-v2 distilbert dpr "
            "electra ernie esm eurobert flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm layoutlmv2 "
            "layoutlmv3 lilt longformer luke markuplm megatron-bert mobilebert modernbert mpnet mra neomme nomic_bert "
            "nystromformer perceiver reformer rembert roberta roberta-prelayernorm roc_bert roformer splinter "
            "squeezebert tapas xlm xlm-roberta xlm-roberta-xl xmod yoso"
        ),
        Kind.image: (
            "aimv2 aimv2_vision_model beit bit clip_vision_model conditional_detr convnext convnextv2 cvt dab-detr "
            "data2vec-vision deformable_detr deit depth_pro detr dinat dinov2 dinov2_with_registers dinov3_convnext "
            "dinov3_vit dpt efficientnet focalnet glpn hiera ijepa imagegpt levit mask2former maskformer mlcd "
            "mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 oneformer pixtral poolformer pvt pvt_v2 regnet resnet "
            "rt_detr sam sam2 sam3 segformer seggpt siglip_vision_model siglip2_vision_model swiftformer swin swin2sr "
            "swinv2 table-transformer timesformer timm_backbone timm_wrapper videomae vit vit_mae vit_msn vitdet "
            "vivit yolos"
        ),
        Kind.pair: (
            "align altclip bridgetower chinese_clip clip clip_text_model clipseg flava groupvit lxmert metaclip_2 "
            "owlv2 owlvit siglip siglip2 vilt vision-text-dual-encoder visual_bert xclip"
        ),
        Kind.audio: (
            "audio-spectrogram-transformer clap dac data2vec-audio encodec fastspeech2_conformer hubert mimi sew sew-d "
            "unispeech unispeech-sat univnet vits wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm"
        ),
    }
)
KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {name: kind for kind, names in _LISTED.items() for name in names.split()}
)
# Heads that only such models have; `ForSequenceClassification` is put on decoders, too.
_HEADS: Final = MappingProxyType(
    {
        "ForMaskedLM": Kind.encoder,
        "ForImageClassification": Kind.image,
        "ForObjectDetection": Kind.image,
        "ForSemanticSegmentation": Kind.image,
        "ForSpeechSeq2Seq": Kind.speech,
        "ForCTC": Kind.audio,
        "ForAudioClassification": Kind.audio,
    }
)
# Of these transformers can load the decoder alone, when the file says that this is what it is.
_AS_DECODER: Final = ("is_decoder", "causal")
_REMEDIES: Final = MappingProxyType(
    {
        Kind.encoder_decoder: "train this one with Seq2SeqTrainer of transformers",
        Kind.speech: "train this one with Seq2SeqTrainer of transformers",
    }
)


def refuse_others(name: str, config: Config) -> None:
    """Refuse what is no decoder-only language model, alone or as the language part of a wrapper.

    Args:
        name: of the model.
        config: the parsed `config.json`.

    Raises:
        UserError: with what the model is.
    """
    found = kind_of(config)
    if found is None:
        return
    kind = str(config.get("model_type") or "unknown")
    other = _REMEDIES.get(found, "train this one with Trainer of transformers")
    raise UserError(
        Problem(
            where=f"model {name}",
            found=f"{kind} is {found}; Trainmaster fine-tunes decoder-only language models",
            remedy=f"Give the folder of a decoder (llama, qwen2, mistral, gemma2 and the like), or {other}.",
        )
    )


def kind_of(config: Config) -> Kind | None:
    """What `config` describes where that is no decoder, alone or in a wrapper; None for decoders and unknown ones."""
    kind = str(config.get("model_type"))
    text = config.get("text_config")
    listed = KINDS.get(kind)
    if listed is None and isinstance(text, Mapping):
        return KINDS.get(str(text.get("model_type")))
    is_whole = bool(config.get("is_encoder_decoder", listed in {Kind.encoder_decoder, Kind.speech}))
    if any(config.get(key) for key in _AS_DECODER) and not is_whole:
        return None
    if listed is not None:
        return listed
    if is_whole:
        return Kind.encoder_decoder
    architectures = config.get("architectures")
    names = [str(x) for x in architectures] if isinstance(architectures, list) else []
    heads = [next((found for end, found in _HEADS.items() if name.endswith(end)), None) for name in names]
    return heads[0] if heads and None not in heads else None
