"""All-to-all schedules from the best flow: each pair's data goes by several paths, in exact shares.

Where a path leads through a device, that device receives its piece and sends it on in a later step.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Final

from topology.collectives import Chunk, check_size
from topology.graph import Graph, NodeKind
from topology.routing.concurrent_flow import tidy_flows
from topology.routing.contraction import Contraction
from topology.routing.exchanges import all_to_all_schedule
from topology.schedule import Phase, Schedule, Send

# Shares are multiples of 1/840 of what one device sends another, since 840 is divisible by 1 to 8: rounding costs less
# than 0.1% of a path, and a piece is never a sliver.
PARTS: Final = 840
_NOTHING: Final = 1e-7


def flow_based(graph: Graph) -> Schedule:
    """Follow the best flow, through devices where that helps.

    Raises:
        TopologyError: fewer than two devices, a pair without a path, or wires without a limit.
    """
    return _from_flow("flow_based", graph, relay=True)


def flow_direct(graph: Graph) -> Schedule:
    """Follow the best flow that passes no device on its way: all NICs and uplinks at once.

    Raises:
        TopologyError: fewer than two devices, a pair without a path, or wires without a limit.
    """
    return _from_flow("flow_direct", graph, relay=False)


def _from_flow(name: str, graph: Graph, *, relay: bool) -> Schedule:
    check_size(graph.size)
    flows = tidy_flows(graph, relay=relay)
    chunks: list[Chunk] = []
    sends: list[Send] = []
    for source, shares in enumerate(flows.shares):
        for target, paths in decomposed(flows.small, source, shares).items():
            for arcs, parts in in_parts(paths):
                chunks.append(Chunk(origin=source, target=target, share=Fraction(parts, PARTS * graph.size)))
                sends += _hops(graph, flows.small.path(arcs), len(chunks) - 1)
    sends.sort(key=lambda send: send.step)
    hops = max(send.step for send in sends) + 1
    words = ["sends along the paths of the best flow", *(f"relayed pieces, hop {hop + 1}" for hop in range(1, hops))]
    phases = tuple(Phase(name=word, first=step, last=step) for step, word in enumerate(words))
    return all_to_all_schedule(name, graph, chunks, sends, phases)


def decomposed(
    small: Contraction, source: int, shares: Mapping[int, float]
) -> dict[int, list[tuple[tuple[int, ...], float]]]:
    """Split the flow of a source into paths (arcs) to each other device, whose shares sum to nearly 1 each.

    Each target takes the widest path of what is left until it has all it needs: few paths, and wide ones.
    """
    left = dict(shares)
    leaving: dict[int, list[int]] = {}
    for at in left:
        leaving.setdefault(small.arcs[at].tail, []).append(at)
    found: dict[int, list[tuple[tuple[int, ...], float]]] = {}
    for target in range(small.graph.size):
        if target == source:
            continue
        need, paths = 1.0, list[tuple[tuple[int, ...], float]]()
        while need > _NOTHING and (path := _widest(small, leaving, left, source, target)):
            taken = min(need, *(left[at] for at in path))
            if paths and taken < _NOTHING:
                break
            paths.append((path, taken))
            need -= taken
            for at in path:
                left[at] -= taken
        found[target] = paths
    return found


def in_parts(paths: list[tuple[tuple[int, ...], float]]) -> list[tuple[tuple[int, ...], int]]:
    """Round shares to whole parts that sum to PARTS, by largest remainder; a path without a part falls away."""
    total = sum(share for _, share in paths)
    wanted = [share / total * PARTS for _, share in paths]
    parts = [int(share) for share in wanted]
    behind = sorted(range(len(paths)), key=lambda at: parts[at] - wanted[at])
    for at in behind[: PARTS - sum(parts)]:
        parts[at] += 1
    return [(path, count) for (path, _), count in zip(paths, parts, strict=True) if count]


def _widest(
    small: Contraction, leaving: Mapping[int, list[int]], left: Mapping[int, float], source: int, target: int
) -> tuple[int, ...]:
    """Path of the largest least share; () where nothing is left."""
    best, came = {source: float("inf")}, dict[int, int]()
    queue = [(-best[source], source)]
    while queue:
        width, node = heapq.heappop(queue)
        if node == target:
            break
        if -width < best[node]:
            continue
        for at in leaving.get(node, ()):
            head, wide = small.arcs[at].head, min(-width, left[at])
            if wide > best.get(head, 0.0) and head != source:
                best[head], came[head] = wide, at
                heapq.heappush(queue, (-wide, head))
    if target not in came:
        return ()
    steps, node = list[int](), target
    while node != source:
        steps.append(came[node])
        node = small.arcs[came[node]].tail
    return tuple(reversed(steps))


def _hops(graph: Graph, path: tuple[int, ...], chunk: int) -> list[Send]:
    """One send for each stretch between devices, a step each."""
    heads = [graph.edges[at].head for at in path]
    ends = [0, *(at + 1 for at, head in enumerate(heads) if graph.nodes[head].kind is NodeKind.device)]
    return [
        Send(
            step=step,
            source=graph.edges[path[first]].tail,
            target=heads[last - 1],
            chunk=chunk,
            path=path[first:last],
        )
        for step, (first, last) in enumerate(pairwise(ends))
    ]
