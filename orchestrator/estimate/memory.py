"""Peak bytes of one rank: sums of named terms, by phase, above rather than below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from orchestrator.config import Engine, Optimizer
from orchestrator.estimate import base
from orchestrator.estimate import calibration as c
from orchestrator.estimate.activations import (
    copy_bytes,
    kept_bytes_per_token,
    unsaved_bytes_per_token,
    whole_bytes_per_token,
)
from orchestrator.estimate.backward import layer_peak
from orchestrator.estimate.blocks import block_of
from orchestrator.estimate.generation import generation_term
from orchestrator.estimate.host_memory import PINNED, host_terms, load_conversion_bytes
from orchestrator.estimate.kept import LINKS, kept
from orchestrator.estimate.masks import mask_buffer_bytes, mask_bytes_per_token
from orchestrator.estimate.published import estimate_published, is_published
from orchestrator.estimate.recomputed import mode_text, recomputed_layers, recomputed_share
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.streamed import load_terms, streamed_terms
from orchestrator.estimate.values import Memory, PhaseMemory, Term
from orchestrator.estimate.zero3 import gathered_at_head, gathered_bytes, held_bytes, partitioned_terms, state_terms
from orchestrator.workload.quant_pattern import kinds_text

_FP32 = 4
_ACTIVATIONS = "activations"
_EXPANDABLE = "expandable_segments:True"
# While nothing runs forward or backward, rows and steps do not matter, nor what links and memory reach.
_NOT_WITHOUT_STEPS = (
    *("micro", "rows", "accumulation", "batch", "checkpointing", "recomputed_layers", "machine.memory_bytes"),
    *("machine.flops_per_second", "machine.memory_bytes_per_second", "machine.device_name", *LINKS),
)


def estimate_memory(setting: Setting) -> Memory:
    """Peaks of loading, training and saving for one rank, in bytes."""
    if is_published(setting):
        return estimate_published(setting)
    kept_bytes = _kept_bytes(setting)
    adapters = _in_training(setting, adapter_terms(setting), kept_bytes)
    train = (*base_terms(setting), *adapters, *_training_terms(setting, kept_bytes))
    training, saving = _phase(setting, "train", train), _saving(setting)
    if not setting.machine.is_gpu:
        saving = _with_training_heap(saving, training)
    return Memory(load=_loading(setting), train=training, save=saving)


@kept(*_NOT_WITHOUT_STEPS, "adapter", "optimizer", "zero3", "sparse")
def _loading(setting: Setting) -> PhaseMemory:
    return _phase(setting, "load", _load_terms(setting))


@kept(*_NOT_WITHOUT_STEPS)
def _saving(setting: Setting) -> PhaseMemory:
    why = "the adapters are collected in fp32 for the checkpoint"
    gather = Term(name="adapter_gather", bytes=setting.adapter.params * _FP32, why=why)
    return _phase(setting, "save", (*base_terms(setting), *adapter_terms(setting), gather))


def _with_training_heap(saving: PhaseMemory, training: PhaseMemory) -> PhaseMemory:
    """A CPU rank saves with part of the heap that training left behind."""
    left = round((training.reserved_bytes - saving.reserved_bytes) * c.HEAP_AFTER_TRAINING_CPU.value)
    if left <= 0:
        return saving
    heap = Term(name="training_heap", bytes=left, why="heap of the training steps that is not returned")
    total = saving.host_bytes + left
    return replace(saving, device_bytes=total, host_bytes=total, host_terms=(*saving.host_terms, heap))


def base_terms(setting: Setting) -> tuple[Term, ...]:
    """The frozen base as it lies on the device between uses."""
    terms = _held_terms(setting)
    buffers = mask_buffer_bytes(setting)
    why = "causal masks that attention modules hold as buffers, one byte a pair of positions"
    return (*terms, Term(name="mask_buffers", bytes=buffers, why=why)) if buffers else terms


def _held_terms(setting: Setting) -> tuple[Term, ...]:
    if setting.engine is Engine.streamed:
        return streamed_terms(setting)
    return partitioned_terms(setting) if setting.engine is Engine.zero3 else replicated_terms(setting)


def replicated_terms(setting: Setting) -> tuple[Term, ...]:
    """The whole base on one device."""
    model, kinds = setting.model, kinds_text(setting.model, setting.quant)
    stored = f"({kinds})" if kinds else f"stored as {setting.quant.value}"
    return (
        Term(
            name="base_packed",
            bytes=base.packed_bytes(setting),
            why=f"{model.linear_params:,} weights of the decoder's linear modules {stored}",
        ),
        Term(
            name="absmax",
            bytes=base.absmax_bytes(setting),
            why="scales of the blocks" + (", quantised again" if setting.double_quant else " in fp32"),
        ),
        Term(
            name="base_unquantised",
            bytes=base.unquantised_bytes(setting),
            why=f"{model.unquantised_params:,} of embeddings, norms, head and biases in {setting.load_dtype}",
        ),
    )


def adapter_terms(setting: Setting) -> tuple[Term, ...]:
    """Adapters, their gradients and moments, and DDP's buckets."""
    params, size = setting.adapter.params, setting.adapter_bytes
    if setting.engine is Engine.zero3:
        return state_terms(setting)
    dtype = setting.adapter_dtype
    moments = 2 * size if setting.optimizer is Optimizer.adamw else c.ADAM_8BIT_BYTES
    terms = [
        Term(name="adapters", bytes=params * size, why=f"{params:,} trainable parameters in {dtype}"),
        Term(name="gradients", bytes=params * size, why="one per adapter parameter, in its dtype"),
        Term(name="optimizer", bytes=round(params * moments), why=f"{setting.optimizer.value}: two moments"),
    ]
    if setting.world_size > 1:
        why = "DDP reduces gradients from buckets of its own"
        terms.append(Term(name="ddp_buckets", bytes=params * size, why=why))
    if setting.sparse is not None:
        why = "gradients that were not sent yet, in fp32, and those of the next step until it is known to be finite"
        terms.append(Term(name="compress_residual", bytes=setting.sparse.residual_bytes, why=why))
        why = "steps since each element was sent, for AdamW's second moments"
        terms.append(Term(name="compress_counts", bytes=setting.sparse.count_bytes, why=why))
        why = "sparse gradients of a bucket: packets sent and received"
        terms.append(Term(name="compress_buffers", bytes=setting.sparse.buffer_bytes, why=why))
    return tuple(terms)


