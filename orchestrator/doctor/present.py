"""Findings as JSON and as text, the gravest first. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any, Final

from orchestrator.doctor.finding import Finding, Severity

SCHEMA: Final = "trainmaster.doctor/1"
_ORDER: Final = (Severity.ERROR, Severity.WARNING, Severity.NOTE, Severity.OK)
_WIDTH: Final = 110
_FIX: Final = "{} errors: fix these before training"


def to_json(findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Turn findings into plain dicts and lists, the gravest first."""
    return {
        "schema": SCHEMA,
        "findings": [
            {
                "check": finding.check,
                "severity": finding.severity.value,
                "title": finding.title,
                "evidence": finding.evidence,
                "remedy": finding.remedy,
            }
            for finding in _sorted(findings)
        ],
        "counts": _counts(findings),
    }


def to_text(findings: tuple[Finding, ...]) -> str:
    """Turn findings into lines for a terminal; what was found in order is one line a finding, then they are counted.

    Where there are errors, the last line says what they ask for.
    """
    lines: list[str] = []
    for finding in _sorted(findings):
        if finding.severity is not Severity.OK:
            lines += [*_block(finding), ""]
    fine = [finding for finding in findings if finding.severity is Severity.OK]
    lines += [f"ok       {finding.check}: {finding.title}" for finding in fine]
    lines += [""] if fine else []
    counts = _counts(findings)
    plural = {"error": "errors", "warning": "warnings", "note": "notes", "ok": "ok"}
    shown = (f"{count} {name if count == 1 else plural[name]}" for name, count in counts.items())
    lines.append(", ".join(shown))
    if counts["error"]:
        lines.append("1 error: fix it before training" if counts["error"] == 1 else _FIX.format(counts["error"]))
    return "\n".join(lines) + "\n"


def _sorted(findings: tuple[Finding, ...]) -> list[Finding]:
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def _counts(findings: tuple[Finding, ...]) -> dict[str, int]:
    counts = Counter(finding.severity for finding in findings)
    return {severity.value: counts[severity] for severity in _ORDER}


def _block(finding: Finding) -> list[str]:
    lines = [f"{finding.severity.value:<8} {finding.check}: {finding.title}"]
    for label, text in (("found", finding.evidence), ("do", finding.remedy)):
        if text:
            lines += textwrap.wrap(
                text,
                width=_WIDTH,
                initial_indent=f"         {label + ':':<7}",
                subsequent_indent=" " * 16,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines
