"""Pieces of the picture that have laws of their own: lanes, text widths."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from topology.model import Link
from topology.render.svg_band import Anchor, band_of
from topology.render.svg_fabric import Fabric
from topology.render.svg_style import width_px as line_px
from topology.render.svg_text import clean, shorten, width_px


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Fabric, dict[str, Anchor]]:
    count = draw(st.integers(2, 8))
    split = draw(st.integers(1, count))
    anchors = {
        f"g{at}": Anchor(row=int(at >= split), x=130.0 * (at if at < split else at - split), width=118)
        for at in range(count)
    }
    pairs = draw(st.sets(st.sampled_from(list(combinations(anchors, 2))), min_size=1))
    return Fabric(direct=tuple(Link(a=a, b=b, kind="NV1", source="made") for a, b in sorted(pairs))), anchors


@given(meshes())
@settings(max_examples=80)
def test_no_two_links_share_a_stretch(mesh: tuple[Fabric, dict[str, Anchor]]) -> None:
    fabric, anchors = mesh
    routes = band_of(fabric, anchors).routes
    assert len(routes) == len(fabric.direct)
    ends = [(route.row if route.lane is not None else 0, route.start) for route in routes]
    ends += [(route.row if route.lane is not None else 1, route.end) for route in routes]
    assert len(set(ends)) == len(ends), "two lines leave a GPU at one place"
    for one, other in combinations([route for route in routes if route.lane is not None], 2):
        if (one.row, one.lane) == (other.row, other.lane):
            assert one.end < other.start or other.end < one.start


@given(meshes())
@settings(max_examples=40)
def test_lines_leave_from_the_gpu_they_belong_to(mesh: tuple[Fabric, dict[str, Anchor]]) -> None:
    fabric, anchors = mesh
    for route in band_of(fabric, anchors).routes:
        spans = [(anchors[end].x, anchors[end].x + anchors[end].width) for end in (route.link.a, route.link.b)]
        for x in (route.start, route.end):
            assert any(left < x < right for left, right in spans)


@given(st.text(), st.floats(0, 300), st.sampled_from([9.0, 13.0]), st.booleans())
def test_a_shortened_text_fits_its_room(text: str, room: float, size: float, bold: bool) -> None:
    short = shorten(text, room, size, bold=bold)
    assert width_px(short, size, bold=bold) <= room
    if short != clean(text):
        assert short == "" or short.endswith("\u2026")


@given(st.text(st.characters()))
def test_clean_text_is_one_printable_line(text: str) -> None:
    line = clean(text)
    assert line.isprintable()
    assert clean(line) == line
    line.encode()


def test_lines_never_get_thinner_with_more_capacity() -> None:
    widths = [line_px(rate) for rate in (0.0, 1e9, 16e9, 64e9, 450e9, 900e9, 1e15)]
    assert widths == sorted(widths)
    assert widths[0] > 0
