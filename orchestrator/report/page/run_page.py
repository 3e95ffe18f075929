"""The page about one run."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from orchestrator.report.page import choice, happened, overview, predicted, scores
from orchestrator.report.page.chart import figure
from orchestrator.report.page.course import charts_of
from orchestrator.report.page.document import Assets, document, sections_of, stacked
from orchestrator.report.page.html import Markup, element
from orchestrator.report.page.record import Record
from orchestrator.report.page.told import marks_of, told_events
from orchestrator.report.page.words import moment

_HEADS: Final = MappingProxyType(
    {
        "summary": ("Summary", "How the run went, in a few sentences and numbers."),
        "machine": (
            "Machine and route",
            "The devices that took part, the links between them, and the way that gradients or layers take.",
        ),
        "plan": ("Plan", "What was chosen, what else would have fitted, and why the choice fell."),
        "predicted": (
            "Predicted against measured",
            "Each term of the estimate beside what the run measured of it; the outlined bar is the prediction.",
        ),
        "course": (
            "Course over steps",
            "Loss, throughput, memory, waits and temperatures step by step; numbered marks are the events below.",
        ),
        "faults": ("Faults and reactions", "What went wrong, how it was noticed, and what was done about it."),
        "repeat": ("Do it again", "The command that starts this run again with the same settings."),
    }
)


def run_page(record: Record, *, version: str, assets: Assets) -> str:
    """Return the text of `report.html`."""
    told = told_events(record)
    charts = charts_of(record, marks_of(told))
    bodies = {
        "summary": stacked(overview.section(record, told), scores.section(record), happened.notes_section(record)),
        "machine": choice.machine_section(record),
        "plan": choice.plan_section(record),
        "predicted": stacked(_key(), predicted.section(record)),
        "course": stacked(element("div", *map(figure, charts), class_="charts"), _thinned(record)),
        "faults": happened.faults_section(told),
        "repeat": happened.repeat_section(record),
    }
    as_of = "" if record.status == "done" else f" It stands as it was at {moment(record.made)} UTC."
    return document(
        kicker="Trainmaster report",
        title=record.name,
        told=f"{record.label}.{as_of}",
        sections=sections_of(_HEADS, bodies),
        made=record.made,
        version=version,
        assets=assets,
    )


def _key() -> Markup:
    items = [element("li", element("i", class_=name), name) for name in ("predicted", "measured")]
    return element("ul", *items, class_="key", aria_hidden="true")


def _thinned(record: Record) -> Markup | None:
    if record.num_metrics <= len(record.metrics) + 1:
        return None
    text = f"Of {record.num_metrics:,} lines of metrics.jsonl, {len(record.metrics):,} were read, evenly spread."
    return element("p", text, class_="faint")
