"""A plan as a picture: memory by kind of rank and term, where a step's time goes, and a micro-step in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Final

from orchestrator.planner.plan import Plan
from orchestrator.planner.view import Bar, Segment, View
from topology.render.svg_shapes import FAINT, INK, Box, Font, Stroke, group, number, path, rect, text
from topology.render.svg_text import escaped
from topology.units import MIB, format_bytes, format_seconds

_FONTS: Final = "DejaVu Sans, Verdana, Arial, sans-serif"
_MARGIN: Final = 24.0
_LABEL: Final = 220.0
_ROOM: Final = 820.0  # width of bars and lanes
_RIGHT: Final = 150.0  # for numbers behind a bar
_WIDTH: Final = 2 * _MARGIN + _LABEL + _ROOM + _RIGHT
_BAR: Final = 22.0
_GAP: Final = 8.0
_TITLE: Final = Font(size_px=16, bold=True)
_HEAD: Final = Font(size_px=13, bold=True)
_TEXT: Final = Font(size_px=11)
_NOTE: Final = Font(size_px=11, colour=FAINT)
_EDGE: Final = "#475569"
_LEAST_CONTRAST: Final = 3.0  # WCAG 2.2, 1.4.11: parts of a picture against what is next to them
_LIMIT: Final = "#d3212d"
_MOST_BARS: Final = 6
_MOST_SEGMENTS: Final = 2000
# Told apart by people who do not see red or green, too; what is not listed is grey.
_COLOURS: Final = MappingProxyType(
    {
        "activations": "#1d6fb8",
        "base_packed": "#4d8b00",
        "base_partition": "#4d8b00",
        "base_unquantised": "#8fbf4d",
        "absmax": "#c3dd9b",
        "logits": "#7b3fa0",
        "layer_transient": "#6fb1e8",
        "optimizer": "#e08a00",
        "gradients": "#f2b84b",
        "adapters": "#b5179e",
        "ddp_buckets": "#e6a3d8",
        "second_copy": "#2f5f00",
        "runtime and slack": "#7f8896",
        "runtime": "#7f8896",
        "products": "#1d6fb8",
        "dequantise": "#4d8b00",
        "elementwise": "#6fb1e8",
        "attention": "#0b8a74",
        "overhead": "#7f8896",
        "all_reduce": "#c2410c",
        "head": "#92643c",
        "load_transient": "#6fb1e8",
        "adapter_gather": "#f8d7e3",
        "persistent_params": "#c3dd9b",
        "tensors": "#1d6fb8",
        "checkpoint_pages": "#8fbf4d",
        "checkpoint_copy": "#f2b84b",
        "load_residue": "#cfe5fa",
        "training_heap": "#7b3fa0",
        "gathers": "#7b3fa0",
        "offload_copies": "#b5179e",
        "host": "#7f8896",
        "compute": "#1d6fb8",
        "comm": "#7b3fa0",
        "copy": "#b5179e",
    }
)
_OTHERS: Final = ("#64748b", "#94a3b8", "#475569", "#cbd5e1")
_LANES: Final = MappingProxyType(
    {"host": "CPU thread", "compute": "device", "comm": "links to other ranks", "copy": "host memory to device"}
)


def plan_svg(plan: Plan, view: View) -> str:
    """Draw the chosen strategy; the text is the whole file, the same for the same plan."""
    parts = [text(_MARGIN, 32, plan.chosen.strategy.label, _WIDTH - 2 * _MARGIN, _TITLE)]
    parts.append(text(_MARGIN, 52, f"{plan.workload.text}; {plan.machine}", _WIDTH - 2 * _MARGIN, _NOTE))
    y = 84.0
    for draw in (_memory, _time, _timeline):
        body, y = draw(view, y)
        parts += body
    return _document(plan, parts, y + _MARGIN)


def _memory(view: View, y: float) -> tuple[list[str], float]:
    """Bars of each kind of rank, all on one scale."""
    parts = [text(_MARGIN, y, "Memory of a rank by phase", _ROOM, _HEAD)]
    y += 14
    scale = _ROOM / max(max(bar.memory_bytes, *(size for _, _, size in bar.phases)) for bar in view.bars)
    names: dict[str, None] = {}
    for bar in view.bars[:_MOST_BARS]:
        devices = f"{bar.count} x {bar.name}" if bar.count > 1 else bar.name
        told = f"{devices}: {bar.rows} rows each, {bar.micro} at a time"
        parts.append(text(_MARGIN, y + 14, told, _LABEL + _ROOM, _TEXT))
        y += 22
        top = y
        for name, terms, size in bar.phases:
            names |= dict.fromkeys(term.name for term in terms)
            values = [(term.name, float(term.bytes), f"{term.name}: {_size(term.bytes)}\n{term.why}") for term in terms]
            parts += _stack(values, y, scale, name, f"{_size(size)} of {_size(bar.memory_bytes)}")
            y += _BAR + _GAP
        parts += _limits(bar, scale, top, y - _GAP)
        y += 8
    if len(view.bars) > _MOST_BARS:
        parts.append(text(_MARGIN, y + 10, f"and {len(view.bars) - _MOST_BARS} more kinds of ranks", _ROOM, _NOTE))
        y += 20
    legend, y = _legend(names, y + 4)
    lines, y = _limits_legend(view, y)
    return [*parts, *legend, *lines], y + 26


def _limits(bar: Bar, scale: float, top: float, bottom: float) -> list[str]:
    """Lines where the plan's share and the device end."""
    usable, end = (_MARGIN + _LABEL + size * scale for size in (bar.usable_bytes, bar.memory_bytes))
    lines = [
        group(
            f"a plan may fill {_size(bar.usable_bytes)}",
            [path([(usable, top - 3), (usable, bottom + 3)], Stroke(colour=_LIMIT, width_px=1.5, dashed=True))],
        )
    ]
    if bar.memory_bytes != bar.usable_bytes:
        edge = path([(end, top - 3), (end, bottom + 3)], Stroke(colour=INK, width_px=1.5))
        lines.append(group(f"the device has {_size(bar.memory_bytes)}", [edge]))
    return lines


