"""Memory of a rank whose frozen layers stream: its part of them, the window, what is whole, and the peak of loading."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from orchestrator.config import Quant
from orchestrator.estimate.base import FOUR_BIT, kind_of, linear_absmax_bytes, linear_packed_bytes
from orchestrator.estimate.calibration import BLOCK_WEIGHTS
from orchestrator.estimate.extents import aligned, outside_bytes, stored_of
from orchestrator.estimate.kept import kept
from orchestrator.estimate.load_bytes import LoadPeak, packing_bytes
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.estimate.values import Term
from orchestrator.workload.model import LinearShape
from topology.units import format_bytes

_CHECKPOINT_BYTES: Final = 2  # published checkpoints hold 16-bit weights
_BUNDLE_BYTES: Final = 2**20  # small tensors are read together up to this size (`weights.rounds`)


def share_of(setting: Setting) -> StreamedShare:
    """The part of a streamed setting."""
    if setting.streamed is None:
        msg = "a streamed setting carries its share"
        raise ValueError(msg)
    return setting.streamed


def streamed_terms(setting: Setting) -> tuple[Term, ...]:
    """The base on the device between uses, and the window."""
    share, model = share_of(setting), setting.model
    whole = f", and {format_bytes(share.resident_bytes)} of layers held whole" if share.resident_bytes else ""
    return (
        Term(
            name="base_shard",
            bytes=share.device_bytes + share.resident_bytes,
            why=f"this rank's part of the {share.layers} layers that stream, scales included{whole}",
        ),
        Term(
            name="window",
            bytes=share.window_bytes,
            why=f"{min(share.window, share.layers)} whole layers: the one at work, and those that arrive",
        ),
        Term(
            name="base_unquantised",
            bytes=outside_bytes(model, stored_of(setting), is_gpu=setting.machine.is_gpu),
            why=f"embeddings, final norm and head in {setting.load_dtype}, whole on every rank",
        ),
    )


def staging_bytes(setting: Setting) -> int:
    """Pinned host memory that the drive's bytes pass through: this rank's part of a layer."""
    share = share_of(setting)
    return -(-share.nvme_bytes // max(1, share.layers))


def load_peak(setting: Setting) -> LoadPeak:
    """What loading takes at its peak, when the ranks have read and packed the largest tensors, one each.

    An upper bound of `weights.load_plan.load_peak`: the largest tensor of each kind at the same time, and everything
    that is kept there already.
    """
    share = share_of(setting)
    beside = _beside(setting, alone=share.ranks == 1)
    return replace(beside, kept=share.device_bytes + share.resident_bytes)


@kept(
    *("world_size", "micro", "rows", "accumulation", "checkpointing", "recomputed_layers", "batch", "adapter"),
    *("compute_dtype", "adapter_dtype", "optimizer", "allocator", "zero3", "sparse", "streamed"),
    only_gpu=True,
)
def _beside(setting: Setting, *, alone: bool) -> LoadPeak:
    """What loading takes beside what is kept; `alone` where no other rank sends anything."""
    model, quant = setting.model, setting.quant
    linears = [linear for linear, _ in model.linear_counts]
    packed = [linear for linear in linears if linear.packed and quant is not Quant.none]
    raw = [aligned(linear.weights * _CHECKPOINT_BYTES) for linear in linears]
    made = [_made_bytes(linear, setting) for linear in packed]
    tables = max(model.embedding_params, model.head_params)
    if setting.machine.is_gpu or setting.load_bytes != _CHECKPOINT_BYTES:  # else read straight into its place
        raw.append(aligned(tables * _CHECKPOINT_BYTES))
        made.append(aligned(tables * setting.load_bytes))
    part = max((_made_bytes(linear, setting) for linear in linears), default=0)
    return LoadPeak(
        kept=0,
        raw=max([*raw, _BUNDLE_BYTES]),
        made=max(made, default=0),
        incoming=0 if alone else part,
        passing=max((_packing_bytes(linear, setting) for linear in packed), default=0),
    )


def _made_bytes(linear: LinearShape, setting: Setting) -> int:
    if not linear.packed:
        return aligned(linear.weights * setting.load_bytes)
    kind = kind_of(linear, setting.quant)
    scales = linear_absmax_bytes(linear, kind, double_quant=setting.double_quant)
    return aligned(linear_packed_bytes(linear, kind, setting.load_bytes)) + aligned(scales)


def _packing_bytes(linear: LinearShape, setting: Setting) -> int:
    cast = setting.load_bytes if setting.load_bytes != _CHECKPOINT_BYTES else 0
    kind = kind_of(linear, setting.quant)
    blocks = -(-linear.weights // BLOCK_WEIGHTS) if kind in FOUR_BIT and setting.double_quant else 0
    return packing_bytes(kind.value, linear.weights, blocks=blocks, copy_bytes=cast)


def load_terms(setting: Setting) -> tuple[Term, ...]:
    """The device while the base is loaded; on a CPU all that loading takes."""
    peak = load_peak(setting)
    beside = peak.made + peak.incoming + peak.passing + (0 if setting.machine.is_gpu else peak.raw)
    why = "the tensors that are being packed, and what other ranks send of theirs"
    return (*streamed_terms(setting), Term(name="load_transient", bytes=beside, why=why))
