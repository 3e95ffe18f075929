"""Makes the exchange that a plan asks for; all ranks of the group call this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist

from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import Reducer
from orchestrator.compress.exchange import Across, Flat, Gather, Hierarchical, Split
from orchestrator.compress.threshold import Threshold
from orchestrator.compress.transport import Library, Transport
from orchestrator.errors import Problem, UserError
from orchestrator.planner.compression import Codec, CompressionPlan, Exchange

TransportOf = Callable[[dist.ProcessGroup], Transport]


def reducer_of(
    plan: CompressionPlan, group: dist.ProcessGroup, clock: Clock, across_by: TransportOf = Library
) -> tuple[Reducer, tuple[Transport, ...]]:
    """Make the exchange, and process groups of its own for it.

    Args:
        plan: with a codec.
        group: whose ranks.
        clock: counts the time.
        across_by: makes what moves packets among the ranks that exchange them sparsely.

    Returns:
        The exchange and its transports.

    Raises:
        UserError: on all ranks, if the islands do not divide the group, or dense gradients were planned.
    """
    ranks, codec = dist.get_process_group_ranks(group), plan.codec
    try:
        plan.pattern(len(ranks))
    except ValueError as error:
        remedy = "plan again for these ranks"
        raise UserError(Problem(where="compress.exchange", found=str(error), remedy=remedy)) from error
    if codec is None:
        raise UserError(Problem(where="compress", found="a plan of dense gradients", remedy="use compress=topk"))
    if plan.exchange is not Exchange.hierarchical:
        whole = _groups([ranks])
        if plan.exchange is Exchange.threshold:  # sizes vary, for which no schedule is made
            library = Library(whole)
            return Threshold(library, codec, clock), (library,)
        transport = across_by(whole)
        return Flat(_across(plan.exchange, transport, codec, clock), codec, clock), (transport,)
    islands = [ranks[at : at + plan.island] for at in range(0, len(ranks), plan.island)]
    places = [ranks[at :: plan.island] for at in range(plan.island)]
    # Gradients and packets of an island may be under way at once, so each has a group.
    dense, inside = Library(_groups(islands)), Library(_groups(islands))
    transport = across_by(_groups(places))
    # Two islands have nothing to gain from owners: as many bytes, but one more phase and selection.
    few = transport.size <= 2  # noqa: PLR2004
    across = _across(Exchange.gather if few else Exchange.split, transport, codec, clock)
    return Hierarchical(dense, inside, across, codec, clock), (dense, inside, transport)


def _across(kind: Exchange, transport: Transport, codec: Codec, clock: Clock) -> Across:
    return Gather(transport, codec, clock) if kind is Exchange.gather else Split(transport, codec, clock)


def _groups(parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """A new group of each part, which all ranks make in the same order; returns the one of this rank."""
    made = [(part, dist.new_group(list(part))) for part in parts]
    own: dist.ProcessGroup = next(group for part, group in made if dist.get_rank() in part)
    return own
