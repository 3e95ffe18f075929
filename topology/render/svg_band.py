"""The band beside or between rows of GPUs: where each NVLink leaves its GPU and which way it takes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.model import Link
    from topology.render.svg_fabric import Bar, Fabric

BAR_HEIGHT: Final = 26.0
_BAR_PITCH: Final = 68.0
_BAR_GAP: Final = 36.0
_LANE_PITCH: Final = 17.0
_MOST_LANES_PX: Final = 420.0
_CROSS_HEIGHT: Final = 64.0
_EDGE: Final = 14.0
_LANE_MARGIN: Final = 8.0
_BAR_MARGIN: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The edge of a GPU that faces the band: its row (0 above the band, 1 below it) and x range."""

    row: int
    x: float
    width: float

    @property
    def middle(self) -> float:
        """The x of the centre."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A direct link: from x to x, in a lane of its row; `lane` is None for a link between the rows.

    In a lane, `link.a` is the left end.
    """

    link: Link
    start: float
    end: float
    row: int
    lane: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlace:
    """A bar with its x range, its lane, and the x of each link."""

    bar: Bar
    left: float
    right: float
    lane: int
    ends: tuple[tuple[float, int, Link], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """All ways in the band, and its zones: lanes of row 0, bars, links between rows, lanes of row 1."""

    routes: tuple[Route, ...]
    bars: tuple[BarPlace, ...]
    lanes: tuple[int, int]
    num_bar_lanes: int

    @property
    def pitch(self) -> float:
        """Distance of lanes, less where there are very many."""
        most = max(*self.lanes, 1)
        return min(_LANE_PITCH, _MOST_LANES_PX / most)

    @property
    def has_crossing(self) -> bool:
        """Whether links go from one row to the other."""
        return any(route.lane is None for route in self.routes)

    def lane_y(self, route: Route) -> float:
        """Where a lane lies, from the top of the band."""
        depth = (route.lane or 0) * self.pitch + _LANE_PITCH
        return depth if route.row == 0 else self.height - depth

    @property
    def _zone_0(self) -> float:
        return (self.lanes[0] * self.pitch + 8) if self.lanes[0] else 0.0

    @property
    def cross(self) -> tuple[float, float]:
        """Top and bottom of the zone where links between the rows may slant."""
        top = self._zone_0 + self._bars_height
        return top, top + (_CROSS_HEIGHT if self.has_crossing else 0.0)

    @property
    def _bars_height(self) -> float:
        return self.num_bar_lanes * _BAR_PITCH + (_BAR_GAP - (_BAR_PITCH - BAR_HEIGHT) if self.num_bar_lanes else 0)

    def bar_y(self, place: BarPlace) -> float:
        """Where a bar begins, from the top of the band."""
        return self._zone_0 + _BAR_GAP + place.lane * _BAR_PITCH

    @property
    def height(self) -> float:
        """Height of the band."""
        lanes_1 = self.lanes[1] * self.pitch + 8 if self.lanes[1] else 0.0
        reaches_below = any(row for bar in self.bars for _, row, _ in bar.ends)
        below = (_BAR_GAP if reaches_below else _LANE_PITCH) if self.num_bar_lanes else 0.0
        content = self.cross[1] + below + lanes_1
        return content + (4 if content else 0)


def band_of(fabric: Fabric, anchors: Mapping[str, Anchor]) -> Band:
    """Route every link of the fabric."""
    xs = _ends(fabric, anchors)
    routes: list[Route] = []
    taken: tuple[list[list[tuple[float, float]]], ...] = ([], [])
    for link in sorted(fabric.direct, key=lambda one: _span(one, anchors)):
        a, b = anchors[link.a], anchors[link.b]
        start, end = xs[link.a, link.b], xs[link.b, link.a]
        if a.row != b.row:
            if a.row:
                start, end = end, start
            routes.append(Route(link=link, start=start, end=end, row=0, lane=None))
        else:
            # From left to right, whichever end the link names first.
            one = link if start <= end else replace(link, a=link.b, b=link.a)
            low, high = min(start, end), max(start, end)
            lane = _free_lane(taken[a.row], low - _LANE_MARGIN, high + _LANE_MARGIN)
            routes.append(Route(link=one, start=low, end=high, row=a.row, lane=lane))
    bars = _bar_places(fabric.bars, anchors, xs)
    num_bar_lanes = max((place.lane + 1 for place in bars), default=0)
    return Band(routes=tuple(routes), bars=bars, lanes=(len(taken[0]), len(taken[1])), num_bar_lanes=num_bar_lanes)


def _span(link: Link, anchors: Mapping[str, Anchor]) -> float:
    return abs(anchors[link.a].middle - anchors[link.b].middle)


def _free_lane(lanes: list[list[tuple[float, float]]], low: float, high: float) -> int:
    for at, lane in enumerate(lanes):
        if all(end <= low or start >= high for start, end in lane):
            lane.append((low, high))
            return at
    lanes.append([(low, high)])
    return len(lanes) - 1


def _ends(fabric: Fabric, anchors: Mapping[str, Anchor]) -> dict[tuple[str, str], float]:
    # Near partners at the outside: then ways to one side never cross those of the same GPU.
    wishes: dict[str, list[tuple[int, float, str]]] = defaultdict(list)
    for link in fabric.direct:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            wishes[here].append((*_wish(anchors[here], anchors[there]), there))
    for at, bar in enumerate(fabric.bars):
        for name, _ in bar.links:
            wishes[name].append((1, float(at), f"bar {at}"))
    xs: dict[tuple[str, str], float] = {}
    for name, wanted in wishes.items():
        anchor, room = anchors[name], anchors[name].width - 2 * _EDGE
        for at, (_, _, there) in enumerate(sorted(wanted)):
            xs[name, there] = anchor.x + _EDGE + room * (at + 0.5) / len(wanted)
    return xs


def _wish(here: Anchor, there: Anchor) -> tuple[int, float]:
    distance = there.middle - here.middle
    if here.row != there.row:
        return 1, there.middle
    return (0, -distance) if distance < 0 else (2, -distance)


def _bar_places(
    bars: Sequence[Bar],
    anchors: Mapping[str, Anchor],
    xs: Mapping[tuple[str, str], float],
) -> tuple[BarPlace, ...]:
    # Bars of the upper row first, then those of both, then those of the lower one.
    def rows(bar: Bar) -> tuple[int, ...]:
        return tuple(sorted({anchors[name].row for name, _ in bar.links}))

    places: list[BarPlace] = []
    taken: list[list[tuple[float, float]]] = []
    rank = {(0,): 0, (0, 1): 1, (1,): 2}
    group, first = None, 0
    for at, bar in sorted(enumerate(bars), key=lambda item: rank[rows(item[1])]):
        if rows(bar) != group:
            group, first = rows(bar), len(taken)
        left = min(anchors[name].x for name, _ in bar.links)
        right = max(anchors[name].x + anchors[name].width for name, _ in bar.links)
        later = taken[first:]
        lane = first + _free_lane(later, left - _BAR_MARGIN, right + _BAR_MARGIN)
        taken[first:] = later
        ends = tuple((xs[name, f"bar {at}"], anchors[name].row, link) for name, link in bar.links)
        places.append(BarPlace(bar=bar, left=left, right=right, lane=lane, ends=ends))
    return tuple(places)
