"""Published measurements as settings of the estimate: every assumption stands in a table here.

A record says what its authors said. What they left out is filled by the rules below, per software stack and in the
open; a record that cannot be filled is excluded with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from accuracy_rules import AUTOCAST, CONTRADICTIONS, FAMILIES, GEMMA_2, OTHERS, RULES, UPCASTS, Rules, is_special
from accuracy_targets import adapter_of

from orchestrator.config import Checkpointing, Engine, Optimizer, Quant
from orchestrator.errors import UserError
from orchestrator.estimate.setting import Machine, Setting, Sharding, Stage, Trained
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.model import LinearShape, ModelShape
from orchestrator.workload.named import preset_shape
from orchestrator.workload.older import as_transformers_4
from topology.units import GB, GIB, MIB

GPU: Final = Machine(
    is_gpu=True,
    memory_bytes=80 * GIB,
    flops_per_second=3e14,
    memory_bytes_per_second=2e12,
    cores=1.0,
    link_bytes_per_second=1e10,
    gather_bytes_per_second=1e10,
    link_alpha_seconds=3e-5,
    h2d_bytes_per_second=1e10,
    known=True,
)
_KNOWN: Final = re.compile(r"none|ddp|zero-?[23]|fsdp|single")
_FOREIGN: Final = re.compile(r"device_map|megatron|tp\d|pp\d|tensor|pipeline|sequence|hybrid|hsdp", re.IGNORECASE)
SMALLEST_CONTEXT: Final = 512  # tokens tried, where "no context fits" was reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record that can be estimated.

    Attributes:
        body: as it was read.
        family: key of RULES, or `other`.
        setting: what was run; its stack is the family.
        metric: `allocated`, `reserved` or `device`.
        measured_bytes: the published peak; None for a run of which only the outcome is known.
        limit_bytes: of the card, for such runs.
    """

    body: Mapping[str, Any]
    family: str
    setting: Setting
    metric: str
    measured_bytes: int | None
    limit_bytes: int = 0

    @property
    def device_reading(self) -> Record | None:
        """The same run as nvidia-smi showed it, where both were published."""
        shown = (self.body.get("extra") or {}).get("nvidia_smi_peak_mib")
        return replace(self, metric="device", measured_bytes=round(shown * MIB)) if shown else None

    @property
    def id(self) -> str:
        """As in the file."""
        return str(self.body["id"])

    @property
    def grade(self) -> str:
        """A, B, C or INEQ."""
        return str(self.body["calibration_grade"])

    @property
    def is_tight(self) -> bool:
        """Whether the run is the longest that was found to fit, so that its peak is near the limit."""
        return self.body.get("kind") == "fit" and "largest context" in str(self.body.get("note"))


class Excluded(Exception):
    """A record that is not compared, and why."""


# torchao's 8-bit AdamW works on fp32 tensors of a whole parameter (torchao/optim/adam.py names four: the parameter, its
# gradient, both moments), which compiled code partly fuses. torchtune's table tells that something of the kind is
# there: going from 16 to 8 bits saved 4.2 GiB, and the moments alone are 5.9 GiB smaller. Three explain that row; the
# count was chosen with it in sight.
_AO_COPIES: Final = 3


def family_of(body: Mapping[str, Any]) -> str:
    """Key of the software stack."""
    framework = str(body.get("framework") or "")
    return next((key for text, key in FAMILIES if text in framework), "other")


def read_record(body: Mapping[str, Any]) -> Record:
    """Interpret a record.

    Raises:
        Excluded: it cannot be.
    """
    if body.get("calibration_grade") == "X":
        msg = "marked as not to be fitted (a vendor's table, no measurement)"
        raise Excluded(msg)
    try:
        return _interpreted(body)
    except (KeyError, TypeError, ValueError) as error:
        msg = f"cannot be read ({type(error).__name__}: {error})"
        raise Excluded(msg) from error


def _interpreted(body: Mapping[str, Any]) -> Record:
    family = family_of(body)
    rules = RULES.get(family, OTHERS)
    _check(body)
    setting = _setting(body, family, rules)
    outcome = body.get("kind") in ("fit", "oom")
    return Record(
        body=body,
        family=family,
        setting=setting,
        metric="device" if outcome else _metric(body, rules),
        measured_bytes=None if outcome else _measured(body, rules),
        limit_bytes=_card(body) if outcome else 0,
    )


