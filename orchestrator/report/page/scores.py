"""What evaluations found besides the loss, and the held-out loss of each source of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.report.page.document import stacked
from orchestrator.report.page.html import Markup, element, table
from orchestrator.report.page.record import Record
from orchestrator.report.page.words import DASH, count, deviation, listed, loss, number, percent

_MOST_DEEP: Final = 3
_PLAIN: Final = frozenset({"loss", "tokens"})  # told elsewhere


def section(record: Record) -> Markup | None:
    """Tables of both, as far as there are any."""
    before, after = (dict(_numbers(record.summary.get(f"eval_{when}"))) for when in ("before", "after"))
    names = [name for name in dict.fromkeys((*before, *after)) if name not in _PLAIN]
    parts = []
    if names:
        rows = [(name, *_both(before.get(name), after.get(name))) for name in names]
        head = ("score", "before training", "after", "change")
        parts += [element("h3", "Evaluation"), table(head, rows, caption="scores of the evaluation", numbers=(1, 2, 3))]
    sources = [one for one in listed(record.summary.get("sources")) if isinstance(one, Mapping)]
    if sources:
        told = [_source(one) for one in sources]
        head = ("source", "rows", "held-out loss before", "after")
        parts += [element("h3", "Sources of rows"), table(head, told, caption="sources of rows", numbers=(1, 2, 3))]
    return stacked(*parts) if parts else None


def _source(one: Mapping[str, object]) -> tuple[str, ...]:
    losses = (loss(number(one.get(f"eval_loss_{when}"))) for when in ("before", "after"))
    return (str(one.get("name")), count(number(one.get("rows"))), *losses)


def _both(before: float | None, after: float | None) -> tuple[str, str, str]:
    told = tuple(DASH if value is None else f"{value:.4g}" for value in (before, after))
    return (told[0], told[1], percent(deviation(before, after)))


def _numbers(body: object, prefix: str = "", deep: int = 0) -> Iterator[tuple[str, float]]:
    """The numbers of nested objects under dotted names."""
    if not isinstance(body, Mapping) or deep == _MOST_DEEP:
        return
    for name, value in body.items():
        found = number(value)
        if found is not None:
            yield f"{prefix}{name}", found
        yield from _numbers(value, f"{prefix}{name}.", deep + 1)
