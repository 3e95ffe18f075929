"""Bounds and the cuts that set them, and the edges of a graph as arrays (the cuts themselves are found in `nets`)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph

_UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A set of devices, and the edges that limit what leaves it.

    Mostly these are all edges that leave a set of nodes. Where a few devices together can get, or send, no more
    because no switch copies, they are the edges that limit this, some of which may lie between these devices.

    Attributes:
        inside: ranks of the devices in the set.
        edges: indices of the edges of the graph.
        bytes_per_second: what the edges carry together.
    """

    inside: tuple[int, ...]
    edges: tuple[int, ...]
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least time that a collective needs, whatever the algorithm.

    Attributes:
        collective: which one.
        seconds_per_byte: per byte of its size M; 0 where nothing limits it.
        bus_bytes_per_second: the bus bandwidth, as nccl-tests define it, at that time.
        cut: what limits it. None: no edge has a limit. Where no set of devices explains the time, `inside` is empty
            and the edges are those that a larger capacity would help.
    """

    collective: Collective
    seconds_per_byte: Fraction
    bus_bytes_per_second: float
    cut: Cut | None


@dataclass(frozen=True, kw_only=True)
class Arcs:
    """The edges of a graph as arrays; `units` -1 where they limit nothing."""

    tail: NDArray[np.int64]
    head: NDArray[np.int64]
    units: NDArray[np.int64]

    @cached_property
    def reversed(self) -> Arcs:
        """The same, the other way round."""
        return Arcs(tail=self.head, head=self.tail, units=self.units)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether each direction has an equal one opposite."""
        one, other = (
            np.lexsort(keys) for keys in ((self.units, self.head, self.tail), (self.units, self.tail, self.head))
        )
        pairs = ((self.tail, self.head), (self.head, self.tail), (self.units, self.units))
        return all(bool((a[one] == b[other]).all()) for a, b in pairs)

    def is_balanced(self, size: int) -> bool:
        """Whether as much can leave every node that is no device as can enter it."""
        nodes = int(max(self.tail.max(), self.head.max())) + 1
        free = self.units < 0
        for weights in (np.where(free, 0, self.units), free):
            out, into = (np.bincount(ends, weights=weights, minlength=nodes) for ends in (self.tail, self.head))
            if (out[size:] != into[size:]).any():
                return False
        return True


def arcs_of(graph: Graph) -> Arcs:
    """Turn the edges of a graph into arrays."""
    count = len(graph.edges)
    return Arcs(
        tail=np.fromiter((edge.tail for edge in graph.edges), dtype=np.int64, count=count),
        head=np.fromiter((edge.head for edge in graph.edges), dtype=np.int64, count=count),
        units=np.fromiter((_UNLIMITED if e.units is None else e.units for e in graph.edges), np.int64, count),
    )


def cut_of(graph: Graph, arcs: Arcs, inside: NDArray[np.bool_]) -> Cut:
    """The cut that a set of nodes makes (true: inside)."""
    crossing = inside[arcs.tail] & ~inside[arcs.head]
    return Cut(
        inside=tuple(np.nonzero(inside[: graph.size])[0].tolist()),
        edges=tuple(np.nonzero(crossing)[0].tolist()),
        bytes_per_second=float(arcs.units[crossing].sum()) * UNIT_BYTES_PER_SECOND,
    )


def severed(graph: Graph, inside: NDArray[np.bool_], why: str = "nothing leads out of") -> TopologyError:
    """The error of a graph in which no collective can end."""
    names = [graph.nodes[at].id for at in np.nonzero(inside[: graph.size])[0][:8]]
    return TopologyError(
        asked=f"the bound of a collective over {graph.size} devices",
        found=f"{why} {', '.join(names)}",
        remedy="give the links rates above 0, or leave these devices out",
    )
