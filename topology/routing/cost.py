"""What a schedule costs with what wires really reach: seconds per byte, and the wire that sets it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from topology.graph import UNIT_BYTES_PER_SECOND, Graph, LinkClass
from topology.routing.priors import PathKind, Prior, path_kind, share
from topology.schedule import Schedule, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds per byte of M.

    Attributes:
        overlapped: when all steps run at once on pieces of the data: the busiest edge.
        stepwise: when each step waits for the one before.
        steps: number of steps.
        bottleneck: the busiest edge; None where nothing limits.
        prior: the share of its rate that was reckoned with.
        exchanges: pairs of ranks that send each other data over the busiest edge, in the step with most of them.
        exchanges_at_once: such pairs in the whole schedule.
        over_network: whether the busiest edge is one of the network.
        summed: bytes that the busiest rank adds up, for each byte of M.
        messages: that the rank with most of them sends and receives, if no chunk is cut.
    """

    overlapped: float
    stepwise: float
    steps: int
    bottleneck: int | None
    prior: Prior
    exchanges: int = 0
    exchanges_at_once: int = 0
    over_network: bool = False
    summed: float = 0.0
    messages: int = 0


def cost_of(schedule: Schedule) -> Cost:
    """Reckon a schedule with the shares of `priors`."""
    rates = _Rates(schedule.graph)
    total: dict[int, float] = {}
    stepwise = 0.0
    shares = [float(chunk.share) for chunk in schedule.chunks]
    for _, sends in groupby(schedule.sends, key=lambda send: send.step):
        busy = _loads(sends, shares, rates)
        stepwise += max(busy.values(), default=0.0)
        for at, seconds in busy.items():
            total[at] = total.get(at, 0.0) + seconds
    edge = max(total, key=lambda at: total[at]) if total else None
    prior = Prior(value=1.0, source="nothing limits") if edge is None else rates.prior(edge)
    overlapped = 0.0 if edge is None else total[edge]
    by_step = [_exchanges(sends, edge) for _, sends in groupby(schedule.sends, key=lambda send: send.step)]
    return Cost(
        overlapped=overlapped,
        stepwise=stepwise,
        steps=schedule.num_steps,
        bottleneck=edge,
        prior=prior,
        exchanges=max(by_step, default=0),
        exchanges_at_once=_exchanges(schedule.sends, edge),
        over_network=edge is not None and schedule.graph.edges[edge].link is LinkClass.network,
        summed=_summed(schedule, shares),
        messages=max(Counter(end for send in schedule.sends for end in (send.source, send.target)).values(), default=0),
    )


def _exchanges(sends: Iterable[Send], edge: int | None) -> int:
    """Pairs that send each other data, one of the two over the edge."""
    pairs: dict[tuple[int, int], bool] = {}
    for send in sends:
        over = pairs.get((send.source, send.target), False) or edge in send.path
        pairs[send.source, send.target] = over
    return sum(over and (pair[1], pair[0]) in pairs for pair, over in pairs.items())


def _summed(schedule: Schedule, shares: list[float]) -> float:
    """What the busiest rank adds up."""
    added: dict[int, float] = {}
    for send in schedule.sends:
        if send.add:
            added[send.target] = added.get(send.target, 0.0) + shares[send.chunk]
    return max(added.values(), default=0.0)


def _loads(sends: Iterable[Send], shares: list[float], rates: _Rates) -> dict[int, float]:
    busy: dict[int, float] = {}
    for send in sends:
        part = shares[send.chunk]
        for edge, seconds in rates.of(send.path):
            busy[edge] = busy.get(edge, 0.0) + part * seconds
    return busy


class _Rates:
    """Seconds per byte of the edges of a path, looked up once a path."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._paths: dict[tuple[int, ...], tuple[tuple[int, float], ...]] = {}
        self._kinds: dict[int, PathKind] = {}

    def of(self, path: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
        found = self._paths.get(path)
        if found is None:
            found = self._paths[path] = tuple(self._seconds(path))
        return found

    def prior(self, edge: int) -> Prior:
        return share(self._graph, self._kinds[edge], edge)

    def _seconds(self, path: tuple[int, ...]) -> Iterable[tuple[int, float]]:
        kind = path_kind(self._graph, path)
        for at in path:
            units = self._graph.edges[at].units
            if units is not None:
                self._kinds[at] = kind
                yield at, 1 / (units * UNIT_BYTES_PER_SECOND * share(self._graph, kind, at).value)
