"""The order in which a schedule passes devices: round a ring, or up a tree."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.schedule import Schedule, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The way of the first chunk, and how many ways there are in all.

    Attributes:
        ring: ranks in the order of a ring; empty for a tree.
        hops: for a tree, how many sends each rank is from its root, by rank; empty for a ring.
        count: different rings, or trees, of all chunks.
    """

    ring: tuple[int, ...] = ()
    hops: tuple[int, ...] = ()
    count: int


def order_of(schedule: Schedule) -> Order | None:
    """Find the ring or the tree that the first chunk takes; None where chunks take neither."""
    by_chunk: dict[int, list[Send]] = defaultdict(list)
    for send in schedule.sends:
        by_chunk[send.chunk].append(send)
    ways = [by_chunk[at] for at in sorted(by_chunk)]
    if not ways:
        return None
    rings = [_ring(sends, schedule.size) for sends in ways]
    if rings[0]:
        return Order(ring=_from_least(rings[0]), count=len({_from_least(ring) for ring in rings if ring}))
    trees = [_tree(sends, schedule.size) for sends in ways]
    if trees[0]:
        return Order(hops=_hops(trees[0]), count=len({tree for tree in trees if tree}))
    return None


def _ring(sends: Sequence[Send], size: int) -> tuple[int, ...]:
    """Ranks in the order that a chunk visits them, one after the other; empty where it is in two places at once."""
    if any(before.target != after.source for before, after in pairwise(sends)):
        return ()
    order = tuple(dict.fromkeys([sends[0].source, *(send.target for send in sends)]))
    # Going on must lead round the same ring, not back over it.
    after = dict(zip(order, (*order[1:], order[0]), strict=True))
    is_round = len(order) == size and all(after[send.source] == send.target for send in sends)
    return order if is_round else ()


def _from_least(ring: tuple[int, ...]) -> tuple[int, ...]:
    """The same ring from its first rank on."""
    if not ring:
        return ()
    at = ring.index(min(ring))
    return (*ring[at:], *ring[:at])


def _tree(sends: Sequence[Send], size: int) -> tuple[int, ...]:
    """The rank that each rank is joined to on the way to the root, the root to itself; empty where it is no tree."""
    sums = [send for send in sends if send.add]
    joined = [(send.source, send.target) for send in sums] or [(send.target, send.source) for send in sends]
    parents = dict(joined)
    roots = [rank for rank in range(size) if rank not in parents]
    if len(joined) != size - 1 or len(parents) != size - 1 or len(roots) != 1:
        return ()
    tree = tuple(parents.get(rank, rank) for rank in range(size))
    seen = {roots[0]}
    for _ in range(size):
        seen |= {rank for rank in range(size) if tree[rank] in seen}
    return tree if len(seen) == size else ()


def _hops(tree: Sequence[int]) -> tuple[int, ...]:
    found = []
    for rank in range(len(tree)):
        here, count = rank, 0
        while tree[here] != here:
            here, count = tree[here], count + 1
        found.append(count)
    return tuple(found)
