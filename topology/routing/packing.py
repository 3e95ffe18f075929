"""All-gather, reduce-scatter and all-reduce along packed trees: close to the bottleneck-cut bound on any graph.

That such trees reach the bound of the cuts is ForestColl's theorem (arXiv 2402.06787): switches only pass on, and a
byte crosses an edge as often as a tree does. Of an all-reduce the roots may have unequal parts, which gains where some
devices are joined worse than others.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

from topology.collectives import Collective, check_size
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph
from topology.routing.bound import bound
from topology.routing.forest import Wanted, forest
from topology.routing.trees import Tree, busiest, refusal, schedule_of_trees, turned, twins
from topology.schedule import Phase, Schedule

MOST_DEVICES: Final = 72
ALGORITHM: Final = "packing"

_ENOUGH: Final = Fraction(985, 1000)  # of the bound; equal parts that come so near are kept


def packing(graph: Graph, collective: Collective) -> Schedule:
    """The schedule of packed trees.

    Raises:
        TopologyError: more than MOST_DEVICES devices, or an all-to-all.
    """
    check_size(graph.size)
    if collective is Collective.all_to_all:
        raise refusal(ALGORITHM, collective)
    if graph.size > MOST_DEVICES:
        raise TopologyError(
            asked=f"a {ALGORITHM} schedule over {graph.size} devices",
            found=f"trees are packed for up to {MOST_DEVICES} devices",
            remedy="use a ring or a hierarchy, or pack the trees of a smaller cluster of the same hosts",
        )
    out: tuple[Tree, ...] = ()
    into: tuple[Tree, ...] = ()
    if collective is Collective.all_gather:
        out = forest(graph, Wanted(out=True, into=False)).out
    elif collective is Collective.reduce_scatter:
        into = forest(graph, Wanted(out=False, into=True)).into
    else:
        out, into = _both(graph)
    words = {
        "into": (Phase(name="sum every part along its trees to its root", first=0, last=_last(into)),),
        "out": (Phase(name="broadcast every part along its trees from its root", first=0, last=_last(out)),),
    }
    return schedule_of_trees(ALGORITHM, graph, collective, out=out, into=into, words=words)


def _both(graph: Graph) -> tuple[tuple[Tree, ...], tuple[Tree, ...]]:
    """Pairs of trees for an all-reduce: equal parts for all roots, or unequal ones where equal ones miss the bound."""
    even = _pairs(graph, even=True)
    seconds = busiest(graph, (*even[0], *even[1]))
    if seconds * _ENOUGH <= bound(graph, Collective.all_reduce).seconds_per_byte * UNIT_BYTES_PER_SECOND:
        return even
    uneven = _pairs(graph, even=False)
    return uneven if busiest(graph, (*uneven[0], *uneven[1])) < seconds else even


def _pairs(graph: Graph, *, even: bool) -> tuple[tuple[Tree, ...], tuple[Tree, ...]]:
    """Out-trees and in-trees with the same roots and shares."""
    twin = twins(graph)
    if twin is not None:
        found = forest(graph, Wanted(out=True, into=False, even=even, twin=twin))
        return found.out, tuple(turned(tree, twin) for tree in found.out)
    found = forest(graph, Wanted(out=True, into=True, even=even))
    into, out = paired(found.into, found.out)
    return out, into


def paired(into: tuple[Tree, ...], out: tuple[Tree, ...]) -> tuple[tuple[Tree, ...], tuple[Tree, ...]]:
    """Cut in-trees and out-trees into pairs of equal shares, root by root; both have the same share for each root."""
    first: list[Tree] = []
    second: list[Tree] = []
    for root in sorted({tree.root for tree in out}):
        ins = [tree for tree in into if tree.root == root]
        outs = [tree for tree in out if tree.root == root]
        while ins and outs:
            share = min(ins[0].share, outs[0].share)
            first.append(replace(ins[0], share=share))
            second.append(replace(outs[0], share=share))
            for trees in (ins, outs):
                left = trees[0].share - share
                trees[:1] = [replace(trees[0], share=left)] if left else []
    return tuple(first), tuple(second)


def _last(trees: tuple[Tree, ...]) -> int:
    return max((hop.step for tree in trees for hop in tree.hops), default=0)
