"""What loading a base will take on each rank, from the jobs alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers.pytorch_utils import Conv1D

from orchestrator.weights.cut import Cut
from orchestrator.weights.exchange import Parcel
from orchestrator.weights.jobs import STORED_TYPES, Job
from orchestrator.weights.layout import BaseLayout, Extent, aligned
from orchestrator.weights.load_bytes import LoadPeak, packing_bytes
from orchestrator.weights.produce import is_direct, made_bytes, raw_bytes, target_parts
from orchestrator.weights.rounds import overlap, share_out
from orchestrator.weights.skeleton import Skeleton


def spans_of(cut: Cut, layout: BaseLayout, rank: int, layer: int) -> tuple[tuple[int, int], ...]:
    """Which bytes of a layer a rank keeps: its pieces, or all of a layer that every rank holds."""
    pieces = cut.layers[layer]
    if not pieces:
        return ((0, layout.layer_bytes[layer]),)
    return tuple((piece.begin, piece.end) for piece in pieces if piece.rank == rank)


def gaps(extent: Extent) -> Iterator[tuple[int, int]]:
    """Bytes of an extent that no tensor has."""
    at = 0
    for item in extent.items:
        if item.offset > at:
            yield at, item.offset
        at = item.end
    if extent.nbytes > at:
        yield at, extent.nbytes


def kept_bytes(cut: Cut, layout: BaseLayout, rank: int) -> int:
    """Bytes of all layers that a rank keeps, in any tier."""
    return sum(end - begin for layer in range(layout.num_layers) for begin, end in spans_of(cut, layout, rank, layer))


def resident_bytes(skeleton: Skeleton, jobs: Sequence[Job]) -> int:
    """Bytes of the parameters and stored buffers among what jobs make that every rank holds."""
    return sum(
        nbytes
        for job in jobs
        for name in job.targets
        if name not in skeleton.names
        for nbytes in target_parts(skeleton, name).values()
    )


def load_peak(skeleton: Skeleton, cut: Cut, members: Sequence[int], me: int, device: torch.device) -> LoadPeak:
    """Memory of a rank that packs the base with others, when it holds most.

    Args:
        skeleton: the model and its jobs.
        cut: who keeps what.
        members: ranks of the cut that load together.
        me: place among them.
        device: where packed bytes are made.
    """
    share = kept_bytes(cut, skeleton.layout, members[me])
    resident = raw = made = incoming = 0
    peaks = []
    for batches in share_out(skeleton.plan.jobs, len(members)):
        raw = max(raw, raw_bytes(skeleton, batches[me], device))
        made = max(made, made_bytes(skeleton, batches[me], device))
        direct = sum(job.read_bytes for job in batches[me] if is_direct(skeleton, job, device))
        passing = _passing(skeleton, batches[me])
        terms = {"raw": raw, "made": made}
        peaks.append(LoadPeak(kept=share + resident + direct, incoming=incoming, passing=passing, **terms))
        resident += resident_bytes(skeleton, [job for batch in batches for job in batch])
        parcels = parcels_of(skeleton, cut, members, batches)
        incoming = max(incoming, sum(aligned(p.nbytes) for p in parcels if p.target == me != p.source))
        # What a conversion made is kept until it has been passed on.
        passing = max((_cast_bytes(job) for job in batches[me] if _converts(skeleton, job)), default=0)
        peaks.append(LoadPeak(kept=share + resident, incoming=incoming, passing=passing, **terms))
    return max(peaks, key=lambda peak: peak.total)


def _passing(skeleton: Skeleton, batch: Sequence[Job]) -> int:
    packing = [_packing(skeleton, job, name) for job in batch if job.quantises for name in job.targets]
    # What is read, cast, and what is made of it: conversions hold both.
    conversions = [2 * _cast_bytes(job) for job in batch if _converts(skeleton, job)]
    return max([*packing, *conversions], default=0)


def _packing(skeleton: Skeleton, job: Job, name: str) -> int:
    kind = skeleton.kinds[name]
    module = skeleton.model.get_submodule(name.rpartition(".")[0])
    stored = STORED_TYPES[job.inputs[0].stored.dtype]
    is_turned = issubclass(getattr(module, "source_cls", type(module)), Conv1D)
    is_cast = stored != kind.dtype and kind.quant_type != "int8"  # in the measured bytes of int8 there is one
    copy_bytes = is_cast * kind.dtype.itemsize + is_turned * stored.itemsize
    blocks = kind.blocks if kind.nested_block else 0
    return packing_bytes(kind.quant_type, kind.elements, blocks=blocks, copy_bytes=copy_bytes)


def _converts(skeleton: Skeleton, job: Job) -> bool:
    return not job.is_plain and (job.first not in skeleton.kinds or job.quantises)


def _cast_bytes(job: Job) -> int:
    return sum(x.stored.nbytes // STORED_TYPES[x.stored.dtype].itemsize * x.result_type.itemsize for x in job.inputs)


def parcels_of(
    skeleton: Skeleton, cut: Cut, members: Sequence[int], batches: Sequence[Sequence[Job]]
) -> Iterator[Parcel]:
    """Who gets what of the layers' parameters that a round makes; the same on all ranks."""
    for source, batch in enumerate(batches):
        for name in (name for job in batch for name in job.targets if name in skeleton.names):
            layer, short = skeleton.names[name]
            items = skeleton.layout.extents[layer].by_key
            for role, nbytes in target_parts(skeleton, name).items():
                offset = items[short, role].offset
                for at, rank in enumerate(members):
                    for span in spans_of(cut, skeleton.layout, rank, layer):
                        part = overlap(offset, nbytes, *span)
                        if part is not None:
                            yield Parcel(
                                source=source,
                                target=at,
                                layer=layer,
                                begin=offset + part.begin,
                                nbytes=part.nbytes,
                                key=(name, role),
                                offset=part.begin,
                            )
