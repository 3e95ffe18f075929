"""A chart over steps: lines in an SVG that stretches, axes and marks in HTML, so that text keeps its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orchestrator.report.page.html import Markup, element, join
from orchestrator.report.page.scale import Axis, Point, axis_of, bytes_axis, runs_of, thinned
from orchestrator.report.page.words import short, short_size, span

_BOX: Final = 1000.0  # of the picture, both ways; it is stretched to the room there is
NUM_COLOURS: Final = 6
_STEP_TICKS: Final = 6


class Unit(Enum):
    """What an axis counts."""

    plain = "plain"
    bytes = "bytes"
    seconds = "seconds"
    celsius = "celsius"


class Look(Enum):
    """How a series is drawn."""

    line = "line"
    dots = "dots"
    dashed = "dashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over steps.

    Attributes:
        name: for the legend.
        points: steps and values, in the order of the steps; values may be NaN.
        colour: from 0; one of six.
    """

    name: str
    points: tuple[Point, ...]
    colour: int = 0
    look: Look = Look.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a step.

    Attributes:
        step: where it is drawn.
        label: a number that the table of events repeats.
        words: what it was.
        kind: `fault`, `reaction` or `info`.
        anchor: id of its row in the table; empty for none.
    """

    step: float
    label: str
    words: str
    kind: str = "info"
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with all that is told about it.

    Attributes:
        name: its id on the page.
        title: its heading.
        told: one sentence: what it shows, and what to see.
        from_zero: whether the axis begins at zero.
        steps: ends of the axis of steps, the same for all charts of a page; None for those of the points.
    """

    name: str
    title: str
    told: str
    series: tuple[Series, ...]
    unit: Unit = Unit.plain
    marks: tuple[Mark, ...] = ()
    from_zero: bool = True
    steps: tuple[float, float] | None = None


_WRITTEN: Final[dict[Unit, Callable[[float], str]]] = {
    Unit.plain: short,
    Unit.bytes: short_size,
    Unit.seconds: lambda value: "0" if value == 0 else span(value),
    Unit.celsius: lambda value: f"{short(value)} \u00b0C",
}


def figure(chart: Chart) -> Markup:
    """Draw it; a chart without a finite value says so."""
    head = element("figcaption", element("h3", chart.title), element("p", chart.told))
    values = [value for one in chart.series for _, value in one.points if math.isfinite(value)]
    if not values:
        return element("figure", head, class_="chart none", id=chart.name)
    across, up = _across(chart), _up(chart, values)
    return element(
        "figure",
        head,
        element(
            "div",
            element("div", *_labels(up, chart.unit), class_="ys", aria_hidden="true"),
            element("div", _picture(chart, across, up), *_marks(chart.marks, across), class_="area"),
            element("div", *_step_labels(across), class_="xs", aria_hidden="true"),
            class_="plot",
        ),
        _legend(chart),
        class_="chart",
        id=chart.name,
    )


def _across(chart: Chart) -> Axis:
    steps = [step for one in chart.series for step, _ in one.points]
    return axis_of([*steps, *(chart.steps or ())], from_zero=False, wanted=_STEP_TICKS, whole=True)


def _up(chart: Chart, values: Sequence[float]) -> Axis:
    return bytes_axis(values) if chart.unit is Unit.bytes else axis_of(values, from_zero=chart.from_zero)


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _labels(up: Axis, unit: Unit) -> list[Markup]:
    write = _WRITTEN[unit]
    return [element("span", write(tick), style=f"top:{_percent(1 - up.share(tick))}") for tick in up.ticks]


def _step_labels(across: Axis) -> list[Markup]:
    words = [(tick, short(tick)) for tick in across.ticks]
    return [element("span", text, style=f"left:{_percent(across.share(tick))}") for tick, text in words]


def _picture(chart: Chart, across: Axis, up: Axis) -> Markup:
    grid = "".join(f"M0 {_y(up, tick)}H{_BOX:.0f}" for tick in up.ticks)
    names = ", ".join(dict.fromkeys(one.name for one in chart.series))
    return element(
        "svg",
        element("path", d=grid, class_="grid"),
        *(part for one in chart.series for part in _drawn(one, across, up)),
        viewBox=f"0 0 {_BOX:.0f} {_BOX:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{chart.title} over steps {short(across.low)} to {short(across.high)}: {names}. {chart.told}",
        data_ends=" ".join(f"{end:.12g}" for end in (across.low, across.high, up.low, up.high)),
        data_unit=chart.unit.value,
    )


def _y(up: Axis, value: float) -> str:
    return _coordinate(_BOX * (1 - up.share(value)))


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _drawn(one: Series, across: Axis, up: Axis) -> list[Markup]:
    """One path for all runs of a line; a single point is a dot."""
    runs = runs_of(thinned(one.points))
    lines, dots = [], []
    for run in runs:
        places = [f"{_coordinate(_BOX * across.share(step))} {_y(up, value)}" for step, value in run]
        if one.look is Look.dots or len(places) == 1:
            dots += [f"M{place}h0" for place in places]
        if one.look is not Look.dots and len(places) > 1:
            lines.append("M" + "L".join(places))
    colour = f"c{one.colour % NUM_COLOURS}"
    looks = (("".join(lines), f"{one.look.value} {colour}"), ("".join(dots), f"dots {colour}"))
    return [element("path", d=d, class_=look, data_name=one.name) for d, look in looks if d]


def _marks(marks: Sequence[Mark], across: Axis) -> list[Markup]:
    """Lines with numbers; those at one place stand one below the other."""
    found, rows = [], dict[int, int]()
    for mark in marks:
        share = min(1.0, max(0.0, across.share(mark.step)))
        slot = round(share * 25)  # so close that numbers would cover each other
        row = rows[slot] = rows.get(slot, -1) + 1
        where = f"left:{_percent(share)};--row:{row}"
        words = f"{mark.label}: {mark.words}"
        badge = element(
            "a" if mark.anchor else "span",
            mark.label,
            href=f"#{mark.anchor}" if mark.anchor else None,
            title=words,
            aria_label=words,
        )
        found.append(element("div", badge if mark.label else None, class_=f"mark {mark.kind}", style=where))
    return found


def _legend(chart: Chart) -> Markup:
    items = [
        element("li", element("i", class_=f"{one.look.value} c{one.colour % NUM_COLOURS}"), one.name)
        for one in chart.series
        if one.points
    ]
    return element("ul", join(items), class_="legend")
