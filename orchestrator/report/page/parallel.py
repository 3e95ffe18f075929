"""Parallel coordinates: an axis for each setting and result, a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.report.page.html import Markup, element
from orchestrator.report.page.scale import Axis, axis_of, bytes_axis
from orchestrator.report.page.sweep_record import SweepRecord, Tried
from orchestrator.report.page.words import number, short, short_size, span

_WIDTH: Final = 960.0
_HEIGHT: Final = 340.0
_TOP: Final = 46.0
_BOTTOM: Final = 22.0
_SIDE: Final = 84.0
_MANY: Final = 20.0  # times between the ends, from which an axis is logarithmic
_MOST_KEYS: Final = 6
_MOST_OPTIONS: Final = 12
_LABEL_CHARS: Final = 22
_RESULTS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("step_seconds", "seconds of a step", span),
    ("peak_bytes", "peak memory", short_size),
    ("eval_loss_after", "held-out loss", short),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upright:
    """One axis: its name, ticks as share and label, and each trial's share (None: it has no value there)."""

    name: str
    ticks: tuple[tuple[float, str], ...]
    places: tuple[float | None, ...]


def parallel(sweep: SweepRecord) -> Markup:
    """Draw all trials; the best one stands out."""
    axes = uprights(sweep)
    gap = (_WIDTH - 2 * _SIDE) / max(1, len(axes) - 1)
    xs = [_SIDE + at * gap if len(axes) > 1 else _WIDTH / 2 for at in range(len(axes))]
    best = sweep.best
    order = sorted(range(len(sweep.trials)), key=lambda at: sweep.trials[at] is best)
    lines = [_line(sweep.trials[at], [axis.places[at] for axis in axes], xs, sweep.trials[at] is best) for at in order]
    words = ", ".join(axis.name for axis in axes)
    told = f"{len(sweep.trials)} trials as lines over the axes {words}; the best is drawn thick"
    return element(
        "svg",
        *(element("path", d=f"M{x:.1f} {_y(0):.1f}V{_y(1):.1f}", class_="axis") for x in xs),
        *lines,
        *(part for axis, x in zip(axes, xs, strict=True) for part in _labels(axis, x)),
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        role="img",
        aria_label=told,
    )


def uprights(sweep: SweepRecord) -> tuple[Upright, ...]:
    """The axes: settings first, results last; the held-out loss at the right."""
    found = [_setting(key, [trial.values.get(key, "") for trial in sweep.trials]) for key in sweep.keys[:_MOST_KEYS]]
    for key, name, write in _RESULTS:
        values = [trial.results.get(key) for trial in sweep.trials]
        if any(value is not None for value in values):
            found.append(_numbers(name, values, write))
    return tuple(found)


def _setting(key: str, texts: Sequence[str]) -> Upright:
    """Numbers by their size, words one above the other."""
    numbers = [_parsed(text) for text in texts]
    if all(value is not None for value in numbers) and len(set(numbers)) > 1:
        return _numbers(key, numbers, short, at_values=True)
    options = list(dict.fromkeys(texts))
    share = {text: (at + 0.5) / len(options) for at, text in enumerate(reversed(options))}
    ticks = tuple((share[text], text or "not set") for text in options[:_MOST_OPTIONS])
    return Upright(name=key, ticks=ticks, places=tuple(share[text] for text in texts))


def _parsed(text: str) -> float | None:
    try:
        return number(float(text))
    except ValueError:
        return None


def _numbers(
    name: str, values: Sequence[float | None], write: Callable[[float], str], *, at_values: bool = False
) -> Upright:
    known = [value for value in values if value is not None]
    is_log = min(known) > 0 and max(known) >= _MANY * min(known)
    flat: Callable[[float], float] = math.log if is_log else float
    distinct = sorted(set(known))
    low, high = flat(distinct[0]), flat(distinct[-1])
    axis = Axis(low=low, high=high, ticks=())
    if (at_values and len(distinct) <= _MOST_OPTIONS) or is_log or len(distinct) == 1:
        shown = (
            distinct if len(distinct) <= _MOST_OPTIONS else [distinct[0], distinct[len(distinct) // 2], distinct[-1]]
        )
        ticks = tuple((axis.share(flat(value)), write(value)) for value in shown)
    else:
        axis = bytes_axis(known, from_zero=False) if write is short_size else axis_of(known, from_zero=False)
        ticks = tuple((axis.share(tick), write(tick)) for tick in axis.ticks)
    return Upright(
        name=name,
        ticks=ticks,
        places=tuple(None if value is None else axis.share(flat(value)) for value in values),
    )


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _labels(axis: Upright, x: float) -> list[Markup]:
    head = element("text", _cut(axis.name), x=f"{x:.1f}", y="20", text_anchor="middle", font_weight="600")
    ticks = [
        element("text", _cut(label), x=f"{x - 8:.1f}", y=f"{_y(share) + 4:.1f}", text_anchor="end")
        for share, label in axis.ticks
    ]
    return [head, *ticks]


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}\u2026"


def _line(trial: Tried, places: Sequence[float | None], xs: Sequence[float], is_best: bool) -> Markup:  # noqa: FBT001
    points = [f"{x:.1f} {_y(share):.1f}" for x, share in zip(xs, places, strict=True) if share is not None]
    settings = " ".join(f"{key}={value}" for key, value in trial.values.items())
    words = f"trial {trial.number}: {settings} ({trial.status})"
    shape = "M" + "L".join(points) + ("h0" if len(points) == 1 else "") if points else "M0 0"
    return element(
        "path",
        element("title", words),
        d=shape,
        class_="trial best" if is_best else "trial",
        data_trial=trial.number,
    )
