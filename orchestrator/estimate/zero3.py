"""What ZeRO-3 leaves on a device: a partition, the scales, and a window of gathered layers."""

from __future__ import annotations

from orchestrator.config import Offload
from orchestrator.estimate import base
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Setting, Zero3Knobs, storage_bytes
from orchestrator.estimate.values import Term


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


def gathered_bytes(setting: Setting) -> int:
    """Bytes of the gathered window: the layer at work, and ahead what prefetch and live limits allow."""
    knobs, size = knobs_of(setting), element_bytes(setting)
    layer, everything = layer_elements(setting), base.packed_bytes(setting) // size
    ahead = min(knobs.prefetch_bucket_size, max(0, knobs.max_live_parameters - layer))
    # Released later than max_reuse_distance allows, a gathered layer stays.
    kept = min(knobs.max_reuse_distance, max(0, knobs.max_live_parameters - layer))
    # The all-gather lands in one flat buffer and is cut into parameters after that: the layer counts twice.
    return min(everything, 2 * layer + max(ahead, kept)) * size


def partitioned_terms(setting: Setting) -> tuple[Term, ...]:
    """The base on the device between uses."""
    knobs, ranks = knobs_of(setting), setting.world_size
    model = setting.model
    small = model.norm_params + model.bias_params
    # Norms and biases are at most a few hidden widths: above the threshold they are partitioned like the rest.
    persistent = small * setting.load_bytes if knobs.param_persistence_threshold >= model.hidden else 0
    partitioned = base.packed_bytes(setting) + base.unquantised_bytes(setting) - persistent
    # On a CPU the offload target is the same memory.
    resident = knobs.offload_param is Offload.none or not setting.machine.is_gpu
    share = -(-partitioned // ranks) if resident else 0
    embedding = model.embedding_params * setting.load_bytes
    where = f"1/{ranks} of the packed base, embeddings and head" if resident else "offloaded"
    return (
        Term(name="base_partition", bytes=share, why=where),
        Term(name="absmax", bytes=base.absmax_bytes(setting), why="scales are no parameters: every rank keeps all"),
        Term(name="persistent_params", bytes=persistent, why="norms and biases, below the persistence threshold"),
        Term(
            name="embedding_gather",
            bytes=embedding if model.tied else 0,
            why="tied to the head, so gathered through the forward pass",
        ),
    )


def gather_passes(*, recompute: bool) -> int:
    """How often a micro-step gathers a layer: forward, backward, and the recomputation's own forward."""
    return 3 if recompute else 2


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
