"""Drawn schedules, and a network in memory that delivers as early or as late as it may."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from topology.collectives import Chunk, Collective
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind
from topology.schedule import Schedule, Send

_PATIENCE_SECONDS = 20

Hop = tuple[int, int, int, bool]  # step, source, target, add
Move = tuple[int, int, int, int, bool]  # step, source, target, chunk, add
Key = tuple[int, int, int]  # source, target, tag


def complete_graph(size: int) -> Graph:
    nodes = tuple(Node(id=f"d{rank}", kind=NodeKind.device, host="h") for rank in range(size))
    edges = tuple(
        Edge(tail=a, head=b, units=1000, link=LinkClass.nvlink) for a in range(size) for b in range(size) if a != b
    )
    return Graph(nodes=nodes, edges=edges, size=size)


def drawn_schedule(draw: random.Random, collective: Collective, size: int) -> Schedule:
    """A valid schedule with random shares, trees, detours and steps, from a `random.Random`."""
    chunks: list[Chunk] = []
    sends: list[Move] = []
    part = Fraction(1) if collective is Collective.all_reduce else Fraction(1, size)
    for origin, target in _ends(collective, size):
        weights = [draw.randint(1, 5) for _ in range(draw.randint(1, 3))]
        for weight in weights:
            chunk = Chunk(origin=origin, target=target, share=part * weight / sum(weights))
            for step, source, to, add in _moves(draw, collective, size, origin, target):
                sends.append((step, source, to, len(chunks), add))
            chunks.append(chunk)
    draw.shuffle(sends)
    return schedule_of("drawn", collective, size, chunks, sends)


def schedule_of(
    name: str, collective: Collective, size: int, chunks: Sequence[Chunk], sends: Sequence[Move]
) -> Schedule:
    graph = complete_graph(size)
    edge = {(e.tail, e.head): at for at, e in enumerate(graph.edges)}
    made = [
        Send(step=step, source=a, target=b, chunk=chunk, path=(edge[a, b],), add=add)
        for step, a, b, chunk, add in sorted(sends, key=lambda send: send[0])
    ]
    return Schedule(algorithm=name, collective=collective, graph=graph, chunks=tuple(chunks), sends=tuple(made))


def _ends(collective: Collective, size: int) -> list[tuple[int | None, int | None]]:
    ranks = range(size)
    return {
        Collective.all_reduce: [(None, None)],
        Collective.all_gather: [(rank, None) for rank in ranks],
        Collective.reduce_scatter: [(None, rank) for rank in ranks],
        Collective.all_to_all: [(a, b) for a in ranks for b in ranks if a != b],
    }[collective]


def _moves(draw: random.Random, collective: Collective, size: int, origin: int | None, target: int | None) -> list[Hop]:
    if collective is Collective.all_gather:
        return _tree(draw, size, origin)
    if collective is Collective.reduce_scatter:
        return _sums(draw, size, target)
    if collective is Collective.all_reduce:
        return _all_reduce(draw, size)
    others = [rank for rank in range(size) if rank not in (origin, target)]
    stops = [origin, *draw.sample(others, draw.randint(0, len(others))), target]
    start = draw.randint(0, 2)
    return [(start + at, a, b, False) for at, (a, b) in enumerate(pairwise(stops))]


def _all_reduce(draw: random.Random, size: int) -> list[Hop]:
    way = draw.choice(["trees", "butterfly", "at once", "detour", "detour", "detour"])
    if way == "detour":
        return _detour(draw, size)
    if way == "butterfly" and size & (size - 1) == 0:
        steps = range(size.bit_length() - 1)
        return [(step, rank, rank ^ (1 << step), True) for step in steps for rank in range(size)]
    if way == "at once":
        return [(0, a, b, True) for a in range(size) for b in range(size) if a != b]
    root = draw.randrange(size)
    up = _sums(draw, size, root)
    later = 1 + max(step for step, *_ in up)
    return up + [(step + later, *rest) for step, *rest in _tree(draw, size, root)]


def _detour(draw: random.Random, size: int) -> list[Hop]:
    """Any sends that are allowed, many of them useless, until some rank can sum the rest and copy it to all.

    Unlike in trees, what a rank receives need not depend on what it has sent before.
    """
    full = (1 << size) - 1
    state, moves = [1 << rank for rank in range(size)], []
    step = 0
    while full not in state:
        before = list(state)
        for b in draw.sample(range(size), draw.randint(1, size)):
            a = draw.choice([rank for rank in range(size) if rank != b])
            if not before[a] & before[b]:
                moves.append((step, a, b, True))
                state[b] |= before[a]
            elif not before[b] & ~before[a]:
                moves.append((step, a, b, False))
                state[b] = before[a]
        step += 1
        if step > 3 * size:  # no two disjoint sets may be left
            return _detour(draw, size)
    rounds = [(at + step, a, b, False) for at, a, b, _ in _tree(draw, size, state.index(full))]
    return moves + rounds


def _tree(draw: random.Random, size: int, root: int) -> list[Hop]:
    others = [rank for rank in range(size) if rank != root]
    draw.shuffle(others)
    arrival, moves = {root: -1}, []
    for rank in others:
        parent = draw.choice(list(arrival))
        arrival[rank] = arrival[parent] + draw.randint(1, 3)
        moves.append((arrival[rank], parent, rank, False))
    return moves


def _sums(draw: random.Random, size: int, root: int) -> list[Hop]:
    tree = _tree(draw, size, root)
    last = max(step for step, *_ in tree)
    return [(last - step, child, parent, True) for step, parent, child, _ in tree]


class MemoryNetwork:
    """Sends and receives between threads. A transfer happens once both sides are posted: at once, or (`late`) only
    when one of them is waited for, and a send is not over before its receive is posted. With `in_order` tags are not
    looked at: the first send to a rank meets its first receive from there, as NCCL has it. `after` names transfers
    that must happen only after another one.
    """

    def __init__(self, *, late: bool, in_order: bool = False, after: dict[Key, Key] | None = None) -> None:
        self.late, self.in_order, self.after = late, in_order, after or {}
        self.counts: Counter[tuple[Key, str]] = Counter()
        self.change = threading.Condition()
        self.posted: dict[Key, dict[str, Any]] = {}

    def endpoint(self, rank: int) -> SimpleNamespace:
        def isend(tensor: torch.Tensor, *, group: object, group_dst: int, tag: int) -> SimpleNamespace:
            return self._post((rank, group_dst, tag), "send", tensor)

        def irecv(tensor: torch.Tensor, *, group: object, group_src: int, tag: int) -> SimpleNamespace:
            return self._post((group_src, rank, tag), "receive", tensor)

        return SimpleNamespace(isend=isend, irecv=irecv)

    def _post(self, key: Key, side: str, tensor: torch.Tensor) -> SimpleNamespace:
        with self.change:
            if self.in_order:
                pair = (*key[:2], 0)
                key = (*key[:2], self.counts[pair, side])
                self.counts[pair, side] += 1
            entry = self.posted.setdefault(key, {})
            assert side not in entry, f"{side} {key} twice"
            entry[side] = tensor
            if len(entry) == 2 and not self.late and key not in self.after:
                self._deliver(entry)
            self.change.notify_all()
        return SimpleNamespace(wait=lambda: self._wait(key))

    def _wait(self, key: Key) -> None:
        with self.change:
            entry = self.posted[key]

            def ready() -> bool:
                first = self.after.get(key)
                return (
                    "send" in entry and "receive" in entry and (first is None or "done" in self.posted.get(first, {}))
                )

            if not self.change.wait_for(ready, timeout=_PATIENCE_SECONDS):
                raise RuntimeError(f"stuck in {key}")
            self._deliver(entry)
            self.change.notify_all()

    def _deliver(self, entry: dict[str, Any]) -> None:
        if "done" not in entry:
            assert entry["send"].numel() == entry["receive"].numel()
            entry["receive"].copy_(entry["send"])
            entry["done"] = True


@pytest.fixture(scope="session")
def drawn() -> Callable[[int, Collective, int], Schedule]:
    return lambda seed, collective, size: drawn_schedule(random.Random(seed), collective, size)


@pytest.fixture(scope="session")
def made() -> Callable[..., Schedule]:
    return schedule_of


@pytest.fixture(scope="session")
def network() -> type[MemoryNetwork]:
    return MemoryNetwork
