"""Pieces of the picture of a route that have laws of their own: orders, lines of text, sizes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.graph import graph_of
from topology.presets import preset
from topology.render.svg_route_order import order_of
from topology.render.svg_route_words import size_text, wrapped
from topology.render.svg_shapes import Font
from topology.render.svg_text import width_px
from topology.routing.all_to_all import direct
from topology.routing.double_tree import double_tree
from topology.routing.ring import ring
from topology.units import GIB, MIB


@given(st.permutations(range(8)))
@settings(max_examples=15)
def test_the_order_of_a_ring_is_the_one_it_was_built_with(order: list[int]) -> None:
    graph = graph_of(preset("dgx_h100"))
    for collective in (Collective.all_gather, Collective.all_reduce):
        found = order_of(ring(graph, collective, order=tuple(order)))
        assert found is not None
        at = order.index(0)
        assert found.ring == (*order[at:], *order[:at])
        assert found.count == 1


def test_the_numbers_of_a_tree_are_its_hops_to_the_root() -> None:
    schedule = double_tree(graph_of(preset("dgx_h100")), Collective.all_reduce)
    found = order_of(schedule)
    assert found is not None
    assert not found.ring
    assert found.count == 2
    hops = dict(enumerate(found.hops))
    assert sorted(hops.values())[:2] == [0, 1]
    up = [send for send in schedule.sends if send.chunk == 0 and send.add]
    assert all(hops[send.source] == hops[send.target] + 1 for send in up)


def test_an_all_to_all_has_no_order() -> None:
    assert order_of(direct(graph_of(preset("dgx_h100")))) is None


@given(st.text(max_size=200), st.floats(20, 400))
@settings(max_examples=60)
def test_lines_fit_and_keep_every_word(words: str, room_px: float) -> None:
    font = Font(size_px=12, bold=True)
    lines = wrapped(words, room_px, font)
    assert " ".join(lines).split() == words.split()
    assert all(" " not in line or width_px(line, 12, bold=True) <= room_px for line in lines)


def test_sizes_are_told_in_binary_units() -> None:
    assert [size_text(size) for size in (1, 1536, 64 * MIB, GIB)] == ["1 B", "1.5 KiB", "64 MiB", "1 GiB"]
