"""What an answer must and must not hold, as a row or the user says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.evaluation.bounded import TooLongError, found, found_at_once
from orchestrator.evaluation.scripts import as_words

KEYS: Final = ("keywords", "must_match", "must_not")


class CheckError(ValueError):
    """A key of a row that says no usable check; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Rules for one answer.

    Attributes:
        keywords: words or phrases that must occur, in any case.
        must_match: regular expressions that must be found.
        must_not: regular expressions that must not be found.

    Of a long answer the beginning is searched, for two seconds of computing at most (`bounded`).
    """

    keywords: tuple[str, ...] = ()
    must_match: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no regular expression.

        Raises:
            CheckError: one of them cannot be compiled.
        """
        for key, patterns in (("must_match", self.must_match), ("must_not", self.must_not)):
            for pattern in patterns:
                wrong = pattern_problem(pattern)
                if wrong:
                    raise CheckError(f"{key} has {pattern!r}, which is no regular expression: {wrong}")

    def __bool__(self) -> bool:
        """Whether there is anything to check."""
        return bool(self.keywords or self.must_match or self.must_not)

    def found_keywords(self, answer: str) -> float:
        """Share of the keywords that occur as whole words, from 0 to 1."""
        hits = [found_at_once(as_words(word), answer, re.IGNORECASE) for word in self.keywords]
        return sum(hits) / len(hits) if hits else 1.0

    def holds(self, answer: str) -> bool:
        """Whether the answer keeps every rule; one that takes too long to look for counts as broken."""
        try:
            return (
                self.found_keywords(answer) == 1.0
                and all(found(pattern, answer) for pattern in self.must_match)
                and not any(found(pattern, answer) for pattern in self.must_not)
            )
        except TooLongError:
            return False


def pattern_problem(pattern: str) -> str:
    """Say why a text is no regular expression that can be used; empty where it is one."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, ValueError) as error:  # too large a repetition; flags that exclude each other
        return str(error)
    except RecursionError:
        return "it is nested too deeply"
    return ""


def checks_of(fields: Mapping[str, object]) -> Checks:
    """Read the checks of a row.

    `keywords` is a list of texts or one text with commas. Data sets use a column of that name for other things, too:
    what is neither is passed over.

    Raises:
        CheckError: `must_match` or `must_not` is no text, no list of texts, or no regular expression.
    """
    return Checks(
        keywords=_keywords(fields.get("keywords")),
        must_match=_patterns("must_match", fields.get("must_match")),
        must_not=_patterns("must_not", fields.get("must_not")),
    )


def _keywords(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        return ()
    return tuple(item.strip() for item in items if item.strip())


def _patterns(key: str, value: object) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(item for item in value if item)
    raise CheckError(f"{key} is {value!r}, not a regular expression or a list of them")
