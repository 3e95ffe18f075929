"""What a software stack adds to the physics: one table of its constants, each with a meaning and a source.

The bytes of weights, adapters, gradients, moments and saved activations are counted; they are the same for everyone
who stores the same things. Stacks differ in how many logit-sized tensors their loss keeps, in what their layers hold
beyond what is counted, in how much the allocator reserves above what is allocated, and in what lies outside it.
At most three constants per stack are fitted to published measurements, by `bench/accuracy.py --fit`; the others are
neutral. What a stack's code does (its flags) is read from its code, not fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from topology.units import GIB, MIB

MAX_FITTED: Final = 3


class Code(Enum):
    """Whose decoder layers run: what they save for the backward pass differs."""

    hf = "hf"
    litgpt = "litgpt"
    torchtune = "torchtune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Constants of one software stack.

    Attributes:
        name: as the settings tell it.
        source: where the flags come from, and what the constants were fitted to.
        logit_copies: logit-sized tensors alive at the loss's peak, each of `loss_bytes` an element.
        layer_factor: bytes of one running layer, times what is counted for it.
        held_factor: under FSDP 1, layer inputs held a second time while layers run backwards.
        slack: reserved bytes above the allocated ones, as a share of these.
        context_bytes: outside the allocator: CUDA context, cuBLAS and NCCL buffers.
        workspace_bytes: allocated once, whatever the model: cuBLAS workspaces, compiled kernels' buffers.
        saved_input_bytes: bytes that a quantised linear module saves per element of its input.
        code: whose layers run.
        half_loss: without autocast the loss stays in the compute dtype.
        fused_head: the loss never holds more than a tile of the logits.
        tables_apart: FSDP shards embedding and head on their own, not with the root module.
        offloads_checkpoints: layer inputs go to pinned host memory.
        fitted: names of the fitted constants.
    """

    name: str
    source: str
    logit_copies: float = 3.0
    layer_factor: float = 1.0
    held_factor: float = 0.0
    slack: float = 0.08
    context_bytes: float = 0.9 * GIB
    workspace_bytes: float = 64 * MIB
    saved_input_bytes: float = 0.0
    code: Code = Code.hf
    half_loss: bool = False
    fused_head: bool = False
    tables_apart: bool = False
    offloads_checkpoints: bool = False
    fitted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject more fitted constants than the data can carry."""
        if len(self.fitted) > MAX_FITTED:
            msg = f"{self.name}: {len(self.fitted)} fitted constants, at most {MAX_FITTED} are allowed"
            raise ValueError(msg)


# A stack that nobody has measured. Three constants are fitted to all families together, each family weighing the same
# and an estimate below the measurement sixteen times; the others are set between what the stacks below needed, so that
# an unknown stack is estimated above rather than below.
DEFAULT: Final = Stack(
    name="default",
    source="fitted to all families of published runs together; the rest set above",
    logit_copies=4.0,
    layer_factor=1.1,
    held_factor=0.6,
    slack=0.17,
    context_bytes=1.8 * GIB,
    workspace_bytes=0.4 * GIB,
    saved_input_bytes=3.0,
    fitted=("logit_copies", "slack", "context_bytes"),
)
_OWN_CONTEXT: Final = 1.1 * GIB  # what most stacks of the table need, rather than the most that any does
# Our own stacks under an engine that shards. Without one, `memory` counts them to the byte instead.
_OWN: Final = (
    Stack(
        name="hf_plain",
        source="today's transformers: 3 logit copies are counted on fake tensors; held inputs and slack as in the "
        "default stack",
        slack=DEFAULT.slack,
        context_bytes=_OWN_CONTEXT,
        held_factor=DEFAULT.held_factor,
    ),
    Stack(
        name="trl",
        source="today's TRL with its fused head; held inputs and slack as in the default stack",
        slack=DEFAULT.slack,
        context_bytes=_OWN_CONTEXT,
        held_factor=DEFAULT.held_factor,
        fused_head=True,
    ),
)
_TABLE: Final = (
    Stack(
        name="qwen",
        source="QwenLM/Qwen finetune.py on transformers 4.3x, DeepSpeed; 55 runs of its README",
        logit_copies=2.8,
        slack=0.16,
        context_bytes=2.5 * GIB,
        half_loss=True,
        fitted=("logit_copies", "slack", "context_bytes"),
    ),
    Stack(
        name="fms",
        source="fms-hf-tuning with fms-acceleration, transformers 4.4x; 29 runs of a100_80gb.csv. 3 logit copies are "
        "counted: fp32 logits, their shifted copy, the log-softmax. Held inputs are what every sharded run needs",
        logit_copies=3.0,
        held_factor=0.9,
        workspace_bytes=0.6 * GIB,
        slack=0.19,
        fitted=("held_factor", "workspace_bytes", "slack"),
    ),
    Stack(
        name="litgpt",
        source="litgpt 0.4 (config hub): the head runs in chunks that all stay; 20 runs of its table",
        logit_copies=5.8,
        layer_factor=1.0,
        saved_input_bytes=4.5,
        half_loss=True,
        code=Code.litgpt,
        fitted=("logit_copies", "layer_factor", "saved_input_bytes"),
    ),
    Stack(
        name="litgpt_2023",
        source="lit-gpt of 2023 with Fabric's FSDP; 19 runs of its table",
        logit_copies=3.0,
        layer_factor=1.2,
        saved_input_bytes=1.5,
        half_loss=True,
        code=Code.litgpt,
        fitted=("logit_copies", "layer_factor", "saved_input_bytes"),
    ),
    Stack(
        name="fsdp_qlora",
        source="AnswerDotAI/fsdp_qlora train.py on transformers 4.38; 12 runs of its benchmarks",
        logit_copies=5.0,
        held_factor=0.0,
        slack=0.09,
        fitted=("logit_copies", "held_factor", "slack"),
    ),
    Stack(
        name="torchtune",
        source="torchtune recipes: FSDP2 with embedding and head sharded on their own; 7 runs of its README",
        logit_copies=3.6,
        workspace_bytes=0.0,
        code=Code.torchtune,
        tables_apart=True,
        fitted=("logit_copies", "workspace_bytes"),
    ),
    Stack(
        name="trl_sft",
        source="TRL's SFT notebook with Liger and activation offload on a T4; 4 runs",
        workspace_bytes=0.0,
        slack=0.27,
        fitted=("workspace_bytes", "slack"),
    ),
    Stack(
        name="hf_fa2",
        source="transformers with FlashAttention 2, as Unsloth compared itself with; longest contexts that fit",
        logit_copies=3.8,
        slack=0.0,
        context_bytes=1.2 * GIB,
        fitted=("logit_copies", "slack", "context_bytes"),
    ),
    Stack(
        name="unsloth",
        source="Unsloth: layer inputs on the host, layers rewritten to overwrite what they no longer need; longest "
        "contexts that fit",
        layer_factor=0.55,
        context_bytes=0.4 * GIB,
        slack=0.07,
        offloads_checkpoints=True,
        fitted=("layer_factor", "context_bytes", "slack"),
    ),
    Stack(
        name="ms_swift",
        source="ms-swift 3 and 4: script headers, whose rows are of unknown length",
        workspace_bytes=0.0,
        slack=0.08,
        fitted=("workspace_bytes", "slack"),
    ),
    Stack(
        name="deepspeed_hf",
        source="DeepSpeed under transformers: not fitted, its one table has figures without a legend",
        logit_copies=3.0,
        half_loss=True,
    ),
)
STACKS: Final[Mapping[str, Stack]] = MappingProxyType({stack.name: stack for stack in (*_TABLE, *_OWN)})
