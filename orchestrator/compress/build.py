"""Makes the exchange that a plan asks for; all ranks of the group call this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import Reducer
from orchestrator.compress.exchange import Across, Flat, Gather, Hierarchical, Split
from orchestrator.compress.threshold import Threshold
from orchestrator.compress.transport import Library, Transport
from orchestrator.errors import Problem, UserError
from orchestrator.planner.compression import Codec, CompressionPlan, Exchange

TransportOf = Callable[[dist.ProcessGroup], Transport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducers:
    """The exchanges of a plan, over the same process groups, so one of them at a time.

    Attributes:
        topk: of the largest elements.
        refresh: of all elements; of the same rows, so that both go on from the same residuals.
        transports: of both.
    """

    topk: Reducer
    refresh: Reducer
    transports: tuple[Transport, ...]


def reducers_of(
    plan: CompressionPlan, group: dist.ProcessGroup, clock: Clock, across_by: TransportOf = Library
) -> Reducers:
    """Make the exchanges, and process groups of their own for them.

    Args:
        plan: with a codec.
        group: whose ranks.
        clock: counts the time.
        across_by: makes what moves packets among the ranks that exchange them sparsely.

    Raises:
        UserError: on all ranks, if the islands do not divide the group, or dense gradients were planned.
    """
    ranks, codec = dist.get_process_group_ranks(group), plan.codec
    try:
        whole = plan.pattern(len(ranks)).whole
    except ValueError as error:
        remedy = "plan again for these ranks"
        raise UserError(Problem(where="compress.exchange", found=str(error), remedy=remedy)) from error
    if codec is None:
        raise UserError(Problem(where="compress", found="a plan of dense gradients", remedy="use compress=topk"))
    if plan.exchange is Exchange.hierarchical:
        return _hierarchical(ranks, plan.island, codec, clock, across_by)
    everyone = _groups([ranks])
    # Sizes of the threshold exchange vary, for which no schedule is made.
    library = Library(everyone) if plan.exchange is Exchange.threshold else None
    transport = across_by(everyone) if library is None else library
    refresh = Flat(_across(whole.exchange, transport, codec.whole, clock), codec.whole, clock)
    if library is not None:
        return Reducers(topk=Threshold(library, codec, clock), refresh=refresh, transports=(library,))
    topk = Flat(_across(plan.exchange, transport, codec, clock), codec, clock)
    return Reducers(topk=topk, refresh=refresh, transports=(transport,))


def _hierarchical(ranks: list[int], island: int, codec: Codec, clock: Clock, across_by: TransportOf) -> Reducers:
    islands = [ranks[at : at + island] for at in range(0, len(ranks), island)]
    places = [ranks[at::island] for at in range(island)]
    # Gradients and packets of an island may be under way at once, so each has a group.
    dense, inside = Library(_groups(islands)), Library(_groups(islands))
    transport = across_by(_groups(places))
    # Two islands have nothing to gain from owners: as many bytes, but one more phase and selection.
    few = transport.size <= 2  # noqa: PLR2004
    kind = Exchange.gather if few else Exchange.split
    topk, refresh = (
        Hierarchical(dense, inside, _across(kind, transport, each, clock), each, clock) for each in (codec, codec.whole)
    )
    return Reducers(topk=topk, refresh=refresh, transports=(dense, inside, transport))


def _across(kind: Exchange, transport: Transport, codec: Codec, clock: Clock) -> Across:
    return Gather(transport, codec, clock) if kind is Exchange.gather else Split(transport, codec, clock)


def _groups(parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """A new group of each part, which all ranks make in the same order; returns the one of this rank."""
    made = [(part, dist.new_group(list(part))) for part in parts]
    own: dist.ProcessGroup = next(group for part, group in made if dist.get_rank() in part)
    return own