def _limits_legend(view: View, y: float) -> tuple[list[str], float]:
    """What the upright lines mean."""
    x, parts = _MARGIN + _LABEL, []
    told = [("what a plan may fill", Stroke(colour=_LIMIT, width_px=1.5, dashed=True))]
    if any(bar.memory_bytes != bar.usable_bytes for bar in view.bars):
        told.append(("all the device has", Stroke(colour=INK, width_px=1.5)))
    for words, stroke in told:
        parts += [path([(x + 6, y), (x + 6, y + 16)], stroke), text(x + 18, y + 12, words, 140, _TEXT)]
        x += 164
    return parts, y + 20


def _time(view: View, y: float) -> tuple[list[str], float]:
    """One bar: what each term adds to a step, and the bounds."""
    time = view.time
    steps = "one micro-step" if view.accumulation == 1 else f"{view.accumulation} micro-steps"
    parts = [text(_MARGIN, y, f"A step of {format_seconds(time.step_seconds)} ({steps})", _ROOM, _HEAD)]
    y += 14
    terms = sorted(time.terms, key=lambda term: -term.seconds)
    scale = _ROOM / max(sum(term.seconds for term in terms), time.step_seconds)
    values = [(t.name, t.seconds, f"{t.name}: {format_seconds(t.seconds)}\n{t.why}") for t in terms]
    bounds = f"{format_seconds(time.lower_seconds)} to {format_seconds(time.upper_seconds)}"
    parts += _stack(values, y, scale, "adds to a step", bounds)
    legend, y = _legend([term.name for term in terms], y + _BAR + 10)
    return [*parts, *legend], y + 26


def _timeline(view: View, y: float) -> tuple[list[str], float]:
    """Lanes of the last micro-step, drawn true to time."""
    end = max((segment.end_seconds for segment in view.segments), default=0.0)
    if end <= 0:
        return [], y
    title = f"The last micro-step in time, {format_seconds(end)}: what runs side by side takes its time once"
    parts = [text(_MARGIN, y, title, _LABEL + _ROOM, _HEAD)]
    y += 14
    scale = _ROOM / end
    lanes = dict.fromkeys(str(segment.stream) for segment in view.segments)
    for lane in [name for name in _LANES if name in lanes]:
        own = [
            segment
            for segment in view.segments
            if str(segment.stream) == lane and segment.end_seconds > segment.start_seconds
        ]
        parts.append(text(_MARGIN, y + 15, _LANES[lane], _LABEL - 8, _TEXT))
        parts.append(rect(Box(x=_MARGIN + _LABEL, y=y, width=_ROOM, height=_BAR), "#f8fafc", "#e2e8f0", radius_px=0))
        parts += [_piece(segment, lane, y, scale) for segment in own[:_MOST_SEGMENTS]]
        busy = sum(segment.end_seconds - segment.start_seconds for segment in own)
        parts.append(text(_MARGIN + _LABEL + _ROOM + 10, y + 15, f"{busy / end:.0%} busy", _RIGHT - 10, _TEXT))
        y += _BAR + _GAP
    return [*parts, *_axis(end, scale, y)], y + 22


