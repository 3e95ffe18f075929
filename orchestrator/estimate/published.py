"""Peak bytes of runs under other engines or stacks than our own: what the published measurements are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orchestrator.config import Checkpointing, Quant
from orchestrator.estimate import base, layers, shards, states
from orchestrator.estimate.host_memory import PINNED, host_terms
from orchestrator.estimate.setting import Setting, Stage, Trained
from orchestrator.estimate.values import Memory, PhaseMemory, Term

OWN_STACKS: Final = frozenset({"trl", "hf_plain"})
_FP32: Final = 4
_ROW_BYTES: Final = 40  # ids, labels, shifted labels, positions and mask, 8 bytes each
_FUSED_COPIES: Final = 4  # of the head's input: itself, its gradient in fp32, a chunk of logits


def is_published(setting: Setting) -> bool:
    """Whether the setting describes another engine or stack than our own."""
    return setting.stack not in OWN_STACKS or setting.sharding is not None or setting.calibrated is not None


def estimate_published(setting: Setting) -> Memory:
    """Peaks of loading, training and saving for one rank, in bytes."""
    static = (*base_terms(setting), _workspace(setting), *states.state_terms(setting))
    whole = base.packed_bytes(setting) + base.absmax_bytes(setting) + base.unquantised_bytes(setting)
    in_flight = Term(
        name="load_transient",
        bytes=setting.model.largest_param * setting.load_bytes,
        why="the largest tensor in flight",
    )
    loaded = Term(name="base", bytes=whole, why="the whole base, before it is sharded")
    saving = _save_term(setting)
    resident = sum(term.bytes for term in base_terms(setting))
    share = Term(name="base", bytes=resident, why="each rank loads its share")
    whole_load = setting.sharding is None or setting.loads_whole
    return Memory(
        load=_phase(setting, "load", (loaded if whole_load else share, _workspace(setting), in_flight)),
        train=_phase(setting, "train", (*static, *_training_terms(setting))),
        save=_phase(setting, "save", (*static, saving)),
    )


def base_terms(setting: Setting) -> tuple[Term, ...]:
    """The base as it lies on the device between uses."""
    if setting.sharding is not None and setting.sharding.stage is not Stage.zero2:
        return shards.sharded_terms(setting)
    model = setting.model
    return (
        Term(
            name="base_packed",
            bytes=base.packed_bytes(setting),
            why=f"{model.linear_params:,} weights of linear modules as {setting.quant.value}",
        ),
        Term(name="absmax", bytes=base.absmax_bytes(setting), why="scales of the blocks"),
        Term(
            name="base_unquantised",
            bytes=base.unquantised_bytes(setting),
            why=f"{model.unquantised_params:,} of embeddings, norms, head and biases",
        ),
    )


def _workspace(setting: Setting) -> Term:
    size = round(setting.constants.workspace_bytes)
    return Term(name="workspace", bytes=size, why="cuBLAS workspaces and kernels' buffers")


def _training_terms(setting: Setting) -> tuple[Term, ...]:
    """The largest of the step's peaks: they follow one another."""
    tokens, stack = setting.peak_tokens, setting.constants
    kept = Term(
        name="activations",
        bytes=round(tokens * (layers.kept_per_token(setting, stack) + _ROW_BYTES)),
        why=f"{tokens:,} tokens x {setting.model.layers} layers, checkpointing {setting.checkpointing.value}",
    )
    gathered = shards.gathered_terms(setting)
    gradients = states.gradient_term(setting)
    # Gradients are there from the first micro-step on; with a single one they appear while activations go.
    earlier = (gradients,) if setting.accumulation > 1 or setting.step_in_backward else ()
    step = Term(
        name="optimizer_transient", bytes=states.step_bytes(setting), why="copies that the optimizer's step allocates"
    )
    peaks = (
        (kept, *gathered, *earlier, _head_term(setting)),
        (kept, *gathered, *earlier, _layer_term(setting)),
        (gradients, *gathered, _layer_term(setting, held=False)),
        (gradients, step),
    )
    return max(peaks, key=lambda terms: sum(term.bytes for term in terms))


