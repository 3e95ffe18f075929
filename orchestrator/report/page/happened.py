"""Faults and reactions, and how to do the same again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.report.page.document import stacked
from orchestrator.report.page.html import Markup, element, scrolling, table
from orchestrator.report.page.record import Record
from orchestrator.report.page.told import MOST_MARKS, Told
from orchestrator.report.page.words import DASH, count, moment

_MOST_NUMBERED: Final = 1000  # of which half are the first and half the last
_MOST_OTHERS: Final = 400  # a long run leaves thousands of checkpoints


def faults_section(told: Sequence[Told]) -> Markup:
    """A table of what happened; charts repeat its numbers. Where rows are left out the page says how many."""
    numbered = [one for one in told if one.number]
    others = [one for one in told if not one.number]
    return element(
        "div",
        element("p", _lead(numbered)),
        _numbered(numbered) if numbered else None,
        _others(others) if others else None,
    )


def _lead(numbered: Sequence[Told]) -> str:
    if not numbered:
        return "Nothing went wrong."
    first = f" (the first {MOST_MARKS} are marked)" if len(numbered) > MOST_MARKS else ""
    return (
        f"Numbers are those of the marks in the charts above{first}; times are UTC, from {moment(numbered[0].time)} on."
    )


def _numbered(told: Sequence[Told]) -> Markup:
    left_out = len(told) - _MOST_NUMBERED
    if left_out <= 0:
        return _table(told, "faults and reactions")
    half = _MOST_NUMBERED // 2
    text = f"Numbers {half + 1:,} to {half + left_out:,} are left out; events.jsonl has them."
    return stacked(element("p", text), _table((*told[:half], *told[-half:]), "faults and reactions"))


def _others(others: Sequence[Told]) -> Markup:
    left_out = len(others) - _MOST_OTHERS
    return element(
        "details",
        element("summary", f"Checkpoints and other events ({len(others):,})"),
        element("p", f"The first {left_out:,} are left out; events.jsonl has them.") if left_out > 0 else None,
        _table(others[-_MOST_OTHERS:], "others"),
    )


def _table(told: Sequence[Told], caption: str) -> Markup:
    head = element("tr", *(element("th", name, scope="col") for name in ("no.", "step", "time", "what", "evidence")))
    rows = [
        element(
            "tr",
            element(
                "th",
                element("span", one.number or "\u00b7", class_=f"dot {one.kind}"),
                scope="row",
            ),
            element("td", DASH if one.step is None else count(one.step), class_="number"),
            element("td", moment(one.time)[-8:], title=moment(one.time), class_="time"),
            element("td", one.title),
            element("td", one.words, element("small", one.advice) if one.advice else None),
            id=one.anchor or None,
        )
        for one in told
    ]
    whole = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", head),
        element("tbody", *rows),
        class_="events",
    )
    return scrolling(whole, caption)


def repeat_section(record: Record) -> Markup:
    """The command, and what it depends on besides."""
    if not record.command:
        return element("p", "The configuration of this run cannot be read by this version, so no command is given.")
    machine = str(record.plan.get("topology_fingerprint") or "")[:12]
    notes = [
        ("run", record.folder),
        ("random numbers", f"seed={record.config.get('seed', 0)} (in the command where it is not 0)"),
        ("machine", f"fingerprint {machine}: another machine may get another plan" if machine else "not known"),
        ("plan", f"hash {str(record.plan.get('plan_hash') or '')[:12]}, in plan.json"),
    ]
    return element(
        "div",
        element(
            "div",
            element("pre", element("code", record.command, id="command"), tabindex="0"),
            element("button", "Copy", type="button", data_copy="command", hidden=True),
            class_="command",
        ),
        table(("what", "value"), notes, caption="what the result depends on"),
    )


def notes_section(record: Record) -> Markup | None:
    """What the page could not show."""
    if not record.notes:
        return None
    return element(
        "div",
        element("strong", "What this page does not show"),
        element("ul", *(element("li", text) for text in record.notes)),
        class_="callout",
    )
