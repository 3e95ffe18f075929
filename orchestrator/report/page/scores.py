"""What evaluations found besides the loss, what the model answered, and the held-out loss of each source of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from orchestrator.report.page.document import stacked
from orchestrator.report.page.html import Markup, element, table
from orchestrator.report.page.record import Record
from orchestrator.report.page.samples import samples_section
from orchestrator.report.page.words import DASH, count, deviation, inside, listed, loss, number, percent

_MOST_DEEP: Final = 3
_PLAIN: Final = frozenset({"loss", "tokens"})  # told elsewhere


def section(record: Record) -> Markup | None:
    """Tables of all that, as far as there are any."""
    scores = [record.summary.get(f"eval_{when}") for when in ("before", "after")]
    harness = [inside(record.summary, "lm_eval", when) for when in ("before", "after")]
    parts = [
        *_compared("Evaluation", "scores of the evaluation", scores),
        *_compared("LM evaluation harness", "scores of the LM evaluation harness", harness, _limit(record)),
        samples_section(record.samples),
    ]
    sources = [one for one in listed(record.summary.get("sources")) if isinstance(one, Mapping)]
    if sources:
        told = [_source(one) for one in sources]
        head = ("source", "rows", "held-out loss before", "after")
        parts += [element("h3", "Sources of rows"), table(head, told, caption="sources of rows", numbers=(1, 2, 3))]
    return stacked(*parts) if any(parts) else None


def _compared(title: str, caption: str, bodies: Sequence[object], note: str = "") -> list[Markup | None]:
    """A table of the numbers before and after training; nothing where there are none."""
    before, after = (dict(_numbers(body)) for body in bodies)
    names = [name for name in dict.fromkeys((*before, *after)) if name not in _PLAIN]
    if not names:
        return []
    rows = [(name, *_both(before.get(name), after.get(name))) for name in names]
    head = ("score", "before training", "after", "change")
    told = element("p", note) if note else None
    return [element("h3", title), told, table(head, rows, caption=caption, numbers=(1, 2, 3))]


def _limit(record: Record) -> str:
    limit = number(inside(record.summary, "lm_eval", "limit"))
    return f"Of each task {count(limit)} questions were asked." if limit else ""


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
