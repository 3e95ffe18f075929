"""Seconds that one layer's weights, gradients and activations take on links and to the host."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Engine, Offload
from orchestrator.estimate import base, zero3
from orchestrator.estimate import calibration as c
from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate.setting import Setting, Stage, Trained
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.estimate.time_compute import length_of
from orchestrator.estimate.time_practice import Practice

_FP32 = 4
_STREAMED_PASSES = 2
_FSDP_PASSES = 2  # forward, and once for recomputation and backward together


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Seconds of one layer, or of one group of gradients.

    Attributes:
        gather_seconds: of one gather of a layer's weights over the links.
        copy_seconds: of one copy of this rank's share from the offload target.
        activation_seconds: of a layer's input to the host, or back.
        passes: gathers of a layer in a micro-step, on average: 0 where nothing is sharded.
        reduce_seconds: of one group of gradients.
        groups: of a reduction.
        reduces: reductions of a step: one, or one each micro-step.
        gathered_bytes, copied_bytes, reduced_bytes: of one pass over all layers, of one reduction.
    """

    gather_seconds: float
    copy_seconds: float
    activation_seconds: float
    passes: float
    reduce_seconds: float
    groups: int
    reduces: int
    gathered_bytes: float
    copied_bytes: float
    reduced_bytes: float


def shards_weights(setting: Setting) -> bool:
    """Whether layers are gathered before use."""
    if setting.sharding is not None:
        return setting.sharding.stage is not Stage.zero2
    return setting.engine is Engine.zero3


def is_fsdp(setting: Setting) -> bool:
    """Whether torch's FSDP shards the weights."""
    return setting.sharding is not None and setting.sharding.is_fsdp


def trained_bytes(setting: Setting) -> int:
    """Bytes of one copy of all gradients."""
    size = setting.compute_bytes if setting.trained is Trained.everything else setting.adapter_bytes
    return setting.trained_params * size


def moves_of(setting: Setting, practice: Practice) -> Moves:
    """What one rank moves in a micro-step."""
    if setting.streamed is not None:
        return _streamed_moves(setting, setting.streamed)
    layers, machine = setting.model.layers, setting.machine
    passes, gathered, copied = 0.0, 0.0, 0.0
    if shards_weights(setting):
        passes = (practice.gather_passes or _FSDP_PASSES) if is_fsdp(setting) else zero3.gather_passes(setting)
        total = _stored_bytes(setting, practice)
        gathered = total * (setting.world_size - 1) / setting.world_size
        copied = total / setting.world_size if _offloads(setting) else 0.0
    each = machine.link_alpha_seconds if machine.gather_alpha_seconds is None else machine.gather_alpha_seconds
    alpha = each * _collectives(setting) if gathered else 0.0
    reduce_seconds, groups, reduces, reduced = _reduction(setting)
    stored = setting.micro * length_of(setting) * setting.model.hidden * setting.compute_bytes
    return Moves(
        gather_seconds=gathered / layers / machine.gather_bytes_per_second + alpha,
        copy_seconds=copied / layers / offload_rate(setting),
        activation_seconds=stored / machine.h2d_bytes_per_second if setting.offload_activations else 0.0,
        passes=passes,
        reduce_seconds=reduce_seconds,
        groups=groups,
        reduces=reduces,
        gathered_bytes=gathered,
        copied_bytes=copied,
        reduced_bytes=reduced,
    )


def _streamed_moves(setting: Setting, share: StreamedShare) -> Moves:
    """Two passes, forward and backward: a layer that is recomputed is at hand for its own backward pass."""
    part = share.fetched_layers / setting.model.layers
    gather, copy = share.gather_seconds * part, share.copy_seconds * part
    if share.shares_path:
        gather, copy = gather + copy, 0.0
    reduce_seconds, groups, reduces, reduced = _reduction(setting)
    return Moves(
        gather_seconds=gather,
        copy_seconds=copy,
        activation_seconds=0.0,
        passes=_STREAMED_PASSES,
        reduce_seconds=reduce_seconds,
        groups=groups,
        reduces=reduces,
        gathered_bytes=share.gathered_bytes,
        copied_bytes=share.copied_bytes,
        reduced_bytes=reduced,
    )


def offload_rate(setting: Setting) -> float:
    """Bytes per second from the offload target."""
    if setting.zero3 is not None and setting.zero3.offload_param is Offload.nvme:
        return min(c.NVME_BYTES.value * ct.NVME_SHARE.value, setting.machine.h2d_bytes_per_second)
    return setting.machine.h2d_bytes_per_second


def _stored_bytes(setting: Setting, practice: Practice) -> float:
    whole = float(base.packed_bytes(setting) + base.unquantised_bytes(setting))
    if practice.packs_experts and setting.model.expert_params:
        whole -= setting.model.expert_params * (setting.load_bytes - 0.5)
    return whole


def _collectives(setting: Setting) -> int:
    """Gathers that a layer takes: one per module under ZeRO-3, one flat parameter under FSDP."""
    return 1 if is_fsdp(setting) else len(setting.model.linears)


def _offloads(setting: Setting) -> bool:
    if setting.sharding is not None:
        return setting.sharding.offload_params
    return setting.zero3 is not None and setting.zero3.offload_param is not Offload.none


def _reduction(setting: Setting) -> tuple[float, int, int, float]:
    """Seconds of one group, groups, reductions a step, and bytes of one reduction."""
    ranks, machine, size = setting.world_size, setting.machine, trained_bytes(setting)
    if ranks == 1:
        return 0.0, 1, 1, 0.0
    groups = min(setting.model.layers, max(1, -(-size // c.DDP_BUCKET_BYTES)))
    if setting.sparse is not None:
        return setting.sparse.wire_seconds / groups, groups, 1, float(setting.sparse.sent_bytes)
    scattered = shards_weights(setting) or setting.sharding is not None
    # A reduce-scatter sends each byte once, an all-reduce twice.
    ways = 1 if scattered else 2
    # Trees and sums in the switch serve an all-reduce only; gloo scatters no faster or slower than it reduces.
    rate = machine.gather_bytes_per_second if scattered and machine.is_gpu else machine.link_bytes_per_second
    ring = ways * (ranks - 1) / ranks * size / rate
    alpha = ways * (ranks - 1) * groups * machine.link_alpha_seconds
    if scattered and machine.gather_alpha_seconds is not None:
        alpha = groups * machine.gather_alpha_seconds
    # Sharded gradients leave the device after every micro-step.
    return (ring + alpha) / groups, groups, setting.accumulation if scattered else 1, float(size)
