"""A Schedule proves itself: what is whole is accepted and moves real data right, what is spoilt is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Chunk, Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing.double_tree import double_tree
from topology.routing.hierarchical import hierarchical, leaders
from topology.routing.packing import packing
from topology.routing.ring import multi_ring, ring
from topology.schedule import Schedule, Send

THREE = (Collective.all_gather, Collective.reduce_scatter, Collective.all_reduce)
MAKERS = {
    "ring": ring,
    "multi_ring": multi_ring,
    "hierarchical": hierarchical,
    "leaders": leaders,
    "packing": packing,
}


def star(size: int, units: int = 100) -> Graph:
    """Devices round one switch."""
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)]
    nodes.append(Node(id="s", kind=NodeKind.nvswitch))
    edges = [
        Edge(tail=tail, head=head, units=units, link=LinkClass.nvlink)
        for at in range(size)
        for tail, head in ((at, size), (size, at))
    ]
    return Graph(nodes=tuple(nodes), edges=tuple(edges), size=size)


@cache
def made(maker: str, collective: Collective) -> Schedule:
    """A schedule over two hosts of two devices."""
    return MAKERS[maker](graph_of(preset("pcie_4090x2", nodes=2)), collective)


@cache
def round_star(size: int, collective: Collective) -> Schedule:
    """The ring over devices round one switch."""
    return ring(star(size), collective)


def spoilt(schedule: Schedule, kind: str, at: int) -> Schedule:
    """The schedule with one thing wrong."""
    sends, at = list(schedule.sends), at % len(schedule.sends)
    send = sends[at]
    if kind == "claim":
        claim = schedule.claimed_seconds_per_unit
        assert claim is not None
        return replace(schedule, claimed_seconds_per_unit=claim * Fraction(10**9 - 1, 10**9))
    if kind == "share":
        chunks = (replace(schedule.chunks[0], share=schedule.chunks[0].share * Fraction(9, 10)), *schedule.chunks[1:])
        return replace(schedule, chunks=chunks)
    other = next(s for s in schedule.sends if (s.source, s.target) != (send.source, send.target))
    changed = {
        "dropped": [],
        "doubled": [send, send],
        "wrong path": [replace(send, path=other.path)],
        "no path": [replace(send, path=())],
        "broken path": [replace(send, path=tuple(reversed(send.path)))],
        "late": [replace(send, step=schedule.num_steps + 1)],
        "stranger": [replace(send, chunk=len(schedule.chunks))],
        "turned": [replace(send, add=not send.add)],
    }
    sends[at : at + 1] = changed[kind]
    return replace(schedule, sends=tuple(sorted(sends, key=lambda one: one.step)))


KINDS = ("dropped", "doubled", "wrong path", "no path", "broken path", "stranger", "claim", "share")


@given(size=st.integers(3, 6), collective=st.sampled_from(THREE), kind=st.sampled_from(KINDS), at=st.integers(0, 10**6))
@settings(max_examples=50)
def test_a_spoilt_ring_is_refused(size: int, collective: Collective, kind: str, at: int) -> None:
    # Every send of a ring is needed, and every edge it uses is a busiest one: nothing may be missing or be there twice.
    whole = round_star(size, collective)
    with pytest.raises(TopologyError, match="correct the builder"):
        spoilt(whole, kind, at)


@given(
    maker=st.sampled_from(sorted(MAKERS)),
    collective=st.sampled_from(THREE),
    kind=st.sampled_from(("dropped", "no path", "stranger", "claim", "share")),
    at=st.integers(0, 10**6),
)
@settings(max_examples=30)
def test_a_spoilt_schedule_of_any_kind_is_refused(maker: str, collective: Collective, kind: str, at: int) -> None:
    whole = made(maker, collective)
    with pytest.raises(TopologyError):
        spoilt(whole, kind, at)


@given(size=st.integers(3, 6), at=st.integers(0, 10**6))
@settings(max_examples=25)
def test_what_comes_too_late_or_is_summed_wrongly_is_refused(size: int, at: int) -> None:
    gather, scatter = round_star(size, Collective.all_gather), round_star(size, Collective.reduce_scatter)
    # The first sends of a chunk: what follows in the ring would have nothing to pass on.
    with pytest.raises(TopologyError, match="nothing of it"):
        spoilt(gather, "late", at % size)
    with pytest.raises(TopologyError, match=r"lose contributions|whole"):
        spoilt(scatter, "turned", at)
    with pytest.raises(TopologyError, match="added twice"):
        spoilt(scatter, "doubled", at)


def test_sends_out_of_order_are_refused() -> None:
    whole = ring(star(3), Collective.all_gather)
    with pytest.raises(TopologyError, match="is listed after"):
        replace(whole, sends=tuple(reversed(whole.sends)))


def test_all_faults_come_at_once_with_a_count() -> None:
    whole = ring(star(6), Collective.all_gather)
    with pytest.raises(TopologyError, match="more") as caught:
        replace(whole, sends=tuple(replace(send, path=()) for send in whole.sends))
    assert len(caught.value.problems) == 9


def plain_loads(schedule: Schedule) -> dict[int, Fraction]:
    found: dict[int, Fraction] = {}
    for send in schedule.sends:
        for at in send.path:
            units = schedule.graph.edges[at].units
            if units is not None:
                found[at] = found.get(at, Fraction(0)) + schedule.chunks[send.chunk].share / units
    return found


def moved(schedule: Schedule, rng: np.random.Generator) -> None:
    """Move numbers as the schedule says, and compare with what the collective promises."""
    size = schedule.size
    given_data = rng.integers(0, 1000, size=(len(schedule.chunks), size))
    state: list[list[int | None]] = [
        [int(given_data[at, rank]) if chunk.origin in (None, rank) else None for rank in range(size)]
        for at, chunk in enumerate(schedule.chunks)
    ]
    for _, step in groupby(schedule.sends, key=lambda send: send.step):
        sends = list(step)
        values = [state[send.chunk][send.source] for send in sends]
        for send, value in zip(sends, values, strict=True):
            assert value is not None
            held = state[send.chunk][send.target]
            state[send.chunk][send.target] = held + value if send.add and held is not None else value
    for at, chunk in enumerate(schedule.chunks):
        want = int(given_data[at].sum()) if chunk.origin is None else int(given_data[at, chunk.origin])
        for rank in range(size) if chunk.target is None else (chunk.target,):
            assert state[at][rank] == want


@pytest.mark.parametrize("collective", THREE)
@pytest.mark.parametrize("name", ["dgx1_v100", "pcie_4090x8", "a100_sxm_x4"])
@pytest.mark.parametrize("maker", sorted(MAKERS))
def test_real_numbers_arrive_and_loads_are_the_plain_sums(maker: str, name: str, collective: Collective) -> None:
    graph = graph_of(preset(name, nodes=2 if name == "a100_sxm_x4" else 1))
    if maker in ("hierarchical", "leaders") and name == "dgx1_v100":
        islands = ((0, 1, 2), (3, 4, 5, 6, 7))
        schedule = MAKERS[maker](graph, collective, islands)
    elif maker in ("hierarchical", "leaders") and name == "pcie_4090x8":
        schedule = MAKERS[maker](graph, collective, ((0, 1), (2, 3, 4), (5,), (6, 7)))
    else:
        schedule = MAKERS[maker](graph, collective)
    moved(schedule, np.random.default_rng(7))
    assert schedule.edge_seconds_per_unit == plain_loads(schedule)
    assert schedule.claimed_seconds_per_unit == max(schedule.edge_seconds_per_unit.values())
    assert schedule.phases[0].first == 0
    assert schedule.phases[-1].last == schedule.num_steps - 1


def test_double_trees_move_real_numbers() -> None:
    for graph in (star(5), star(8), graph_of(preset("pcie_4090x2", nodes=3))):
        moved(double_tree(graph), np.random.default_rng(3))


def test_steps_one_after_the_other_take_longer_than_overlapped() -> None:
    schedule = ring(star(4), Collective.all_reduce)
    # Six steps of M / 4 at 100 MB/s; overlapped each edge carries the same.
    assert schedule.stepwise_seconds_per_byte == pytest.approx(6 / 4 / 100e6)
    assert schedule.overlapped_seconds_per_byte == pytest.approx(6 / 4 / 100e6)
    late = hierarchical(graph_of(preset("pcie_4090x2", nodes=2)), Collective.all_reduce)
    assert late.stepwise_seconds_per_byte > late.overlapped_seconds_per_byte


def test_a_path_over_a_third_device_relays() -> None:
    nodes = tuple(Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(3))
    ends = ((0, 1), (1, 0), (1, 2), (2, 1))
    edges = tuple(Edge(tail=a, head=b, units=10, link=LinkClass.nvlink) for a, b in ends)
    graph = Graph(nodes=nodes, edges=edges, size=3)
    chunks = tuple(Chunk(origin=rank, target=None, share=Fraction(1, 3)) for rank in range(3))
    direct = (((0, 1), (0,)), ((1, 0), (1,)), ((1, 2), (2,)), ((2, 1), (3,)), ((0, 2), (0, 2)), ((2, 0), (3, 1)))
    sends = tuple(Send(step=0, source=a, target=b, chunk=a, path=path) for (a, b), path in direct)
    schedule = Schedule(algorithm="direct", collective=Collective.all_gather, graph=graph, chunks=chunks, sends=sends)
    assert schedule.relays
    assert not ring(star(3), Collective.all_gather).relays
