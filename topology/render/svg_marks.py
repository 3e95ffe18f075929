"""What a picture stresses: links by how busy they are, a cut across some, devices by their part in it.

Without any marks everything is drawn as it is: `Marks()` changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.render.svg_shapes import INK, Font, Stroke, number, path, text
from topology.render.svg_style import stroke_of

if TYPE_CHECKING:
    from topology.model import Link

CUT: Final = "#be123c"
UNUSED: Final = "#cbd5e1"
OUTSIDE_INK: Final = "#64748b"
# One hue from pale to dark, so that busier is darker on paper and to people who do not see colours, too.
_RAMP: Final = ("#9cc3f5", "#5596e6", "#1f63c6", "#0b2b70")
_BADGE: Final = "#0b2b70"
_LEAST_PX, _MORE_PX, _UNUSED_PX = 2.2, 4.8, 1.4
_CUT_PX: Final = 3.0
_CUT_HALF_PX: Final = 13.0
_MOST_INSET: Final = 0.9  # of the first stretch of a line
_ARROW_PX: Final = 5.0
_LEAST_ARROW_WAY_PX: Final = 20.0
BADGE_PX: Final = 9.0


class Role(Enum):
    """What a device has to do with what is shown."""

    usual = "usual"
    group = "group"
    side = "side"  # of the group, on the smaller side of the cut
    outside = "outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a link is used.

    Attributes:
        share: how busy it is, of the busiest; None: not at all.
        heads: ids of the ends that bytes arrive at.
        cut_at: id of its end on the smaller side of the cut; empty: the cut does not cross it.
    """

    share: float | None
    heads: frozenset[str] = frozenset()
    cut_at: str = ""


