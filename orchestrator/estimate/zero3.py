"""What ZeRO-3 leaves on a device: a partition, the scales, and a window of gathered layers."""

from __future__ import annotations

from orchestrator.config import Offload, Quant
from orchestrator.estimate import base
from orchestrator.estimate import calibration as c
from orchestrator.estimate.recomputed import recomputed_share
from orchestrator.estimate.setting import Setting, Zero3Knobs, storage_bytes
from orchestrator.estimate.values import Term

_FP32 = 4


def element_bytes(setting: Setting) -> int:
    """Bytes of one element of the stored weights: packed bytes travel as elements of a 16-bit type."""
    return storage_bytes(setting.quant, setting.compute_dtype)


def layer_elements(setting: Setting) -> int:
    """Elements of the largest layer as stored, in units of the stored dtype."""
    return -(-base.largest_layer_bytes(setting) // element_bytes(setting))


def knobs_of(setting: Setting) -> Zero3Knobs:
    """The knobs of a zero3 setting."""
    if setting.zero3 is None:
        msg = "a zero3 setting carries its knobs"
        raise ValueError(msg)
    return setting.zero3


def is_alias(setting: Setting) -> bool:
    """Whether a gathered parameter is its own partition: a single rank, with the partition on its device."""
    resident = knobs_of(setting).offload_param is Offload.none or not setting.machine.is_gpu
    return setting.world_size == 1 and resident


def persists(setting: Setting) -> bool:
    """Whether norms and biases, at most a few hidden widths each, stay whole on every rank."""
    return knobs_of(setting).param_persistence_threshold >= setting.model.hidden


def gathered_bytes(setting: Setting, table_elements: int = 0) -> int:
    """Bytes of the gathered window: layers and their adapters.

    Every submodule fetches `prefetch_bucket_size` elements ahead of itself, so the window runs ahead of the
    computation until the live limit stops it, and what the prefetcher has passed is not released before its next
    use (runtime/zero/partitioned_param_coordinator.py, fetch_sub_module and __params_to_release).

    Args:
        setting: the rank's work.
        table_elements: of an embedding or head that is gathered, too, and counts towards the limit.
    """
    if is_alias(setting):
        return 0
    knobs, model, params = knobs_of(setting), setting.model, setting.adapter.params
    small = 0 if persists(setting) else model.norm_params + model.bias_params
    elements = base.packed_bytes(setting) // element_bytes(setting) + small + params
    whole = base.packed_bytes(setting) + small * setting.load_bytes + params * setting.adapter_bytes
    ahead = knobs.max_live_parameters if knobs.prefetch_bucket_size else knobs.max_reuse_distance
    room = ahead - table_elements
    if room > 0 and knobs.prefetch_bucket_size:
        # The limit is looked at before a parameter is fetched: the last one goes beyond it.
        room += max((base.stored_bytes(linear, setting) for linear in model.linears), default=0) // element_bytes(
            setting
        )
    # The layer at work comes whatever the limit says; in the loss none is at work.
    at_work = 0 if table_elements else layer_elements(setting)
    return round(whole * min(1.0, max(room, at_work) / elements))


def held_bytes(setting: Setting) -> int:
    """Packed weights that the graph keeps from the forward to the backward pass, released or not.

    bitsandbytes' 4-bit product saves a view of the gathered weight (autograd/_functions.py, MatMul4Bit, `ctx.tensors`),
    whose storage outlives DeepSpeed's release. DeepSpeed's own product for unquantised weights keeps the parameter.
    """
    is_packed = setting.quant in (Quant.nf4, Quant.fp4)
    if is_alias(setting) or not is_packed:
        return 0
    return round(base.packed_bytes(setting) * (1 - recomputed_share(setting)))


def gathered_at_head(setting: Setting) -> int:
    """Bytes gathered in the loss: the head, unless it is the embedding (a term of its own), and the window."""
    if is_alias(setting):
        return 0
    table = setting.model.vocab * setting.model.hidden
    return gathered_bytes(setting, table) + (0 if setting.model.tied else table * setting.load_bytes)


