"""Schedules as weighted trees: out-trees broadcast a root's part, in-trees sum it at the root.

An all-gather is a set of out-trees, a reduce-scatter one of in-trees, an all-reduce both, tree by tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import lcm

from topology.collectives import Chunk, Collective
from topology.errors import TopologyError
from topology.graph import Graph
from topology.schedule import Phase, Schedule, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One edge of a tree: the send it becomes, at a step counted from the start of the tree's phase."""

    step: int
    source: int
    target: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Hops that lead from the root to every other rank (an out-tree) or from every rank to it (an in-tree).

    `share` is the part of M that moves along it.
    """

    root: int
    share: Fraction
    hops: tuple[Hop, ...]


def schedule_of_trees(
    algorithm: str,
    graph: Graph,
    collective: Collective,
    *,
    out: Sequence[Tree] = (),
    into: Sequence[Tree] = (),
    words: Mapping[str, Sequence[Phase]] | None = None,
) -> Schedule:
    """Make the schedule of a collective from out-trees, in-trees or, for an all-reduce, pairs of both.

    The claim is the load of the busiest edge, counted tree by tree.

    Args:
        algorithm: its name.
        graph: where.
        collective: all_gather needs `out`, reduce_scatter `into`, all_reduce both, with the same roots and shares.
        out: out-trees.
        into: in-trees.
        words: phases of the out-trees (`out`) and of the in-trees (`into`), with steps from 0 on.

    Raises:
        TopologyError: an all-to-all, which no trees carry out.
    """
    words = words or {}
    if collective is Collective.all_gather:
        chunks = [Chunk(origin=tree.root, target=None, share=tree.share) for tree in out]
        parts = [(out, 0, False, words.get("out", ()))]
    elif collective is Collective.reduce_scatter:
        chunks = [Chunk(origin=None, target=tree.root, share=tree.share) for tree in into]
        parts = [(into, 0, True, words.get("into", ()))]
    elif collective is Collective.all_reduce:
        chunks = [Chunk(origin=None, target=None, share=tree.share) for tree in into]
        begin = _num_steps(into)
        parts = [(into, 0, True, words.get("into", ())), (out, begin, False, words.get("out", ()))]
    else:
        raise refusal(algorithm, collective)
    sends = tuple(
        send
        for trees, begin, add, _ in parts
        for send in sorted(_sends(trees, begin, add=add), key=lambda send: send.step)
    )
    phases = tuple(
        Phase(name=phase.name, first=phase.first + begin, last=phase.last + begin)
        for _, begin, _, told in parts
        for phase in told
    )
    return Schedule(
        algorithm=algorithm,
        collective=collective,
        graph=graph,
        chunks=tuple(chunks),
        sends=sends,
        phases=phases,
        claimed_seconds_per_unit=busiest(graph, chain.from_iterable(trees for trees, _, _, _ in parts)),
    )


def refusal(algorithm: str, collective: Collective) -> TopologyError:
    """The error for a collective that an algorithm does not carry out."""
    return TopologyError(
        asked=f"a {algorithm} schedule for {collective.value}",
        found=f"{algorithm} does not carry out {collective.value}",
        remedy="ask for all_gather, reduce_scatter or all_reduce, or choose another algorithm",
    )


def busiest(graph: Graph, trees: Iterable[Tree]) -> Fraction:
    """Seconds per unit of M that the busiest edge needs for all trees."""
    listed = list(trees)
    whole = lcm(*(tree.share.denominator for tree in listed))
    amounts: dict[int, int] = {}
    for tree in listed:
        part = int(tree.share * whole)
        for hop in tree.hops:
            for at in hop.path:
                amounts[at] = amounts.get(at, 0) + part
    loads = (
        Fraction(amount, whole * units)
        for at, amount in amounts.items()
        if (units := graph.edges[at].units) is not None
    )
    return max(loads, default=Fraction(0))


def twins(graph: Graph) -> tuple[int, ...] | None:
    """For each edge one of the same capacity in the other direction, one to one; None if some edge has none."""
    waiting: dict[tuple[int, int, int | None], list[int]] = {}
    for at, edge in enumerate(graph.edges):
        waiting.setdefault((edge.tail, edge.head, edge.units), []).append(at)
    found = []
    for edge in graph.edges:
        other = waiting.get((edge.head, edge.tail, edge.units))
        if not other:
            return None
        found.append(other.pop(0))
    return tuple(found)


def turned(tree: Tree, twin: Sequence[int] | None = None) -> Tree:
    """The tree in the other direction: an out-tree becomes an in-tree, and an in-tree an out-tree.

    Paths turn to the twins of their edges; without twins they keep their edges (the tree was one of the reversed
    graph).
    """
    last = max((hop.step for hop in tree.hops), default=0)
    hops = tuple(
        Hop(
            step=last - hop.step,
            source=hop.target,
            target=hop.source,
            path=tuple(at if twin is None else twin[at] for at in reversed(hop.path)),
        )
        for hop in reversed(tree.hops)
    )
    return Tree(root=tree.root, share=tree.share, hops=hops)


def _num_steps(trees: Sequence[Tree]) -> int:
    return max((hop.step for tree in trees for hop in tree.hops), default=-1) + 1


def _sends(trees: Sequence[Tree], begin: int, *, add: bool) -> list[Send]:
    return [
        Send(step=begin + hop.step, source=hop.source, target=hop.target, chunk=chunk, path=hop.path, add=add)
        for chunk, tree in enumerate(trees)
        for hop in tree.hops
    ]