def _check(body: Mapping[str, Any]) -> None:
    missing = [key for key in ("seq_len", "micro_batch") if body.get(key) is None]
    if missing and not (body.get("kind") == "oom" and missing == ["seq_len"]):
        msg = f"{' and '.join(missing)} not published"
        raise Excluded(msg)
    sharding = str(body.get("sharding") or "none")
    if _FOREIGN.search(sharding) or not _KNOWN.search(sharding):
        msg = f"engine {sharding!r} is not modelled"
        raise Excluded(msg)
    optimizer = str(body.get("optimizer") or "adam")
    if "adam" not in optimizer.lower():
        msg = f"optimizer {optimizer!r} is not modelled"
        raise Excluded(msg)
    if "DPO" in str(body.get("framework")):
        msg = "preference tuning holds a second model's logits"
        raise Excluded(msg)
    if body["id"] in CONTRADICTIONS:
        raise Excluded(CONTRADICTIONS[body["id"]])


def _setting(body: Mapping[str, Any], family: str, rules: Rules) -> Setting:
    quant, double_quant = _quant(str(body.get("quant")), rules)
    compute = _dtype(body)
    sharding, ranks = _sharding(body, rules), int(body.get("n_gpus") or 1)
    model = _model(body, rules)
    targets = str(body.get("lora_targets") or "all linear")
    seq_len = int(body.get("seq_len") or SMALLEST_CONTEXT)
    everything = body["method"] == "full"
    adapter_dtype = rules.adapter_dtype or compute
    upcasts = rules.upcasts or is_special(str(body["id"]), UPCASTS)
    own_states = sharding is not None and not sharding.is_fsdp
    setting = Setting(
        model=model,
        adapter=adapter_of(
            model, targets, int(body.get("lora_r") or 8), dropout=rules.dropout, split="litgpt" in family
        ),
        batch=BatchShape(real_tokens_per_row=float(seq_len), longest_tokens=seq_len, fixed=True, padded=False),
        quant=quant,
        double_quant=double_quant,
        engine=Engine.ddp,
        world_size=ranks,
        micro=int(body["micro_batch"]),
        rows=int(body["micro_batch"]) * int(body.get("grad_accum") or 1),
        accumulation=int(body.get("grad_accum") or 1),
        compute_dtype=compute,
        load_dtype="fp32" if everything and rules.fsdp_masters and _is_fsdp(sharding) else compute,
        adapter_dtype=adapter_dtype,
        checkpointing=Checkpointing.none if body.get("grad_ckpt") is False else Checkpointing.full,
        optimizer=_optimizer(str(body.get("optimizer") or rules.optimizer)),
        allocator="",
        eager_attention=model.attention_softcap and family.startswith("litgpt"),
        zero3=None,
        machine=GPU,
        stack=family,
        trained=Trained.everything if everything else Trained.adapters,
        trained_tables="wte" in targets,
        sharding=sharding,
        offload_activations="activation" in str(body.get("offload")),
        paged_optimizer="paged" in str(body.get("optimizer")).lower(),
        step_in_backward="in_bwd" in str(body.get("optimizer")),
        step_copies=_AO_COPIES if family == "torchtune" and "8bit" in str(body.get("optimizer")) else 0,
        autocast=(rules.autocast and not own_states) or is_special(str(body["id"]), AUTOCAST),
        upcasts=upcasts and quant is not Quant.none and sharding is None,
        # AutoGPTQ has no loading of shards: each rank reads all of the checkpoint.
        loads_whole="gptq" in str(body.get("quant")) and _is_fsdp(sharding),
        logit_chunks=_logit_chunks(str(body.get("loss_kernel")), family),
    )
    return replace(setting, moment_bytes=4.0) if "PagedAdamW" in str(body.get("optimizer")) else setting