def _head_term(setting: Setting) -> Term:
    """Peak while the loss is computed."""
    model, tokens, stack, size = setting.model, setting.peak_tokens, setting.constants, setting.compute_bytes
    hidden = 3 * (_FP32 if setting.upcasts else size) * model.hidden * tokens
    if stack.fused_head or not setting.logit_chunks:
        why = "fused head and loss: only chunks of the logits exist"
        return Term(name="logits", bytes=hidden + _FUSED_COPIES * _FP32 * model.hidden * tokens, why=why)
    packed = any(linear.name == "lm_head" and linear.packed for linear, _ in model.linear_counts)
    unpacked = model.vocab * model.hidden * size if packed and setting.quant is not Quant.none else 0
    hidden += unpacked + shards.gathered_at_head(setting)
    element = size if stack.half_loss and not setting.autocast else _FP32
    logits = tokens * model.vocab * stack.logit_copies * element / setting.logit_chunks
    if model.logit_softcap:
        logits += tokens * model.vocab * 2 * element / setting.logit_chunks  # the tanh's result and its gradient
    why = f"{stack.logit_copies:.2f} tensors of {tokens:,} x {model.vocab:,} logits in {element} bytes"
    return Term(name="logits", bytes=round(logits) + hidden, why=why)


def _layer_term(setting: Setting, *, held: bool = True) -> Term:
    """Peak while one layer runs backwards."""
    activations = setting.peak_tokens * layers.transient_per_token(setting, setting.constants)
    if held and setting.sharding and setting.sharding.stage is Stage.fsdp:
        again = setting.constants.held_factor * layers.kept_per_token(setting, setting.constants)
        activations += setting.peak_tokens * again
    recomputed = setting.checkpointing is not Checkpointing.none
    why = "one layer's backward pass: " + ("its recomputed activations, " if recomputed else "") + "gradients"
    unpacked = base.dequantised_bytes(setting) if setting.quant is not Quant.none else 0
    gathered = shards.gathered_at_layer(setting)
    return Term(name="layer_transient", bytes=round(activations) + unpacked + gathered, why=why)


def _save_term(setting: Setting) -> Term:
    """What saving gathers: trained parameters, or under full sharding the largest unit."""
    everything = setting.trained is Trained.everything
    size = shards.layer_bytes(setting) if everything and setting.sharding else 0
    size = size or (0 if everything else setting.trained_params * _FP32)
    return Term(name="save_gather", bytes=size, why="what is collected for the checkpoint")


def _phase(setting: Setting, phase: str, terms: Iterable[Term]) -> PhaseMemory:
    terms = tuple(term for term in terms if term.bytes > 0)
    allocated = sum(term.bytes for term in terms)
    reserved = round(allocated * (1 + setting.constants.slack))
    if setting.loads_whole and phase != "load":
        # Blocks cut for whole parameters do not fit shards: the allocator keeps them beside what training needs.
        reserved += base.packed_bytes(setting) + base.absmax_bytes(setting) + base.unquantised_bytes(setting)
    host = (*host_terms(setting, phase, resident_bytes=0), *states.host_state_terms(setting))
    if setting.offload_activations or setting.constants.offloads_checkpoints:
        size = setting.peak_tokens * setting.model.layers * setting.model.hidden * setting.compute_bytes
        host = (*host, Term(name="offloaded_activations", bytes=size, why="layer inputs in pinned memory"))
    return PhaseMemory(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=reserved + round(setting.constants.context_bytes),
        host_bytes=sum(term.bytes for term in host),
        terms=terms,
        host_terms=host,
        pinned_bytes=sum(term.bytes for term in host if term.name in PINNED),
    )
