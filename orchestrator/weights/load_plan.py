"""What loading a base will take on each rank, from the jobs alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from orchestrator.weights.cut import Cut
from orchestrator.weights.exchange import Parcel
from orchestrator.weights.jobs import Job
from orchestrator.weights.layout import BaseLayout, Extent, aligned
from orchestrator.weights.load_bytes import LoadPeak, packing_bytes
from orchestrator.weights.produce import conversion_bytes, made_bytes, raw_bytes, target_parts
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


def resident_bytes(skeleton: Skeleton) -> int:
    """Bytes of the parameters and stored buffers that every rank holds."""
    return sum(
        nbytes
        for job in skeleton.plan.jobs
        for name in job.targets
        if name not in skeleton.names
        for nbytes in target_parts(skeleton, name).values()
    )


def load_peak(skeleton: Skeleton, cut: Cut, members: Sequence[int], me: int, device: torch.device) -> LoadPeak:
    """Memory of a rank that packs the base with others.

    Args:
        skeleton: the model and its jobs.
        cut: who keeps what.
        members: ranks of the cut that load together.
        me: place among them.
        device: where packed bytes are made.
    """
    rounds = share_out(skeleton.plan.jobs, len(members))
    mine = [batches[me] for batches in rounds]
    incoming = [
        sum(aligned(p.nbytes) for p in parcels_of(skeleton, cut, members, batches) if p.target == me != p.source)
        for batches in rounds
    ]
    return LoadPeak(
        kept=kept_bytes(cut, skeleton.layout, members[me]) + resident_bytes(skeleton),
        raw=max((raw_bytes(skeleton, batch, device) for batch in mine), default=0),
        made=max((made_bytes(skeleton, batch, device) for batch in mine), default=0),
        incoming=max(incoming, default=0),
        passing=max((_passing(skeleton, batch) for batch in mine), default=0),
    )


def _passing(skeleton: Skeleton, batch: Sequence[Job]) -> int:
    packing = [
        packing_bytes(kind.quant_type, kind.elements)
        for job in batch
        if job.quantises
        for kind in (skeleton.kinds[name] for name in job.targets)
    ]
    return max([*packing, conversion_bytes(batch)], default=0)


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