def _model(body: Mapping[str, Any], rules: Rules) -> ModelShape:
    name = "gemma-2-2b" if is_special(str(body["id"]), GEMMA_2) else str(body["model"])
    try:
        shape = preset_shape(re.sub(r"^(phi\S*)\s.*", r"\1", name))  # "phi-1.5 1.3 B"
    except UserError as error:
        msg = f"no preset is called {body['model']!r}"
        raise Excluded(msg) from error
    shape = as_transformers_4(shape) if rules.older else shape
    return _with_own_head(shape, packed=body["method"] == "qlora") if rules.own_head else shape


def _with_own_head(shape: ModelShape, *, packed: bool) -> ModelShape:
    """The same model with a head of its own, as litgpt loads it, which its bitsandbytes plugin packs too."""
    head = LinearShape(name="lm_head", out_features=shape.vocab, in_features=shape.hidden, bias=False, packed=packed)
    return replace(shape, tied=False, head_params=0, counts=(*shape.linear_counts, (head, 1)))


def _quant(text: str, rules: Rules) -> tuple[Quant, bool]:
    """GPTQ, AWQ and HQQ hold 4 bits and about 0.16 bits of 16-bit scales a weight, as NF4 with nested scales does."""
    if any(word in text for word in ("gptq", "awq", "hqq")):
        return Quant.nf4, True
    if re.search(r"nf4|fp4|4-?bit", text.lower()):
        nested = "-dq" in text if rules.double_quant is None else rules.double_quant
        return Quant.nf4, nested
    return (Quant.int8, False) if "8" in text else (Quant.none, False)


def _dtype(body: Mapping[str, Any]) -> str:
    text = str(body.get("compute_dtype"))
    return "fp16" if text.startswith("fp16") else "fp32" if text.startswith("fp32") else "bf16"


def _sharding(body: Mapping[str, Any], rules: Rules) -> Sharding | None:
    text, offload = str(body.get("sharding")), str(body.get("offload"))
    params = "param" in offload
    if re.search("zero-?3", text):
        return Sharding(stage=Stage.zero3, offload_params=params, offload_optimizer="optimizer" in offload)
    if re.search("zero-?2", text) or (rules.deepspeed_full and body["method"] == "full"):
        return Sharding(stage=Stage.zero2, offload_optimizer="optimizer" in offload)
    if "fsdp" in text and "no_shard" not in text:
        # FSDP steps where the parameters are.
        stage = Stage.fsdp2 if "fsdp2" in text else Stage.fsdp
        return Sharding(stage=stage, offload_params=params, offload_optimizer=params, gradients=rules.gradients)
    return None


def _is_fsdp(sharding: Sharding | None) -> bool:
    return sharding is not None and sharding.is_fsdp


def _optimizer(text: str) -> Optimizer:
    if "8bit" not in text:
        return Optimizer.adamw
    return Optimizer.paged_adamw_8bit if "paged" in text.lower() else Optimizer.adamw_8bit


def _logit_chunks(kernel: str, family: str) -> int:
    """Liger's and Unsloth's heads are fused; torchtune's chunked losses take 8 parts by default."""
    if "liger" in kernel or family == "unsloth":
        return 0
    return 8 if "chunk" in kernel or "linear" in kernel else 1


def _metric(body: Mapping[str, Any], rules: Rules) -> str:
    text = str(body.get("peak_metric")).lower()
    if "not stated" in text:
        return rules.metric
    if "nvidia-smi" in text:
        return "device"
    if "allocated" in text or "active" in text:
        return "allocated"
    return "reserved" if "torch reserved" in text else rules.metric


def _measured(body: Mapping[str, Any], rules: Rules) -> int:
    value, unit = float(body["measured_peak_gib"]), str(body.get("peak_unit"))
    return round(value * (rules.unit if unit == "GB_ambiguous" else GIB))


def _card(body: Mapping[str, Any]) -> int:
    """Bytes of the card: the number of GB in its name, of which the driver keeps a part (an 80 GB A100 shows 79.1)."""
    found = re.search(r"(\d+) ?GB", str(body.get("gpu")))
    if found is None:
        msg = f"the card's memory is not told ({body.get('gpu')!r})"
        raise Excluded(msg)
    return int(found.group(1)) * GIB


def other_unit(record: Record) -> float:
    """What an ambiguous GB would be in the other reading, relative to the one taken."""
    unit = RULES.get(record.family, OTHERS).unit
    return GB / GIB if unit == GIB else GIB / GB