def _in_training(setting: Setting, terms: tuple[Term, ...], kept_bytes: int) -> tuple[Term, ...]:
    """With one forward pass per step, gradients appear only while the kept activations go away."""
    if not _appear_late(setting):
        return terms
    why = "beyond the activations that are gone by the time all gradients exist"
    # Those of a head that is trained whole come first of all, and stay.
    whole = setting.adapter.saved_params * setting.adapter_bytes
    return tuple(
        replace(term, bytes=whole + max(0, term.bytes - whole - kept_bytes), why=why)
        if term.name == "gradients"
        else term
        for term in terms
    )


def _appear_late(setting: Setting) -> bool:
    """Whether no gradient is left over from an earlier forward pass of the same step."""
    return setting.engine is not Engine.zero3 and setting.accumulation == 1


def _kept_bytes(setting: Setting) -> int:
    """Bytes that live from the forward to the backward pass."""
    model, tokens = setting.model, setting.peak_tokens
    # On a CPU: the final norm's input in fp32 and the head's; on a GPU they are in the head's term.
    hidden_states = 0 if setting.machine.is_gpu else (_FP32 + setting.compute_bytes) * model.hidden
    copies = round(copy_bytes(setting) * (1 - recomputed_share(setting)))
    copies += held_bytes(setting) if setting.engine is Engine.zero3 else 0
    layers = model.layers * kept_bytes_per_token(setting) - unsaved_bytes_per_token(setting)
    per_token = layers + mask_bytes_per_token(setting) + hidden_states
    return round(tokens * per_token) + copies


