"""Elements of an SVG picture as strings; lengths in px, positions of the upper left corner."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from topology.render.svg_text import escaped, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INK: Final = "#1f2937"
FAINT: Final = "#4b5563"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """How a link is drawn."""

    colour: str
    width_px: float
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The x of the centre."""
        return self.x + self.width / 2


def number(value: float) -> str:
    """Write a coordinate in at most one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def rect(box: Box, fill: str, outline: str, radius_px: float = 4, outline_px: float = 1) -> str:
    """Draw a box."""
    place = f'x="{number(box.x)}" y="{number(box.y)}" width="{number(box.width)}" height="{number(box.height)}"'
    look = f'rx="{number(radius_px)}" fill="{fill}" stroke="{outline}" stroke-width="{number(outline_px)}"'
    return f"<rect {place} {look}/>"


def path(points: Sequence[tuple[float, float]], stroke: Stroke, radius_px: float = 0) -> str:
    """Draw a line through the points, with round corners where a radius is given."""
    parts = [f"M{_point(points[0])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        if radius_px:
            parts.append(f"L{_point(_towards(here, before, radius_px))}")
            parts.append(f"Q{_point(here)} {_point(_towards(here, after, radius_px))}")
        else:
            parts.append(f"L{_point(here)}")
    parts.append(f"L{_point(points[-1])}")
    dash = f' stroke-dasharray="{_dash(stroke.width_px)}"' if stroke.dashed else ""
    look = f'fill="none" stroke="{stroke.colour}" stroke-width="{number(stroke.width_px)}"'
    return f'<path d="{"".join(parts)}" {look}{dash}/>'


def _dash(width_px: float) -> str:
    # Longer on wide lines, where short dashes would be squares.
    return f"{number(max(6.0, 1.5 * width_px))} {number(max(4.0, 0.8 * width_px))}"


def _point(point: tuple[float, float]) -> str:
    return f"{number(point[0])} {number(point[1])}"


def _towards(start: tuple[float, float], end: tuple[float, float], most_px: float) -> tuple[float, float]:
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    share = min(most_px / length, 0.5) if length else 0.0
    return start[0] + dx * share, start[1] + dy * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Font:
    """Size in px, weight and colour of a text."""

    size_px: float
    bold: bool = False
    colour: str = INK


def text(x: float, baseline: float, words: str, room_px: float, font: Font, anchor: str = "start") -> str:
    """Draw one line, cut to the room; nothing at all where nothing fits."""
    line = shorten(words, room_px, font.size_px, bold=font.bold)
    if not line.strip():
        return ""
    weight = ' font-weight="bold"' if font.bold else ""
    aligned = "" if anchor == "start" else f' text-anchor="{anchor}"'
    look = f'font-size="{number(font.size_px)}" fill="{font.colour}"{weight}{aligned}'
    return f'<text x="{number(x)}" y="{number(baseline)}" {look}>{escape(line)}</text>'


def group(tooltip: str, elements: Iterable[str]) -> str:
    """Put elements together under a tooltip of one or more lines."""
    title = "&#10;".join(escaped(line) for line in tooltip.split("\n"))
    return f"<g><title>{title}</title>{''.join(elements)}</g>"