def state_terms(setting: Setting) -> tuple[Term, ...]:
    """Adapters, gradient buffers and optimizer states of one rank, on its device."""
    knobs, params, size = knobs_of(setting), setting.adapter.params, setting.adapter_bytes
    share = -(-params // setting.world_size)
    offloads = knobs.offload_optimizer is not Offload.none
    # On a CPU the offload target is the same memory.
    resident = not (offloads and setting.machine.is_gpu)
    buffers = knobs.reduce_bucket_size * size + (share * size if resident else 0)
    why = f"a reduction bucket of {knobs.reduce_bucket_size:,} elements"
    if resident:
        buffers += share * (_FP32 if offloads else 0)
        why += " and this rank's share" + (", which offloading keeps in fp32, too" if offloads else "")
    held = share + _whole_adapters(setting)
    terms = [
        Term(name="adapters", bytes=held * size, why=f"this rank's share of {params:,} in {setting.adapter_dtype}"),
        Term(name="gradients", bytes=buffers, why=why),
    ]
    if resident:
        why = "this rank's share of fp32 master copy and two moments"
        terms.append(Term(name="optimizer", bytes=3 * _FP32 * share, why=why))
    return tuple(terms)


def _whole_adapters(setting: Setting) -> int:
    """Elements of adapters below the persistence threshold, which every rank keeps whole beside its share."""
    sizes = [
        (piece.count, piece.rank * width)
        for piece in setting.adapter.all_pieces
        for width in (piece.in_features, piece.out_features)
    ]
    limit = knobs_of(setting).param_persistence_threshold
    return sum(count * elements for count, elements in sizes if elements <= limit)


def partitioned_terms(setting: Setting) -> tuple[Term, ...]:
    """The base on the device between uses."""
    knobs, ranks = knobs_of(setting), setting.world_size
    model = setting.model
    small = model.norm_params + model.bias_params
    # Norms and biases are at most a few hidden widths: above the threshold they are partitioned like the rest.
    persistent = small * setting.load_bytes if persists(setting) else 0
    partitioned = base.packed_bytes(setting) + base.unquantised_bytes(setting) - persistent
    # On a CPU the offload target is the same memory.
    resident = knobs.offload_param is Offload.none or not setting.machine.is_gpu
    share = -(-partitioned // ranks) if resident else 0
    own = -(-persistent // ranks) if resident and not is_alias(setting) else 0
    embedding = model.embedding_params * setting.load_bytes
    where = f"1/{ranks} of the packed base, embeddings and head" if resident else "offloaded"
    return (
        Term(name="base_partition", bytes=share, why=where),
        Term(name="absmax", bytes=base.absmax_bytes(setting), why="scales are no parameters: every rank keeps all"),
        Term(
            name="persistent_params",
            bytes=persistent + own,
            why="norms and biases, below the persistence threshold: whole, and this rank's partition",
        ),
        Term(
            name="embedding_gather",
            bytes=embedding if model.tied and not is_alias(setting) else 0,
            why="tied to the head, so gathered through the forward pass",
        ),
    )


def gather_passes(setting: Setting) -> float:
    """How often a micro-step gathers a layer: forward, backward, and the recomputation's own forward.

    The mean of all layers, where some are recomputed.
    """
    return 2 + recomputed_share(setting)


def moved_bytes_per_gather(setting: Setting) -> tuple[float, float]:
    """Bytes a rank receives over its links, and brings in from the offload target, per gather of everything."""
    total = float(base.packed_bytes(setting) + base.unquantised_bytes(setting))
    received = total * (setting.world_size - 1) / setting.world_size
    offloaded = knobs_of(setting).offload_param is not Offload.none and setting.machine.is_gpu
    return received, total / setting.world_size if offloaded else 0.0


def offload_bytes_per_second(setting: Setting) -> float:
    """Rate of the offload target."""
    if knobs_of(setting).offload_param is Offload.nvme:
        return c.NVME_BYTES.value
    return setting.machine.h2d_bytes_per_second