_NO_USE: Final = Use(share=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """Fill, outline and text colour of the box of a device; None leaves it as it is."""

    fill: str | None = None
    line: str | None = None
    ink: str = INK


_SHADES: Final[Mapping[Role, Shade]] = MappingProxyType(
    {
        Role.usual: Shade(),
        Role.group: Shade(fill="#e3eefd", line="#0b2b70"),
        Role.side: Shade(fill="#ffe1e7", line=CUT),
        Role.outside: Shade(fill="#f4f6f8", line="#cbd5e1", ink=OUTSIDE_INK),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """All marks of a picture, by id.

    Attributes:
        uses: of links, by the ids that stand for both ends; None: links are drawn by kind and capacity.
        stands_for: the id of what is drawn for each id, where that is another.
        roles: of devices.
        badges: a few characters on a device.
        has_arrows: whether links used in one direction only show it.
    """

    uses: Mapping[frozenset[str], Use] | None = None
    stands_for: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    roles: Mapping[str, Role] = field(default_factory=lambda: MappingProxyType({}))
    badges: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    has_arrows: bool = False

    def key(self, a: str, b: str) -> frozenset[str]:
        """What a link between two ids is found by in `uses`."""
        return frozenset((self.stands_for.get(a, a), self.stands_for.get(b, b)))

    def shade(self, devices: Iterable[str]) -> Shade:
        """The look of a box that stands for devices: that of the one which matters most."""
        found = {self.roles.get(name, Role.usual) for name in devices}
        order = (Role.side, Role.group, Role.outside, Role.usual)
        return _SHADES[next((role for role in order if role in found), Role.usual)]

    def stroke(self, link: Link, *, switched: bool = False, degraded: bool = False) -> Stroke:
        """Look of a link."""
        return self.of_several((link,), stroke_of(link, switched=switched, degraded=degraded))

    def of_several(self, links: Sequence[Link], usual: Stroke) -> Stroke:
        """Look of one line for several links: that of the busiest."""
        if self.uses is None:
            return usual
        shares = [share for link in links if (share := self._use(link).share) is not None]
        return busy_stroke(max(shares)) if shares else Stroke(colour=UNUSED, width_px=_UNUSED_PX)

    def line(
        self,
        link: Link,
        points: Sequence[tuple[float, float]],
        stroke: Stroke,
        radius_px: float = 0,
        *,
        start: str = "",
        inset_px: float = 5,
    ) -> str:
        """Draw a link with the marks on it; `start` is the id at the first point, without it that of its end `a`.

        A mark of the cut stands `inset_px` from the end on the smaller side.
        """
        drawn = path(points, stroke, radius_px)
        use = self._use(link)
        first = self.stands_for.get(start or link.a, start or link.a)
        if self.has_arrows and use.share is not None and len(use.heads) == 1:
            drawn += _arrow(points[::-1] if first in use.heads else points, stroke)
        if use.cut_at:
            drawn += _across(points if first == use.cut_at else points[::-1], inset_px)
        return drawn

    def is_cut_at(self, links: Iterable[Link], end: str) -> bool:
        """Whether the cut crosses one of the links at this end of it."""
        near = self.stands_for.get(end, end)
        return any(self._use(link).cut_at == near for link in links)

    def _use(self, link: Link) -> Use:
        return _NO_USE if self.uses is None else self.uses.get(self.key(link.a, link.b), _NO_USE)


def shade_of(role: Role) -> Shade:
    """Look of a device with this part."""
    return _SHADES[role]


def busy_stroke(share: float) -> Stroke:
    """Look of a link that is as busy as this share of the busiest one."""
    step = min(int(share * len(_RAMP) - 1e-9), len(_RAMP) - 1)
    return Stroke(colour=_RAMP[max(step, 0)], width_px=_LEAST_PX + _MORE_PX * min(share, 1.0))


def cut_stroke() -> Stroke:
    """Look of the line across a cut link."""
    return Stroke(colour=CUT, width_px=_CUT_PX, dashed=True)


def badge(words: str, x: float, y: float) -> str:
    """A few characters in a disc."""
    disc = f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(BADGE_PX)}" fill="{_BADGE}"/>'
    font = Font(size_px=10, bold=True, colour="#ffffff")
    return disc + text(x, y + 3.6, words, 2 * BADGE_PX, font, "middle")


def across(x: float, y: float, *, level: bool) -> str:
    """The mark of the cut at a point: a level one crosses a line that runs up and down."""
    dx, dy = (_CUT_HALF_PX, 0.0) if level else (0.0, _CUT_HALF_PX)
    # A pale rim keeps it apart from the line it crosses.
    rim = Stroke(colour="#ffffff", width_px=_CUT_PX + 3)
    ends = [(x - dx, y - dy), (x + dx, y + dy)]
    return path(ends, rim) + path(ends, cut_stroke())


def _across(points: Sequence[tuple[float, float]], inset_px: float) -> str:
    (x, y), (next_x, next_y) = points[0], points[1]
    length = math.hypot(next_x - x, next_y - y)
    share = min(inset_px / length, _MOST_INSET) if length else 0.0
    level = abs(next_y - y) >= abs(next_x - x)
    return across(x + (next_x - x) * share, y + (next_y - y) * share, level=level)


def _arrow(points: Sequence[tuple[float, float]], stroke: Stroke) -> str:
    """A head in the middle of the longest stretch, where there is room for one."""
    stretches = [(math.dist(a, b), a, b) for a, b in pairwise(points)]
    length, (x, y), (end_x, end_y) = max(stretches)
    if length < _LEAST_ARROW_WAY_PX:
        return ""
    dx, dy = (end_x - x) / length, (end_y - y) / length
    half = _ARROW_PX + stroke.width_px / 3
    middle_x, middle_y = (x + end_x) / 2, (y + end_y) / 2
    tip = (middle_x + dx * half, middle_y + dy * half)
    tail = (middle_x - dx * half, middle_y - dy * half)
    corners = (tip, (tail[0] - dy * half, tail[1] + dx * half), (tail[0] + dy * half, tail[1] - dx * half))
    drawn = " ".join(f"{number(one)},{number(other)}" for one, other in corners)
    return f'<polygon points="{drawn}" fill="{stroke.colour}" stroke="#ffffff" stroke-width="1"/>'
