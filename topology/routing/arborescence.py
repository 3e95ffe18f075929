"""The cheapest tree from a root to all others over a complete digraph (Chu and Liu, Edmonds)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cheapest_tree(costs: NDArray[np.float64], root: int) -> list[int]:
    """Parent of each node in a tree of least total cost; that of the root is the root itself.

    Args:
        costs: `costs[u, v]` of the edge from u to v, not negative; infinite where there is none. Every node must be
            within reach of the root.
        root: where the tree begins.
    """
    work = np.array(costs, dtype=np.float64)
    np.fill_diagonal(work, np.inf)
    work[:, root] = np.inf
    parent = _parents(work, root)
    parent[root] = root
    return parent


def _parents(costs: NDArray[np.float64], root: int) -> list[int]:
    parent: list[int] = costs.argmin(axis=0).tolist()
    parent[root] = root
    cycle = _cycle(parent, root)
    if not cycle:
        return parent
    # The cycle becomes one node, last in the smaller problem: an edge into it also breaks the cycle's edge there.
    size = len(parent)
    inside = np.array(cycle)
    outside = np.array([node for node in range(size) if node not in set(cycle)])
    saved = costs[np.array([parent[node] for node in cycle]), inside]
    entering = costs[np.ix_(outside, inside)] - saved
    leaving = costs[np.ix_(inside, outside)]
    count = len(outside)
    smaller = np.full((count + 1, count + 1), np.inf)
    smaller[:count, :count] = costs[np.ix_(outside, outside)]
    smaller[:count, count] = entering.min(axis=1)
    smaller[count, :count] = leaving.min(axis=0)
    found = _parents(smaller, int(np.flatnonzero(outside == root)[0]))
    for at, node in enumerate(outside.tolist()):
        if node == root:
            continue
        above = found[at]
        parent[node] = int(inside[leaving[:, at].argmin()]) if above == count else int(outside[above])
    broken = int(entering[found[count]].argmin())
    parent[cycle[broken]] = int(outside[found[count]])
    return parent


def _cycle(parent: list[int], root: int) -> list[int]:
    """A cycle of the parents, if there is one."""
    seen = [-1] * len(parent)
    seen[root] = len(parent)
    for start in range(len(parent)):
        node = start
        while seen[node] == -1:
            seen[node] = start
            node = parent[node]
        if seen[node] == start:
            cycle = [node]
            while parent[cycle[-1]] != node:
                cycle.append(parent[cycle[-1]])
            return cycle
    return []
