"""Predicted against measured: for each term two bars, both numbers, and how far they lie apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.report.page.html import Markup, element, scrolling
from orchestrator.report.page.words import DASH, deviation, percent

FAR: Final = 0.25  # from which a deviation is marked
_WORST: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A quantity as it was predicted and as it was measured; None: it was not.

    Attributes:
        why: what the prediction stands on.
        note: said in the place of what was not measured.
        is_part: of the pair above it.
        is_whole: the sum of others.
    """

    name: str
    predicted: float | None
    measured: float | None = None
    why: str = ""
    note: str = ""
    is_part: bool = False
    is_whole: bool = False

    @property
    def deviation(self) -> float | None:
        """Measured over predicted, minus one."""
        return deviation(self.predicted, self.measured)

    @property
    def grade(self) -> str:
        """`near`, `far` or `worst`, for its colour; empty where nothing is compared."""
        found = self.deviation
        if found is None:
            return ""
        apart = max(1 + found, 1 / max(1 + found, 1e-9)) - 1  # half is as far as twice
        return "near" if apart < FAR else "far" if apart < _WORST else "worst"


def comparison(pairs: Sequence[Pair], write: Callable[[float | None], str], caption: str) -> Markup:
    """Return a table of pairs on one scale."""
    most = max((value for one in pairs for value in (one.predicted, one.measured) if value), default=1.0)
    head = [element("th", name, scope="col", class_="number" if at else None) for at, name in enumerate(_HEAD)]
    rows = [row for one in pairs for row in _rows(one, most, write)]
    whole = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="pairs",
    )
    return scrolling(whole, caption)


_HEAD: Final = ("term", "predicted", "measured", "deviation")


def _rows(one: Pair, most: float, write: Callable[[float | None], str]) -> list[Markup]:
    """A line of numbers, and one of words below it where the prediction has a reason."""
    bars = [_bar(one.predicted, most, "predicted"), _bar(one.measured, most, "measured")]
    name = element("div", element("span", one.name), element("span", *bars, class_="bars", aria_hidden="true"))
    measured = element("small", one.note) if one.measured is None and one.note else write(one.measured)
    look = " ".join(filter(None, ("part" if one.is_part else "", "whole" if one.is_whole else "")))
    numbers = element(
        "tr",
        element("th", name, scope="row"),
        element("td", DASH if one.predicted is None else write(one.predicted), class_="number"),
        element("td", measured, class_="number"),
        element("td", percent(one.deviation), class_=f"number {one.grade}".strip()),
        class_=f"{look} told".strip() if one.why else look or None,
    )
    if not one.why:
        return [numbers]
    return [numbers, element("tr", element("td", one.why, colspan=len(_HEAD)), class_=f"{look} why".strip())]


def _bar(value: float | None, most: float, look: str) -> Markup | None:
    if value is None:
        return None
    return element("b", class_=look, style=f"width:{max(0.4, 100 * max(0.0, value) / most):.4g}%")
