"""What servers take of an adapter, checked before anybody starts one.

Facts about vLLM are those of 0.33.0 (its `vllm/lora/peft_helper.py`, `lora_model.py`, `utils.py`, `vllm/config/lora.py`
and the classes of its registry of models), facts about SGLang those of 0.5.23 (`sglang/srt/lora/lora.py`,
`lora_manager.py`), read 2026-11-30. A test runs vLLM's code where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

VLLM_VERSION: Final = "0.33.0"
VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that --max-lora-rank takes; an adapter needs one that is not below its largest rank."""
SGLANG_VERSION: Final = "0.5.23"
# Text models that it serves, but whose classes are not SupportsLoRA.
VLLM_WITHOUT_LORA: Final = frozenset(
    (
        *("BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "BloomForCausalLM", "Cohere2MoeForCausalLM"),
        *("DbrxForCausalLM", "DomynEdgeForCausalLM", "DoryForCausalLM", "FalconForCausalLM", "FalconMambaForCausalLM"),
        *("Gemma3nForCausalLM", "GPT2LMHeadModel", "GPTJForCausalLM", "HrmTextForCausalLM", "HCXVisionV2ForCausalLM"),
        *("IQuestLoopCoderForCausalLM", "MambaForCausalLM", "Mamba2ForCausalLM", "MiMoV2FlashForCausalLM"),
        *("MiMoV2ForCausalLM", "OrionForCausalLM", "Step1ForCausalLM", "Step3TextForCausalLM", "Step3p5ForCausalLM"),
        *("StableLmForCausalLM", "Zamba2ForCausalLM"),
    )
)
_VLLM_DEFAULT: Final = 16
_PREFIX: Final = "base_model.model."
_EXPERTS: Final = ".experts"
# Starts that leave the base as it is; the others need the base that they changed.
PLAIN_STARTS: Final = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
_HEADS: Final = frozenset({"classifier", "score"})
_MERGED: Final = "export.format=merged makes a model that needs no adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Whether a server loads an adapter.

    Attributes:
        server: its name.
        version: whose code the facts are from.
        loads: it does, as far as can be told without the server.
        arguments: for its command line.
        reasons: why it does not, and what to do.
        notes: what to know if it does.
    """

    server: str
    version: str
    loads: bool
    arguments: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def vllm(config: Mapping[str, Any], tensors: Tensors, architecture: str = "") -> Serving:
    """Check an adapter against what vLLM documents and does.

    Args:
        config: of `adapter_config.json`.
        tensors: type (as safetensors names it) and shape of each tensor, by name.
        architecture: class of the base, as its config.json says; empty where that is not here.
    """
    reasons = (*_refused_features(config), *_refused_tensors(config, tensors))
    if architecture in VLLM_WITHOUT_LORA:
        reasons += (f"vLLM serves {architecture} without adapters: {_MERGED}",)
    rank = largest_rank(config)
    allowed = next((limit for limit in VLLM_RANKS if limit >= rank), None)
    if allowed is None:
        reasons += (f"its rank {rank} is above {VLLM_RANKS[-1]}, the most that vLLM takes: train with a lower rank",)
    if reasons or allowed is None:
        return Serving(server="vLLM", version=VLLM_VERSION, loads=False, reasons=reasons)
    arguments: tuple[str, ...] = ("--enable-lora",)
    if allowed != _VLLM_DEFAULT:
        arguments += ("--max-lora-rank", str(allowed))
    notes = tuple(_notes(config, tensors))
    return Serving(server="vLLM", version=VLLM_VERSION, loads=True, arguments=arguments, notes=notes)


def sglang(config: Mapping[str, Any]) -> Serving:
    """Check an adapter against what SGLang does; some of it would load and answer wrongly.

    Args:
        config: of `adapter_config.json`.
    """
    reasons = tuple(_refused_by_sglang(config))
    arguments = () if reasons else ("--enable-lora", "--lora-paths", "NAME=FOLDER")
    return Serving(server="SGLang", version=SGLANG_VERSION, loads=not reasons, arguments=arguments, reasons=reasons)


def _refused_by_sglang(config: Mapping[str, Any]) -> Iterator[str]:
    kind = str(config.get("peft_type", "LORA"))
    if kind != "LORA":
        yield f"it is {kind}, SGLang loads LoRA: {_MERGED}"
    if config.get("use_dora"):
        yield f"SGLang does not load DoRA: {_MERGED}"
    if config.get("use_rslora"):
        yield f"SGLang scales by alpha / r whatever use_rslora says: {_MERGED}"
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        yield f"SGLang does not read ranks or alphas by pattern: {_MERGED}"
    if config.get("modules_to_save") or config.get("bias", "none") != "none" or config.get("lora_bias"):
        yield f"SGLang does not load modules or biases that were trained whole: {_MERGED}"
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        yield f"init_lora_weights={start} changes the base, which SGLang does not know: {_MERGED}"
    targets = config.get("target_modules")
    names = {str(name).rpartition(".")[2] for name in targets} if isinstance(targets, list) else set()
    if names & {"q_proj", "k_proj"} and "v_proj" not in names:
        yield f"SGLang joins q_proj, k_proj and v_proj, and there is none on v_proj: {_MERGED}"
    if names & {"k_proj", "v_proj"} and "q_proj" not in names:
        yield f"SGLang joins q_proj, k_proj and v_proj, and there is none on q_proj: {_MERGED}"


def largest_rank(config: Mapping[str, Any]) -> int:
    """Return the rank that a server must have room for."""
    ranks = (config.get("rank_pattern") or {}).values()
    # AdaLoRA names the rows that are left instead of their number.
    return max([int(config["r"]), *(sum(rank) if isinstance(rank, list) else int(rank) for rank in ranks)])


def _refused_features(config: Mapping[str, Any]) -> Iterator[str]:
    kind = str(config.get("peft_type", "LORA"))
    if kind != "LORA":
        yield f"it is {kind}, vLLM loads LoRA: {_MERGED}"
    if config.get("use_dora"):
        yield f"vLLM does not load DoRA: {_MERGED}"
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        yield f"vLLM does not load trained biases: {_MERGED}"
    whole = [name for name in config.get("modules_to_save") or () if name not in _HEADS]
    if whole:
        yield f"vLLM does not load modules that were trained whole ({', '.join(whole)}): {_MERGED}"
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        yield f"init_lora_weights={start} changes the base: convert it by path_initial_model_for_weight_conversion"
    for key in ("alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora", "trainable_token_indices"):
        if config.get(key):
            yield f"vLLM does not load {key}: {_MERGED}"


def _refused_tensors(config: Mapping[str, Any], tensors: Tensors) -> Iterator[str]:
    whole = set(config.get("modules_to_save") or ())
    odd = [name for name in tensors if not _is_known(name) and not whole & set(name.split("."))]
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        yield f"vLLM knows no tensor called {odd[0]}{more}: {_MERGED}"


def _is_known(name: str) -> bool:
    parts = name.removeprefix(_PREFIX).split(".")
    if not name.startswith(_PREFIX):
        return False
    if parts[-1] in {"lora_embedding_A", "lora_embedding_B"}:
        return True
    return len(parts) > 2 and parts[-1] == "weight" and parts[-2] in {"lora_A", "lora_B"}  # noqa: PLR2004 - module.lora_A.weight


def _notes(config: Mapping[str, Any], tensors: Tensors) -> Iterator[str]:
    if any(dtype == "F32" for dtype, _ in tensors.values()):
        yield "its fp32 tensors are rounded to the served model's type (--lora-dtype float16 or bfloat16)"
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        yield f"ranks or alphas by pattern need a vLLM that reads them, as {VLLM_VERSION} does"
    if any(_EXPERTS in name for name in tensors):
        yield "adapters on experts load where vLLM has a LoRA layer for that model's experts"
    if any(name.endswith(("lora_embedding_A", "lora_embedding_B")) or ".lm_head." in name for name in tensors):
        yield "adapters on embeddings or the head load where the model's class in vLLM lists them (embedding_modules)"


def to_json(serving: Serving) -> dict[str, Any]:
    """Return it as plain values."""
    return {
        "version": serving.version,
        "loads": serving.loads,
        "arguments": list(serving.arguments),
        "reasons": list(serving.reasons),
        "notes": list(serving.notes),
    }


def to_line(serving: Serving) -> str:
    """Return it as a sentence."""
    if not serving.loads:
        return f"{serving.server}: does not load it, since {'; '.join(serving.reasons)}"
    notes = f" ({'; '.join(serving.notes)})" if serving.notes else ""
    return f"{serving.server}: loads with {' '.join(serving.arguments)}{notes}"


def mergeable(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield why an adapter cannot be merged into the weights of its base."""
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        yield "it has trained biases"
    if config.get("peft_type") == "ADALORA":
        yield "it is stored as AdaLoRA, which PEFT cannot lay onto a base without weights; newer runs store plain LoRA"
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        yield f"init_lora_weights={start} belongs to a base that was changed at the start"
    for key in ("alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora", "trainable_token_indices"):
        if config.get(key):
            yield f"{key} is set"
