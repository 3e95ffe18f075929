"""The best all-to-all a machine allows: maximum concurrent flow, as a linear program.

Every device sends every other one the same rate, lambda; lambda is as large as the wires allow. Flows of one source
are one commodity, so the program has devices x wires + 1 variables. M bytes a rank need at least (M / N) / lambda
seconds (reference: Shahrokhi and Matula, "The maximum concurrent flow problem", 1990).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

from topology.collectives import check_size
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, LinkClass
from topology.routing.contraction import Contraction, contracted
from topology.routing.linear import Program, Solution, solve

_NOTHING: Final = 1e-9  # of the largest rate: what a solver leaves where there is nothing
# What a flow should avoid when several are equally fast: passing through devices, then networks, then long ways.
_RELAY_COST: Final = 16.0
_NETWORK_COST: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentFlow:
    """The largest common rate of all pairs of devices.

    Attributes:
        graph: where.
        relay: whether devices may pass on what is for others.
        bytes_per_second: lambda, the rate of each ordered pair; 0 where some pair has no path, infinite where no wire
            on the way has a limit.
        flows: for each source, edge index to bytes per second; empty where lambda is 0 or infinite.
        bottleneck: indices of the edges that keep lambda from growing.
        prices: of edges: what one MB/s more would add to lambda. They prove the bound (`flow_proof.most_units`).
    """

    graph: Graph
    relay: bool
    bytes_per_second: float
    flows: tuple[Mapping[int, float], ...]
    bottleneck: tuple[int, ...]
    prices: Mapping[int, float]

    @property
    def seconds_per_byte(self) -> float:
        """Least seconds per byte of M (what each rank sends, its own part included)."""
        if self.bytes_per_second == 0:
            return math.inf
        return 1 / (self.graph.size * self.bytes_per_second)

    @property
    def bus_bytes_per_second(self) -> float:
        """What each rank sends to others in a second: (N - 1) lambda, as nccl-tests count."""
        return (self.graph.size - 1) * self.bytes_per_second


@lru_cache(maxsize=64)
def concurrent_flow(graph: Graph, *, relay: bool = True) -> ConcurrentFlow:
    """Solve the all-to-all program of a graph.

    Args:
        graph: of two devices or more.
        relay: whether a device may pass on what is not for it.

    Raises:
        TopologyError: fewer than two devices, or the solver gives up.
    """
    check_size(graph.size)
    small = contracted(graph)
    problem = _Problem(small, relay=relay)
    best = solve(problem.fastest())
    if best is None:
        return ConcurrentFlow(graph=graph, relay=relay, bytes_per_second=math.inf, flows=(), bottleneck=(), prices={})
    rate = float(best.values[-1])
    if rate <= _NOTHING:
        return ConcurrentFlow(graph=graph, relay=relay, bytes_per_second=0.0, flows=(), bottleneck=(), prices={})
    by_source: list[dict[int, float]] = []
    for arcs in problem.by_source(best.values[:-1]):
        total: dict[int, float] = {}
        for at, flow in arcs.items():
            for edge in small.arcs[at].edges:
                total[edge] = total.get(edge, 0.0) + flow * UNIT_BYTES_PER_SECOND
        by_source.append(total)
    return ConcurrentFlow(
        graph=graph,
        relay=relay,
        bytes_per_second=rate * problem.scale * UNIT_BYTES_PER_SECOND,
        flows=tuple(by_source),
        bottleneck=problem.bottleneck(best),
        prices=problem.prices(best),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcFlows:
    """Flows of each source on the arcs of a contraction, in shares of lambda: each target takes 1."""

    small: Contraction
    shares: tuple[Mapping[int, float], ...]


@lru_cache(maxsize=16)
def tidy_flows(graph: Graph, *, relay: bool = True) -> ArcFlows:
    """Among the flows that reach lambda those that pass the fewest devices, networks and wires.

    Raises:
        TopologyError: some pair has no path, nothing limits the flow, or the solver gives up.
    """
    best = concurrent_flow(graph, relay=relay)
    rate = best.bytes_per_second
    if rate in (0.0, math.inf):
        found = "no path between some pair" if rate == 0 else "no wire on the way has a limit"
        remedy = "allow relay through devices" if rate == 0 else "give the links rates, or measure them"
        raise TopologyError(asked=f"flows between {graph.size} devices", found=found, remedy=remedy)
    problem = _Problem(contracted(graph), relay=relay)
    found_tidy = solve(problem.cheapest(rate / problem.scale / UNIT_BYTES_PER_SECOND * (1 - _NOTHING)))
    if found_tidy is None:  # costs are positive: there is always a cheapest one
        raise TopologyError(asked="tidy flows", found="an unbounded program", remedy="report this graph")
    return ArcFlows(small=problem.small, shares=problem.by_source(found_tidy.values / problem.scale))


class _Problem:
    """Variables are the (source, arc) pairs that make sense, then lambda; rates are in parts of `scale` MB/s."""

    def __init__(self, small: Contraction, *, relay: bool) -> None:
        self.small = small
        self._size = size = small.graph.size
        limited = [arc.units for arc in small.arcs if arc.units is not None]
        self.scale = float(max(limited, default=1))
        tails = np.array([arc.tail for arc in small.arcs], dtype=np.intp)
        heads = np.array([arc.head for arc in small.arcs], dtype=np.intp)
        sources = np.arange(size)[:, None]
        useful = heads[None, :] != sources
        if not relay:
            useful &= (tails[None, :] == sources) | (tails[None, :] >= size)
        self._source, self._arc = np.nonzero(useful)
        self._tail, self._head = tails[self._arc], heads[self._arc]

    def _conservation(self) -> tuple[Any, NDArray[np.intp], int]:
        """In minus out for each source and node but the source itself; also which rows are devices'."""
        nodes = self.small.num_nodes
        count = len(self._arc)
        variables = np.arange(count)
        into = self._source * nodes + self._head
        out = self._source * nodes + self._tail
        leaves_source = self._tail == self._source
        rows = np.concatenate([into, out[~leaves_source]])
        columns = np.concatenate([variables, variables[~leaves_source]])
        signs = np.concatenate([np.ones(count), -np.ones(count - int(leaves_source.sum()))])
        kept = np.setdiff1d(np.arange(self._size * nodes), np.arange(self._size) * (nodes + 1))
        matrix = scipy.sparse.csr_matrix((signs, (rows, columns)), shape=(self._size * nodes, count))[kept]
        return matrix, np.nonzero(kept % nodes < self._size)[0], len(kept)

    def _capacity(self) -> tuple[Any, NDArray[np.float64]]:
        limits = np.array([math.inf if arc.units is None else arc.units / self.scale for arc in self.small.arcs])
        matrix = scipy.sparse.csr_matrix(
            (np.ones(len(self._arc)), (self._arc, np.arange(len(self._arc)))), shape=(len(limits), len(self._arc))
        )
        limited = np.isfinite(limits)
        return matrix[limited], limits[limited]

    def fastest(self) -> Program:
        """Maximise lambda."""
        flow, devices, rows = self._conservation()
        capacity, limits = self._capacity()
        taken = scipy.sparse.csr_matrix(
            (-np.ones(len(devices)), (devices, np.zeros(len(devices), dtype=np.intp))), shape=(rows, 1)
        )
        cost = np.zeros(len(self._arc) + 1)
        cost[-1] = -1.0
        return Program(
            cost=cost,
            upper=_beside(capacity, scipy.sparse.csr_matrix((capacity.shape[0], 1))),
            limits=limits,
            equal=_beside(flow, taken),
            amounts=np.zeros(rows),
        )

    def cheapest(self, rate: float) -> Program:
        """With lambda given (parts of the scale), the least cost; flows in MB/s are shares of lambda times rate."""
        flow, devices, rows = self._conservation()
        capacity, limits = self._capacity()
        amounts = np.zeros(rows)
        amounts[devices] = 1.0
        costs = np.array([self._cost(at) for at in range(len(self.small.arcs))])[self._arc]
        costs += _RELAY_COST * ((self._tail < self._size) & (self._tail != self._source))
        return Program(cost=costs, upper=capacity, limits=limits / rate, equal=flow, amounts=amounts)

    def _cost(self, arc: int) -> float:
        edges = [self.small.graph.edges[at] for at in self.small.arcs[arc].edges]
        return len(edges) + _NETWORK_COST * sum(edge.link is LinkClass.network for edge in edges)

    def by_source(self, values: NDArray[np.float64]) -> tuple[dict[int, float], ...]:
        """Flows by source and arc, times the scale, without those that are nothing."""
        found: list[dict[int, float]] = [{} for _ in range(self._size)]
        for at in np.nonzero(values > _NOTHING * max(float(values.max(initial=0.0)), _NOTHING))[0]:
            found[self._source[at]][int(self._arc[at])] = float(values[at]) * self.scale
        return tuple(found)

    def _dear(self, best: Solution) -> dict[int, float]:
        """Arcs that a looser limit would help, with their price."""
        limited = [at for at, arc in enumerate(self.small.arcs) if arc.units is not None]
        least = _NOTHING + 1e-6 * float(best.prices.max(initial=0.0))
        return {at: float(price) for at, price in zip(limited, best.prices, strict=True) if price > least}

    def bottleneck(self, best: Solution) -> tuple[int, ...]:
        """Edges whose looser limit would make lambda grow."""
        return tuple(sorted({edge for at in self._dear(best) for edge in self.small.narrowest(at)}))

    def prices(self, best: Solution) -> dict[int, float]:
        """Price of each such arc, on the first of its narrowest edges."""
        return {self.small.narrowest(at)[0]: price for at, price in self._dear(best).items()}


def _beside(left: Any, right: Any) -> Any:  # noqa: ANN401 - scipy's sparse matrices have no useful type
    return scipy.sparse.hstack([left, right], format="csr")
