from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.collectives.layout import Space, Span, block_of, even_blocks, layout_of
from orchestrator.errors import UserError
from topology.collectives import Chunk, Collective
from topology.schedule import Schedule

Drawn = Callable[[int, Collective, int], Schedule]

_ANY = st.integers(0, 2**32)


@given(elements=st.integers(0, 200), blocks=st.integers(1, 9))
def test_even_blocks_fill_the_whole_and_differ_by_one_at_most(elements: int, blocks: int) -> None:
    found = even_blocks(elements, blocks)
    assert sum(found) == elements
    assert max(found) - min(found) <= 1


@given(begin=st.integers(0, 5), size=st.integers(0, 50), pieces=st.integers(1, 9))
def test_pieces_follow_one_another(begin: int, size: int, pieces: int) -> None:
    span = Span(space=Space.data, begin=begin, end=begin + size)
    found = [span.piece(at, pieces) for at in range(pieces)]
    assert (found[0].begin, found[-1].end) == (span.begin, span.end)
    assert all(a.end == b.begin for a, b in pairwise(found))


@given(seed=_ANY, size=st.integers(2, 5), elements=st.integers(0, 60))
def test_chunks_of_a_reduction_fill_the_buffer_once(drawn: Drawn, seed: int, size: int, elements: int) -> None:
    for kind in (Collective.all_reduce, Collective.all_gather, Collective.reduce_scatter):
        layout = layout_of(drawn(seed, kind, size), elements)
        covered = sorted(at for home in layout.homes for at in range(home[0].begin, home[0].end))
        assert covered == list(range(elements))
        assert all(home[rank] == home[0] for home in layout.homes for rank in range(size))


@given(seed=_ANY, size=st.integers(2, 5), data=st.data())
def test_an_exchange_fills_data_result_and_relayed_once(
    drawn: Drawn, seed: int, size: int, data: st.DataObject
) -> None:
    row = st.lists(st.integers(0, 7), min_size=size, max_size=size)
    counts = data.draw(st.lists(row, min_size=size, max_size=size))
    layout = layout_of(drawn(seed, Collective.all_to_all, size), 0, counts)
    for rank in range(size):
        spans = [home[rank] for home in layout.homes if rank in home] + list(layout.own[rank])
        for space, total in (
            (Space.data, sum(counts[rank])),
            (Space.result, sum(line[rank] for line in counts)),
            (Space.relayed, layout.relayed_elements[rank]),
        ):
            covered = sorted(at for s in spans if s.space is space for at in range(s.begin, s.end))
            assert covered == list(range(total))


def test_uneven_blocks_keep_to_their_counts(made: Callable[..., Schedule]) -> None:
    chunks = [Chunk(origin=rank, target=None, share=Fraction(1, 2)) for rank in range(2)]
    gather = made("both", Collective.all_gather, 2, chunks, [(0, 0, 1, 0, False), (0, 1, 0, 1, False)])
    layout = layout_of(gather, 10, (7, 3))
    assert [(home[0].begin, home[0].end) for home in layout.homes] == [(0, 7), (7, 10)]
    assert block_of(gather, 1, 10, (7, 3)) == Span(space=Space.data, begin=7, end=10)


@pytest.mark.parametrize("counts", [(1,), (1, -1), (1, 2, 3)])
def test_counts_that_do_not_fit_are_refused(made: Callable[..., Schedule], counts: tuple[int, ...]) -> None:
    chunks = [Chunk(origin=rank, target=None, share=Fraction(1, 2)) for rank in range(2)]
    gather = made("both", Collective.all_gather, 2, chunks, [(0, 0, 1, 0, False), (0, 1, 0, 1, False)])
    with pytest.raises(UserError, match="one for each rank"):
        layout_of(gather, 10, counts)


def test_an_all_reduce_takes_no_counts_and_an_exchange_wants_rows(drawn: Drawn) -> None:
    with pytest.raises(UserError, match="every rank has the whole"):
        layout_of(drawn(1, Collective.all_reduce, 3), 10, (4, 3, 3))
    with pytest.raises(UserError, match="3 rows of 3"):
        layout_of(drawn(1, Collective.all_to_all, 3), 10, (4, 3, 3))
    with pytest.raises(UserError, match="zero or more"):
        layout_of(drawn(1, Collective.all_reduce, 3), -1)
