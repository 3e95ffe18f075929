"""HTML elements as values: text is escaped unless it is markup already, so that no name or log line becomes code."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from markupsafe import Markup, escape

__all__ = ["Markup", "element", "join", "plain", "prose", "scrolling", "table"]

_VOID: Final = frozenset({"br", "hr", "link", "meta"})
_KEPT: Final = frozenset("\n\t")
# Controls, surrogates and characters that turn the reading direction around: they would make text lie.
_UNSAFE: Final = frozenset({"Cc", "Cs"})
_TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def plain(text: object) -> str:
    """Return a text without characters that no page should hold."""
    found = str(text)
    if found.isascii() and found.isprintable():
        return found
    return "".join(char if _is_safe(char) else "\ufffd" for char in found)


def _is_safe(char: str) -> bool:
    return char in _KEPT or (unicodedata.category(char) not in _UNSAFE and char not in _TURNING)


def _written(child: object) -> Markup:
    if isinstance(child, Markup):
        return child
    return Markup("") if child is None else escape(plain(child))


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Put parts one after the other; what is no markup is escaped."""
    return Markup(between).join(_written(part) for part in parts)  # noqa: S704 - ours, never of a file


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: of the element.
        children: markup or text; None is nothing.
        attributes: `class_` is written as `class`, `data_x` as `data-x`; True stands alone, None and False are left
            out.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{told}>")  # noqa: S704 - attributes are escaped
    return Markup(f"<{name}{told}>{join(children)}</{name}>")  # noqa: S704 - children are escaped


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(plain(value))}"'


def prose(text: str) -> Markup:
    """A text in which `words` between backticks are code."""
    parts = plain(text).split("`")
    if len(parts) % 2 == 0:  # one that is not closed
        return _written(text)
    return join(element("code", part) if at % 2 else part for at, part in enumerate(parts))


def table(
    head: Iterable[object],
    rows: Iterable[Iterable[object]],
    *,
    caption: str,
    numbers: Iterable[int] = (),
    **more: object,
) -> Markup:
    """Return a table whose first column names its rows.

    Args:
        head: of the columns.
        rows: cells; markup or text.
        caption: what the table holds, for readers who do not see it.
        numbers: columns that hold numbers, aligned to the right.
        more: attributes of the table.
    """
    right = frozenset(numbers)

    def look(at: int) -> str | None:
        return "number" if at in right else None

    heads = [element("th", cell, scope="col", class_=look(at)) for at, cell in enumerate(head)]
    body = [
        element(
            "tr",
            *(
                element("th", cell, scope="row") if at == 0 else element("td", cell, class_=look(at))
                for at, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    return scrolling(
        element(
            "table",
            element("caption", caption, class_="unseen"),
            element("thead", element("tr", *heads)),
            element("tbody", *body),
            **more,
        ),
        caption,
    )


def scrolling(wide: Markup, told: str) -> Markup:
    """Let something wide scroll within itself, by keyboard, too."""
    return element("div", wide, class_="scroll", tabindex="0", role="region", aria_label=told)
