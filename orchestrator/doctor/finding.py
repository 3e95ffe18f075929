"""What an examination says: one finding, its severity, its evidence and its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topology.reading import Reading


class Severity(StrEnum):
    """How much a finding matters; in rising order.

    `note` is for what could not be examined, or what is worth knowing and no fault.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was examined.

    Attributes:
        check: the name of the check, the same in every run.
        severity: how much it matters.
        title: the finding in one line.
        evidence: what was read, with its source.
        remedy: what to do; empty only where nothing needs doing.
    """

    check: str
    severity: Severity
    title: str
    evidence: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        """A fault without evidence or remedy helps nobody, so it cannot be made."""
        if not self.check or not self.title:
            raise ValueError("a finding needs a check and a title")
        if self.severity in {Severity.WARNING, Severity.ERROR} and not (self.evidence and self.remedy):
            raise ValueError(f"{self.check}: a {self.severity.value} needs evidence and remedy")


def passed(check: str, title: str, evidence: str = "") -> Finding:
    """A check that found no fault."""
    return Finding(check=check, severity=Severity.OK, title=title, evidence=evidence)


def note(check: str, title: str, evidence: str = "", remedy: str = "") -> Finding:
    """Something to know that is no fault."""
    return Finding(check=check, severity=Severity.NOTE, title=title, evidence=evidence, remedy=remedy)


def warning(check: str, title: str, evidence: str, remedy: str) -> Finding:
    """Something that makes runs slower or fail at times."""
    return Finding(check=check, severity=Severity.WARNING, title=title, evidence=evidence, remedy=remedy)


def error(check: str, title: str, evidence: str, remedy: str) -> Finding:
    """Something that makes runs fail, or lose most of their speed."""
    return Finding(check=check, severity=Severity.ERROR, title=title, evidence=evidence, remedy=remedy)


def unread(check: str, what: str, readings: Iterable[Reading[Any]], remedy: str = "") -> Finding:
    """Say what could not be examined, and which reading failed with which code."""
    failed = dict.fromkeys(f"{reading.source}: {reading.error}" for reading in readings if reading.error is not None)
    return note(check, f"{what}: not examined", "; ".join(failed), remedy)
