"""Which groups of devices of a host are alike, so that one of each kind need be scored.

Pairs of nodes get colours by two-dimensional refinement (Weisfeiler and Leman, 1968): two pairs of one colour see the
same wires and the same third nodes. Groups whose pairs have the same colours, refined once more within the group, are
taken for alike: equal up to the symmetry of the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topology.graph import Graph
from topology.routing.contraction import contracted
from topology.routing.linear import mix

MOST_GROUPS: Final = 60_000  # of a host that are looked at one by one; 8 of 16 are 12,870
_ROUNDS: Final = 3
_Words = NDArray[np.uint64]
_ONE: Final = np.uint64(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeGroups:
    """Groups of ranks that are alike: the first of them, and how many there are."""

    ranks: tuple[int, ...]
    count: int


def pair_colours(graph: Graph) -> _Words:
    """Colour of every ordered pair of devices; equal only where the machine looks the same from both."""
    small = contracted(graph)
    size, count = graph.size, small.num_nodes
    colours = np.zeros((count, count), dtype=np.uint64)
    ends = np.array([(arc.tail, arc.head) for arc in small.arcs], dtype=np.intp).reshape(-1, 2)
    units = np.array([0 if arc.units is None else arc.units + 1 for arc in small.arcs], dtype=np.uint64)
    np.add.at(colours, (ends[:, 0], ends[:, 1]), mix(units))
    colours = mix(colours) + mix(mix(colours.T.copy()))
    kind = (np.arange(count) < size).astype(np.uint64)
    colours += mix(kind[:, None] + np.uint64(3)) + mix(kind[None, :] + np.uint64(5))
    colours[np.arange(count), np.arange(count)] += np.uint64(9)
    seen = 0
    while (distinct := len(np.unique(colours))) > seen:
        seen = distinct
        colours = _refined(colours)
    return colours[:size, :size]


def _refined(colours: _Words) -> _Words:
    """Add what each pair sees through every third node."""
    to = mix(colours + _ONE)
    total = mix(colours)
    for third in range(len(colours)):
        total += mix(colours[:, third, None] ^ to[None, third, :])
    return total


def alike_groups(colours: _Words, size: int) -> tuple[AlikeGroups, ...]:
    """All groups of `size` of the devices that have these pair colours, one of each kind, in rank order."""
    groups = np.array(list(combinations(range(len(colours)), size)), dtype=np.intp)
    inside = colours[groups[:, :, None], groups[:, None, :]]
    nodes = np.zeros(groups.shape, dtype=np.uint64)
    for _ in range(_ROUNDS):
        nodes = mix(nodes + mix(inside ^ mix(nodes + _ONE)[:, None, :]).sum(axis=2, dtype=np.uint64))
    marks = mix(nodes).sum(axis=1, dtype=np.uint64)
    _, first, counts = np.unique(marks, return_index=True, return_counts=True)
    found = [
        AlikeGroups(ranks=tuple(int(rank) for rank in groups[at]), count=int(count))
        for at, count in zip(first, counts, strict=True)
    ]
    return tuple(sorted(found, key=lambda group: group.ranks))


def is_countable(devices: int, size: int) -> bool:
    """Whether the groups of `size` devices are few enough to look at each."""
    return math.comb(devices, size) <= MOST_GROUPS
