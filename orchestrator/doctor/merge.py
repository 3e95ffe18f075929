"""Findings that say the same of several GPUs, told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.doctor.finding import Finding, Severity

_QUIET = frozenset({Severity.OK, Severity.NOTE})


def merged(findings: Sequence[Finding], labels: Sequence[str]) -> tuple[Finding, ...]:
    """Join notes and passed checks that differ in the GPU only; faults stay one by one.

    Args:
        findings: in any order, which is kept.
        labels: how titles name the GPUs: `LABEL: what was found`.
    """
    groups: dict[object, list[tuple[str, Finding]]] = {}
    for at, finding in enumerate(findings):
        label, _, rest = next(
            (finding.title.partition(": ") for label in labels if finding.title.startswith(f"{label}: ")), ("", "", "")
        )
        joins = bool(label) and finding.severity in _QUIET
        key = (finding.check, finding.severity, rest, finding.remedy) if joins else at
        groups.setdefault(key, []).append((label, finding))
    return tuple(_one(group) for group in groups.values())


def _one(group: list[tuple[str, Finding]]) -> Finding:
    first = group[0][1]
    if len(group) == 1:
        return first
    rest = first.title.partition(": ")[2]
    labels = ", ".join(label for label, _ in group)
    if len({finding.evidence for _, finding in group}) == 1:
        evidence = f"{first.evidence} ({labels})" if first.evidence else labels
    else:
        evidence = "; ".join(f"{label}: {finding.evidence}" for label, finding in group)
    return replace(first, title=f"{len(group)} GPUs: {rest}", evidence=evidence)
