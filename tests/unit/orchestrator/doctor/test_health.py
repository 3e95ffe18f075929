"""Throttling, row remapping, page retirement, ECC, lost cards."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.doctor.checks_health import check_health


def judged(made: Any, *loads: Any, **health: Any) -> Any:
    return check_health(made.machine(made.gpu(health=made.health(**health))), loads)


@pytest.mark.parametrize("mask", [0, 0x1, 0x10, 0x100, 0x111])
def test_idle_and_harmless_reasons_pass(made: Any, mask: int) -> None:
    assert made.found(judged(made, event_reasons=made.ok(mask))) == []


@pytest.mark.parametrize(
    ("mask", "severity", "said"),
    [
        (0x08, "note", "seen once"),
        (0x20, "warning", "software thermal"),
        (0x40, "warning", "hardware thermal"),
        (0x80, "warning", "power brake"),
        (0x48, "warning", "hardware slowdown and hardware thermal"),
        (0x04, "note", "power limit"),
        (0x02, "note", "clock setting"),
    ],
)
def test_reasons_are_named(made: Any, mask: int, severity: str, said: str) -> None:
    found = judged(made, event_reasons=made.ok(mask))
    assert made.found(found) == [("throttle", severity)]
    assert said in found[0].title
    assert f"{mask:#x}" in found[0].evidence


def test_heat_and_power_get_their_own_remedies(made: Any) -> None:
    hot, starved = (judged(made, event_reasons=made.ok(mask))[0].remedy for mask in (0x40, 0x80))
    assert "fans" in hot
    assert "cables" in starved


def test_reasons_seen_under_load_count(made: Any) -> None:
    found = judged(made, made.load(event_reasons=(1, 0x40, 0)), event_reasons=made.ok(1))
    assert made.found(found) == [("throttle", "warning")]
    assert "3 samples under load" in found[0].evidence


@pytest.mark.parametrize(("samples", "severity"), [((0, 8, 0), "note"), ((8, 8, 0), "warning")])
def test_a_passing_slowdown_is_no_fault(made: Any, samples: tuple[int, ...], severity: str) -> None:
    assert made.found(judged(made, made.load(event_reasons=samples))) == [("throttle", severity)]


@pytest.mark.parametrize(
    ("health", "fault"),
    [
        ({"remap_pending": 1}, ("row-remap", "warning")),
        ({"remap_failed": 1}, ("row-remap", "error")),
        ({"retired_pending": 1}, ("retired-pages", "warning")),
        ({"ecc_pending": 0}, ("ecc", "note")),
        ({"ecc_now": 0, "ecc_pending": 0}, ("ecc", "note")),
    ],
)
def test_memory_faults(made: Any, health: dict[str, int], fault: tuple[str, str]) -> None:
    found = judged(made, **{key: made.ok(value) for key, value in health.items()})
    assert made.found(found) == [fault]
    if fault[1] == "warning":
        assert "nvidia-smi -r -i GPU-0" in next(item.remedy for item in found if item.check == fault[0])
    if fault[1] == "error":
        assert "replaced" in next(item.remedy for item in found if item.check == fault[0])


def test_a_card_that_tells_nothing_gets_notes_only(made: Any) -> None:
    silent = dict.fromkeys(("event_reasons", "remap_pending", "remap_failed", "ecc_now", "ecc_pending"), made.bad())
    found = judged(made, **silent)
    assert made.found(found) == [("throttle", "note"), ("row-remap", "note"), ("ecc", "note")]
    assert all("NOT_SUPPORTED" in item.evidence for item in found)


def test_a_lost_card_is_the_only_thing_said_about_it(made: Any) -> None:
    found = check_health(made.machine(made.gpu(lost="nvmlDeviceGetName: GPU_IS_LOST")), ())
    assert made.found(found) == [("gpu-lost", "error")]
    assert len(found) == 1


def test_an_impossible_memory_is_told(made: Any) -> None:
    gpu = made.gpu(memory_fault="nvmlDeviceGetMemoryInfo: 0 bytes")
    (found,) = (item for item in check_health(made.machine(gpu), ()) if item.severity.value != "ok")
    assert (found.check, found.severity.value, found.evidence) == ("memory", "warning", gpu.memory_fault)
