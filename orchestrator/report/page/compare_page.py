"""The page about two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

from orchestrator.report.page.chart import Chart, Look, Series, figure
from orchestrator.report.page.choice import plan_section
from orchestrator.report.page.course import charts_of
from orchestrator.report.page.document import Assets, document, sections_of, stacked
from orchestrator.report.page.happened import faults_section, repeat_section
from orchestrator.report.page.html import Markup, element, table
from orchestrator.report.page.predicted import phases_of, rates_of, times_of
from orchestrator.report.page.record import Record
from orchestrator.report.page.told import told_events
from orchestrator.report.page.words import DASH, count, deviation, loss, number, percent, size, span

_Row = tuple[str, float | None, float | None, Callable[[float | None], str], bool]

_HEADS: Final = MappingProxyType(
    {
        "summary": ("Summary", "What came out of both runs; changes are those from the second run to the first."),
        "differences": ("What differs", "Settings, plan and machine, as far as they are not the same in both runs."),
        "course": ("Course over steps", "Both runs on one axis of steps."),
        "predicted": ("Predicted against measured", "How far each run lay from its own plan."),
        "plan": ("Plans", "What was chosen in each run, and why."),
        "faults": ("Faults and reactions", "What went wrong in each run, and what was done about it."),
        "repeat": ("Do it again", "The commands that start these runs again."),
    }
)


def compare_page(first: Record, second: Record, *, version: str, assets: Assets) -> str:
    """Return the page: the first run against the second, which is what it is compared with."""
    a, b = _names(first, second)
    both = ((a, first), (b, second))
    bodies = {
        "summary": _summary(first, second, (a, b)),
        "differences": _differences(first, second, (a, b)),
        "course": element("div", *map(figure, _charts(first, second, (a, b))), class_="charts"),
        "predicted": _predicted(first, second, (a, b)),
        "plan": _each(both, plan_section),
        "faults": _each(both, lambda record: faults_section(told_events(record))),
        "repeat": _each(both, repeat_section),
    }
    return document(
        kicker="Trainmaster comparison",
        title=f"{a} against {b}",
        told=f"{first.folder} against {second.folder}",
        sections=sections_of(_HEADS, bodies),
        made=first.made,
        version=version,
        assets=assets,
    )


def _names(first: Record, second: Record) -> tuple[str, str]:
    """As much of the ends of both paths as tells them apart."""
    parts = [PurePath(record.folder).parts for record in (first, second)]
    for most in range(1, max(map(len, parts)) + 1):
        a, b = ("/".join(own[-most:]) for own in parts)
        if a != b:
            return a, b
    return f"{first.name} (first)", f"{second.name} (second)"


def _each(both: Sequence[tuple[str, Record]], body: Callable[[Record], Markup]) -> Markup:
    """A part for each run."""
    parts = [
        element("div", element("h3", own), _anchored(body(record), at), class_="of")
        for at, (own, record) in enumerate(both, 1)
    ]
    return stacked(*parts)


def _anchored(body: Markup, at: int) -> Markup:
    """Ids are there once: those of a run get its number."""
    for name in ("event-", "command"):
        for mark in ('id="', 'data-copy="', 'href="#'):
            body = Markup(str(body).replace(f"{mark}{name}", f"{mark}r{at}-{name}"))
    return body


def _rows(first: Record, second: Record) -> list[_Row]:
    """Outcomes: name, both values, how they are written, and whether less is better."""
    key = "device" if first.is_gpu else "host memory"

    def peak(record: Record) -> float | None:
        found = [one for one in phases_of(record) if one.name.startswith("training") and key in one.name]
        return found[0].measured if found else None

    made: tuple[tuple[str, Callable[[Record], float | None], Callable[[float | None], str], bool], ...] = (
        ("held-out loss", lambda one: number(one.summary.get("eval_loss_after")), loss, True),
        ("last training loss", _last_loss, loss, True),
        ("steps", lambda one: float(one.step), count, False),
        ("seconds of a step", lambda one: times_of(one)[0].measured, span, True),
        ("tokens per second", lambda one: rates_of(one)[0].measured, count, False),
        ("peak memory of a rank", peak, size, True),
        ("wall time", lambda one: number(one.summary.get("wall_seconds")), span, True),
        ("ranks", lambda one: float(one.world_size), count, False),
        ("faults and reactions", lambda one: float(sum(1 for e in told_events(one) if e.number)), count, True),
    )
    return [(name, value(first), value(second), write, less) for name, value, write, less in made]


def _last_loss(record: Record) -> float | None:
    return number(record.losses[-1].get("loss")) if record.losses else None


def _summary(first: Record, second: Record, names: tuple[str, str]) -> Markup:
    rows = _rows(first, second)
    words = [text for text in (_worded(row, names) for row in rows) if text]
    cells = [
        (name, write(a), write(b), percent(deviation(b, a)) if b and a is not None else DASH)
        for name, a, b, write, _ in rows
    ]
    status = [("status", first.status, second.status, "")]
    shown = table(
        ("what", *names, "change"), [*status, *cells], caption="outcomes of both runs", numbers=(1, 2, 3), class_="both"
    )
    return stacked(element("p", " ".join(words) or "Nothing can be compared yet.", class_="lead"), shown)


_WORDED: Final = {
    "held-out loss": "held-out loss",
    "seconds of a step": "time of a step",
    "peak memory of a rank": "peak memory of a rank",
}


def _worded(row: _Row, names: tuple[str, str]) -> str:
    name, a, b, write, less_is_better = row
    share = deviation(b, a)
    if name not in _WORDED or share is None:
        return ""
    if round(abs(share), 3) == 0:
        return f"The {_WORDED[name]} is the same ({write(a)})."
    better = (share < 0) == less_is_better
    how = f"{abs(share):.1%} {'lower' if share < 0 else 'higher'}"
    judged = "better" if better else "worse"
    return f"The {_WORDED[name]} of {names[0]} is {how} ({write(a)} against {write(b)}), which is {judged}."


def _differences(first: Record, second: Record, names: tuple[str, str]) -> Markup:
    facts = [
        ("strategy", first.label, second.label),
        ("machine", first.plan.get("machine"), second.plan.get("machine")),
        ("machine's fingerprint", *(str(one.plan.get("topology_fingerprint"))[:12] for one in (first, second))),
    ]
    keys = [*first.config, *(key for key in second.config if key not in first.config)]
    facts += [(key, first.config.get(key, DASH), second.config.get(key, DASH)) for key in keys if key != "run_dir"]
    rows = [(name, _value(a), _value(b)) for name, a, b in facts if a != b]
    if not rows:
        return element("p", "Both runs had the same settings, plan and machine.")
    return table(("what", *names), rows, caption="what differs between both runs")


def _value(value: object) -> str:
    if value is None:
        return "auto"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _charts(first: Record, second: Record, names: tuple[str, str]) -> list[Chart]:
    """The charts of both, each with the series of both: one colour for a run."""
    found = []
    for one, other in zip(charts_of(first), charts_of(second), strict=True):
        series = [*_named(one.series, names[0], 0), *_named(other.series, names[1], 1)]
        ends = [end for steps in (one.steps, other.steps) if steps for end in steps]
        told = one.told.split(". ")[0].rstrip(".") + "."
        found.append(replace(one, series=tuple(series), told=told, steps=(min(ends), max(ends)) if ends else None))
    return found


def _named(series: Sequence[Series], name: str, colour: int) -> list[Series]:
    """Of a run only the first of several lines that are alike, without the levels of its plan."""
    lines = [one for one in series if one.look is Look.line][-1:] if len(series) else []
    if any(one.name == "training" for one in series):
        lines = [one for one in series if one.look is Look.line]
    dots = [one for one in series if one.look is Look.dots]
    return [replace(one, name=f"{name}: {one.name}", colour=colour) for one in (*lines, *dots)]


def _predicted(first: Record, second: Record, names: tuple[str, str]) -> Markup:
    rows = []
    for write, made in ((span, lambda one: times_of(one)[:1]), (count, rates_of), (size, phases_of)):
        pairs = [{pair.name: pair for pair in made(record)} for record in (first, second)]
        for name in dict.fromkeys((*pairs[0], *pairs[1])):
            own = [both.get(name) for both in pairs]
            cells: list[object] = [name]
            for pair in own:
                predicted, measured = (None, None) if pair is None else (pair.predicted, pair.measured)
                cells += [write(predicted), write(measured), percent(deviation(predicted, measured))]
            rows.append(cells)
    head = ("what", *(f"{name}: {what}" for name in names for what in ("predicted", "measured", "deviation")))
    return table(head, rows, caption="predicted against measured in both runs", numbers=range(1, 7))