def _piece(segment: Segment, lane: str, y: float, scale: float) -> str:
    width = (segment.end_seconds - segment.start_seconds) * scale
    box = Box(x=_MARGIN + _LABEL + segment.start_seconds * scale, y=y, width=width, height=_BAR)
    told = f"{segment.name}: {format_seconds(segment.end_seconds - segment.start_seconds)}"
    words = f"{told}, from {format_seconds(segment.start_seconds)}"
    return group(words, [rect(box, _COLOURS[lane], "#ffffff", radius_px=0, outline_px=0.4 if width > 2 else 0)])  # noqa: PLR2004 - an outline would cover thinner ones


def _axis(end: float, scale: float, y: float) -> list[str]:
    marks = []
    for part in range(5):
        seconds = end * part / 4
        x = _MARGIN + _LABEL + seconds * scale
        marks.append(path([(x, y - 4), (x, y)], Stroke(colour=FAINT, width_px=1)))
        marks.append(text(x, y + 14, format_seconds(seconds), 90, _NOTE, "middle"))
    return marks


def _stack(values: Sequence[tuple[str, float, str]], y: float, scale: float, label: str, behind: str) -> list[str]:
    """One bar of addends, with its label before and its sum behind it."""
    parts = [text(_MARGIN + 12, y + 15, label, _LABEL - 20, _TEXT)]
    x = _MARGIN + _LABEL
    for name, value, told in values:
        width = value * scale
        box = Box(x=x, y=y, width=width, height=_BAR)
        parts.append(group(told, [rect(box, _colour(name), _outline(_colour(name)), radius_px=0, outline_px=0.5)]))
        x += width
    end = max(x, _MARGIN + _LABEL + _ROOM) + 10
    return [*parts, text(end, y + 15, behind, _WIDTH - end, _TEXT)]


def _colour(name: str) -> str:
    return _COLOURS.get(name, _OTHERS[sum(map(ord, name)) % len(_OTHERS)])


def _outline(colour: str) -> str:
    """White between parts that stand out from the page, a dark line around pale ones."""
    return "#ffffff" if _contrast(colour) >= _LEAST_CONTRAST else _EDGE


def _contrast(colour: str) -> float:
    """Of a colour with the white page, 1 to 21 (WCAG 2.2, contrast ratio)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)  # noqa: PLR2004 - the standard's sRGB curve
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


def _legend(names: Iterable[str], y: float) -> tuple[list[str], float]:
    """Swatches with the names, in rows."""
    parts = []
    x, column = _MARGIN + _LABEL, 164.0
    for name in names:
        if x + column > _MARGIN + _LABEL + _ROOM + 1:
            x, y = _MARGIN + _LABEL, y + 20
        swatch = Box(x=x, y=y + 2, width=12, height=12)
        parts.append(rect(swatch, _colour(name), _outline(_colour(name)), radius_px=2, outline_px=0.5))
        parts.append(text(x + 18, y + 12, name, column - 24, _TEXT))
        x += column
    return parts, y + 20


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes >= 1024 * MIB else f"{size_bytes / MIB:.0f} MiB"


def _document(plan: Plan, parts: Sequence[str], height: float) -> str:
    size = f'width="{number(_WIDTH)}" height="{number(height)}" viewBox="0 0 {number(_WIDTH)} {number(height)}"'
    canvas = rect(Box(x=0, y=0, width=_WIDTH, height=height), "#ffffff", "none", radius_px=0)
    told = "Memory bars by phase and term, the terms of a step, and the last micro-step in lanes. Pointing at a part "
    told += "tells its size and why it is there."
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONTS}">',
            f"<title>{escaped(plan.chosen.strategy.label)}</title>",
            f"<desc>{escaped(told)}</desc>",
            *(part for part in (canvas, *parts) if part),
            "</svg>\n",
        ]
    )
