"""What the model answered to the same questions, before training and last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.evaluation.samples import note_of, order_of
from orchestrator.report.page.document import stacked
from orchestrator.report.page.html import Markup, element, table
from orchestrator.report.page.record import Body
from orchestrator.report.page.words import DASH, number

_MOST_ASKED: Final = 20
_CHARACTERS: Final = 600  # of a text; samples.md has more


def samples_section(records: Sequence[Body]) -> Markup | None:
    """A table of the questions with both answers; None where a run kept no answers."""
    asked = _by_question(records)
    if not asked:
        return None
    newest = max(step for answers in asked.values() for step in answers)
    shown = list(asked.items())[:_MOST_ASKED]
    left_out = len(asked) - len(shown)
    more = f" {left_out:,} more questions are in samples.md." if left_out else ""
    text = f"Answers are cut after {_CHARACTERS} characters.{more}"
    head = ("question", "before training", f"step {newest:,}" if newest else "after", "reference")
    rows = [_row(name, answers, newest) for name, answers in shown]
    return stacked(
        element("h3", "Sampled answers"),
        element("p", text),
        table(head, rows, caption="sampled answers", class_="texts"),
    )


def _by_question(records: Sequence[Body]) -> dict[str, dict[int, Body]]:
    """Answers by question and step, in the order of `samples.md`."""
    asked: dict[str, dict[int, Body]] = {}
    for record in records:
        step = number(record.get("step"))
        if step is not None and step >= 0 and record.get("name"):
            asked.setdefault(str(record["name"]), {})[int(step)] = record
    return dict(sorted(asked.items(), key=lambda item: order_of(item[0])))


def _row(name: str, answers: Mapping[int, Body], newest: int) -> tuple[object, ...]:
    any_of = answers[max(answers)]
    before, last = answers.get(0), answers.get(newest) if newest else None
    reference = any_of.get("reference")
    return (
        stacked(element("span", name), element("small", _cut(any_of.get("prompt")))),
        _answer(before),
        _answer(last),
        DASH if reference is None else _cut(reference),
    )


def _answer(record: Body | None) -> Markup | str:
    if record is None:
        return DASH
    note = note_of(record)
    return stacked(element("span", _cut(record.get("answer"))), element("small", note) if note else None)


def _cut(text: object) -> str:
    whole = "" if text is None else str(text).strip()
    return (whole if len(whole) <= _CHARACTERS else f"{whole[:_CHARACTERS]} \u2026") or "(nothing)"