def _training_terms(setting: Setting, kept_bytes: int) -> tuple[Term, ...]:
    model, tokens = setting.model, setting.peak_tokens
    recomputed = recomputed_layers(setting)
    mode = mode_text(setting.checkpointing, None if recomputed in (0, model.layers) else recomputed, model.layers)
    whole = Term(name=_ACTIVATIONS, bytes=kept_bytes, why=f"{tokens:,} tokens x {model.layers} layers, {mode}")
    # These three peaks follow one another, so the largest counts, not the sum.
    peaks = (_head_term(setting), _layer_term(setting, kept_bytes), _step_term(setting, whole))
    peak = max(peaks, key=lambda t: t.bytes)
    return (whole, peak, generation_term(setting, kept_bytes, peak.bytes), *_saved_module_terms(setting))


def _saved_module_terms(setting: Setting) -> tuple[Term, ...]:
    """A new gradient of a module that is trained whole is there in fp32 before it is added to the one so far."""
    saved = setting.adapter.saved
    if not saved:
        return ()
    largest = _FP32 * max(max(module.elements) for module in saved)
    why = "the newest gradient of the largest of the modules that are trained whole, in fp32"
    return (Term(name="saved_module_gradient", bytes=largest, why=why),)


def _head_term(setting: Setting) -> Term:
    """Peak while the loss is computed."""
    model, tokens, size = setting.model, setting.peak_tokens, setting.compute_bytes
    gathered = gathered_at_head(setting) if setting.engine is Engine.zero3 else 0
    counted = setting.counted.logit_bytes if setting.counted else None
    if setting.stack != "trl":
        each = (counted or c.PLAIN_LOSS_BYTES) + (size if block_of(setting).soft_capped else 0)
        logits = round(tokens * (model.vocab * each + _FP32 * model.hidden))
        why = f"{each:.4g} bytes per logit: log-softmax, its gradient and the logits' gradient"
        return Term(name="logits", bytes=logits + gathered, why=why)
    rows = min(tokens, c.HEAD_TILE_TOKENS)
    columns = min(model.vocab, c.HEAD_TILE_VOCAB)
    tile = rows * c.HEAD_TILE_VOCAB * size
    if counted:
        tile = round(tile * counted / c.TILE_LOGIT_BYTES)
    why = f"fused head: tile of {rows} tokens x {c.HEAD_TILE_VOCAB} in {setting.compute_dtype}, fp32 input gradient"
    # Final norm's input and the gradient in fp32, the head's input and the gradient's cast.
    hidden = 2 * (_FP32 + size) * model.hidden
    weights = 0 if setting.load_bytes == size else columns * model.hidden * size
    if not setting.machine.is_gpu:
        # Untouched pages of the tile cost no memory on a host; without Triton the fold makes fp32 copies.
        copies = c.HEAD_TILE_COPIES_CPU.value
        # After that the tile and the head's rows are widened for the product in fp32.
        widened = 0 if size == _FP32 else rows * columns + columns * model.hidden
        tile = rows * columns * size + round(_FP32 * max(rows * columns * copies, widened))
        why = f"fused head without Triton: {copies:.4g} fp32 copies of a {rows} x {columns} tile"
        hidden = _FP32 * model.hidden
    return Term(name="logits", bytes=tile + tokens * hidden + weights + gathered, why=why)


def _layer_term(setting: Setting, kept_bytes: int) -> Term:
    """Peak while one layer runs backwards."""
    size, why = max(_layer_peaks(setting, kept_bytes))
    window = gathered_bytes(setting) if setting.engine is Engine.zero3 else 0
    why += "gradients and a dequantised weight" + (", and the gathered window" if window else "")
    return Term(name="layer_transient", bytes=size + window, why=why)


