"""Findings, how they are joined, and how they are shown."""

from __future__ import annotations

import json

import pytest

from orchestrator.doctor import to_json, to_text
from orchestrator.doctor.finding import Finding, Severity, error, note, passed, unread, warning
from orchestrator.doctor.merge import merged
from topology.reading import Reading

FINDINGS = (
    passed("shm", "large enough"),
    note("memlock", "limited"),
    error("driver", "does not answer", "nvmlInit: UNKNOWN", "reboot"),
    warning("p2p", "off", "status 4", "test it"),
    passed("pids", "enough"),
)


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.ERROR])
@pytest.mark.parametrize("parts", [{"evidence": "read"}, {"remedy": "do"}])
def test_a_fault_needs_evidence_and_remedy(severity: Severity, parts: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="evidence and remedy"):
        Finding(check="shm", severity=severity, title="bad", **parts)


def test_what_could_not_be_read_names_source_and_code_once() -> None:
    readings: list[Reading[int]] = [Reading(source="a", error="EACCES"), Reading(source="b", value=1)]
    finding = unread("x", "something", [*readings, readings[0]])
    assert (finding.severity, finding.evidence) == (Severity.NOTE, "a: EACCES")


def test_json_is_sorted_by_gravity_and_counted() -> None:
    data = json.loads(json.dumps(to_json(FINDINGS)))
    assert data["schema"] == "trainmaster.doctor/1"
    assert [item["severity"] for item in data["findings"]] == ["error", "warning", "note", "ok", "ok"]
    assert data["findings"][0] == {
        "check": "driver",
        "severity": "error",
        "title": "does not answer",
        "evidence": "nvmlInit: UNKNOWN",
        "remedy": "reboot",
    }
    assert data["counts"] == {"error": 1, "warning": 1, "note": 1, "ok": 2}


def test_text_is_sorted_and_ends_with_the_counts() -> None:
    lines = to_text(FINDINGS).splitlines()
    assert [line.split()[0] for line in lines if line[:1].strip()] == ["error", "warning", "note", "ok", "ok", "1", "1"]
    assert "         found: nvmlInit: UNKNOWN" in lines
    assert "         do:    reboot" in lines
    assert lines[-2:] == ["1 error, 1 warning, 1 note, 2 ok", "1 error: fix it before training"]


def test_only_errors_have_the_last_word() -> None:
    fault = error("driver", "does not answer", "nvmlInit: UNKNOWN", "reboot")
    assert to_text((fault, fault)).endswith("\n2 errors: fix these before training\n")
    assert to_text((warning("p2p", "off", "status 4", "test it"),)).endswith("0 errors, 1 warning, 0 notes, 0 ok\n")


def test_text_wraps_long_evidence() -> None:
    text = to_text((error("x", "y", "word " * 100, "do"),))
    assert max(map(len, text.splitlines())) <= 110


def test_nothing_found_is_still_counted() -> None:
    assert to_text(()) == "0 errors, 0 warnings, 0 notes, 0 ok\n"


def test_notes_on_several_gpus_become_one_and_faults_stay() -> None:
    findings = [
        note("ecc", "A 1: ECC is off", "nvml"),
        note("ecc", "A 2: ECC is off", "nvml"),
        passed("pcie-link", "A 1: fine", "26 GB/s"),
        passed("pcie-link", "A 2: fine", "25 GB/s"),
        warning("throttle", "A 1: hot", "0x40", "cool"),
        warning("throttle", "A 2: hot", "0x40", "cool"),
        note("ecc", "A 10: ECC is off", "nvml"),
    ]
    joined = merged(findings, ["A 1", "A 2", "A 10"])
    assert [(item.title, item.evidence) for item in joined] == [
        ("3 GPUs: ECC is off", "nvml (A 1, A 2, A 10)"),
        ("2 GPUs: fine", "A 1: 26 GB/s; A 2: 25 GB/s"),
        ("A 1: hot", "0x40"),
        ("A 2: hot", "0x40"),
    ]
