"""One raw reading: a value, or the code of the error that came instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from topology.checks import check

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[T_co]):
    """One reading: a value, or the code of the error that came instead, with where it was read.

    A limit that is not set reads as the code `UNLIMITED`.
    """

    source: str
    value: T_co | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        """Exactly one of value and error."""
        both = "a value and an error" if self.value is not None else "neither a value nor an error"
        check(f"a reading of {self.source}", ((self.value is None) == (self.error is None), both))