def _layer_peaks(setting: Setting, kept_bytes: int) -> Iterator[tuple[int, str]]:
    """Bytes beyond all that is kept, while a layer with all its activations runs backwards, and a recomputed one."""
    unpacked, recomputed = base.dequantised_bytes(setting), recomputed_layers(setting)
    factor = (setting.counted.layer_factor if setting.counted else None) or 1.0
    if recomputed < setting.model.layers:
        moment = layer_peak(setting, unpacked, recomputes=False)
        yield round(moment.bytes * factor), f"one layer's backward pass, when {moment.why}: "
    if recomputed:
        moment = layer_peak(setting, unpacked, recomputes=True)
        # The recomputed layers come first, so what the others kept is gone when the last of them runs backwards.
        size = round(moment.bytes * factor) - _gone_bytes(setting, kept_bytes)
        yield size, f"one layer's backward pass, when {moment.why}: its recomputed activations, "


def _gone_bytes(setting: Setting, kept_bytes: int) -> int:
    """What the layers that are not recomputed held, less the gradients that are there in its place."""
    share = 1 - recomputed_share(setting)
    if not share:
        return 0
    whole = setting.peak_tokens * setting.model.layers * whole_bytes_per_token(setting) + copy_bytes(setting)
    gone = share * whole + (held_bytes(setting) if setting.engine is Engine.zero3 else 0)
    if _appear_late(setting):
        gradients = setting.adapter.params * setting.adapter_bytes
        gone -= share * gradients - max(0, gradients - kept_bytes)
    return round(gone)


def _step_term(setting: Setting, whole: Term) -> Term:
    """Peak in the optimizer step, when the activations are gone."""
    copies = setting.adapter.params * (_FP32 if setting.engine is Engine.zero3 else setting.adapter_bytes)
    why = "AdamW's intermediate copy of the adapters"
    if _appear_late(setting):
        gradients = setting.adapter.params * setting.adapter_bytes
        copies += min(gradients, whole.bytes)  # the rest of them is counted already
        why += ", and their gradients"
    return Term(name="optimizer_transient", bytes=max(0, copies - whole.bytes), why=why)


def _load_terms(setting: Setting) -> tuple[Term, ...]:
    if setting.engine is Engine.streamed:
        return load_terms(setting)
    # transformers skips zero.Init for quantised models and DeepSpeed moves the module to the device before
    # it partitions (runtime/engine.py, _configure_distributed_model): every rank holds the whole base once.
    whole = replicated_terms(setting)
    largest = setting.model.largest_linear
    if setting.machine.is_gpu:
        transient = round(c.LOAD_INFLIGHT_TENSORS.value * largest * setting.load_bytes)
        if setting.engine is Engine.zero3:
            transient = largest * setting.load_bytes
        why = "tensors on their way into the quantiser"
    else:
        transient, why = load_conversion_bytes(setting), "weights in the load dtype that wait for the quantiser"
    return (*whole, Term(name="load_transient", bytes=transient, why=why))


def _phase(setting: Setting, phase: str, terms: Iterable[Term]) -> PhaseMemory:
    terms = tuple(term for term in terms if term.bytes > 0)
    allocated = sum(term.bytes for term in terms)
    if not setting.machine.is_gpu:
        kept = sum(term.bytes for term in terms if term.name == _ACTIVATIONS)
        reserved = round(allocated * (1 + c.HEAP_SLACK_CPU.value) + kept * c.HEAP_RETENTION_CPU.value)
        host = host_terms(setting, phase, resident_bytes=reserved)
        total = sum(term.bytes for term in host)
        return PhaseMemory(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=total,
            host_bytes=total,
            terms=terms,
            host_terms=host,
        )
    slack = c.FRAGMENTATION_EXPANDABLE if _EXPANDABLE in setting.allocator else c.FRAGMENTATION
    reserved = round(allocated * (1 + slack.value))
    measured = setting.machine.measured.context_bytes if setting.machine.measured else None
    context = measured or c.CUDA_CONTEXT_BYTES.value
    context += c.RANKS_EXTRA_CONTEXT_BYTES.value if setting.world_size > 1 else 0
    host = host_terms(setting, phase, resident_bytes=0)
    return PhaseMemory(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=reserved + round(context),
        host_bytes=sum(term.bytes for term in host),
        terms=terms,
        host_terms=host,
        pinned_bytes=sum(term.bytes for term in host if term.name in PINNED),
    )
