"""PCIe links: judged under load only."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.doctor.checks_pcie import check_pcie
from orchestrator.doctor.evidence import LoadEvidence, NoLoad


def judged(made: Any, load: Any = None, **pcie: Any) -> Any:
    gpu = made.gpu(pcie=made.pcie(**{key: made.ok(value) for key, value in pcie.items()}))
    return check_pcie(made.machine(gpu), () if load is None else (load,))


def test_a_full_link_passes_and_tells_its_rate(made: Any) -> None:
    (found,) = judged(made, made.load())
    assert found.severity.value == "ok"
    assert "measured 26.0 GB/s" in found.evidence


def test_idle_samples_do_not_count_against_the_link(made: Any) -> None:
    assert made.found(judged(made, made.load(generations=(1, 1, 1, 4, 1)))) == []


@pytest.mark.parametrize(
    ("generation", "width", "rate", "severity"),
    [(4, 8, 12e9, "warning"), (3, 16, 12e9, "warning"), (2, 16, 6.5e9, "error"), (4, 4, 6e9, "error")],
)
def test_a_narrow_or_slow_link_is_a_fault(made: Any, generation: int, width: int, rate: float, severity: str) -> None:
    found = judged(made, made.load(generation=generation, width=width, rate=rate))
    assert made.found(found) == [("pcie-link", severity)]
    assert f"Gen{generation} x{width} instead of Gen4 x16" in found[0].title
    assert "0000:10:00.0" in found[0].title


def test_what_the_slot_cannot_do_is_a_note_and_no_fault(made: Any) -> None:
    found = judged(made, made.load(width=8, rate=13e9), slot_width=8)
    assert made.found(found) == [("pcie-slot", "note")]
    assert "card Gen4 x16, slot Gen4 x8" in found[0].evidence


def test_slow_copies_over_a_full_link(made: Any) -> None:
    found = judged(made, made.load(rate=10e9))
    assert made.found(found) == [("pcie-link", "warning")]
    assert "32%" in found[0].title


def test_more_than_the_link_can_carry_shows_the_report_to_be_wrong(made: Any) -> None:
    found = judged(made, made.load(generation=1, width=16, rate=26e9))
    assert made.found(found) == [("pcie-link", "note")]
    assert "report is wrong" in found[0].title


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failure": "load=false", "generations": (), "bytes_per_second": None}, "load=false"),
        ({"generations": (1, 1)}, "2 of the generation"),
        ({"widths": ()}, "0 of the width"),
    ],
)
def test_without_samples_under_load_nothing_is_claimed(made: Any, changes: dict[str, Any], said: str) -> None:
    found = judged(made, made.load(**changes))
    assert made.found(found) == [("pcie-link", "note")]
    assert said in found[0].evidence


def test_a_card_that_was_never_loaded_is_told(made: Any) -> None:
    assert made.found(judged(made)) == [("pcie-link", "note")]


def test_an_unknown_card_is_a_note(made: Any) -> None:
    gpu = made.gpu(pcie=made.pcie(card_generation=made.bad(), slot_generation=made.bad()))
    found = check_pcie(made.machine(gpu), (made.load(),))
    assert made.found(found) == [("pcie-link", "note")]
    assert "NOT_SUPPORTED" in found[0].evidence


def test_the_bridges_of_a_virtual_machine_are_not_believed(made: Any) -> None:
    gpu = made.gpu(pcie=made.pcie(slot_generation=made.ok(1), slot_width=made.ok(1)))
    assert made.found(check_pcie(made.machine(gpu, is_virtual=made.ok(value=True)), (made.load(),))) == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (NoLoad.SWITCHED_OFF, "without load=false"),
        (NoLoad.HIDDEN, "unset CUDA_VISIBLE_DEVICES"),
        (NoLoad.BUSY, "in use"),
        (NoLoad.CUDA_FAILED, "cuda-start"),
        (NoLoad.NOT_TRIED, "cuda-start"),
        (NoLoad.NO_TORCH, "torch built for CUDA"),
    ],
)
def test_each_reason_for_no_measurement_has_its_own_way_out(made: Any, kind: NoLoad, said: str) -> None:
    (found,) = judged(made, LoadEvidence(gpu="GPU-0", kind=kind, failure="why"))
    assert (found.severity.value, found.evidence) == ("note", "why")
    assert said in found.remedy
    assert "load=true" not in found.remedy


def test_a_mig_device_is_not_blamed_for_its_share_of_the_link(made: Any) -> None:
    gpu = made.gpu(mig=True, slices=("MIG-1",))
    assert made.found(check_pcie(made.machine(gpu), (made.load(rate=5e9),))) == [("pcie-link", "note")]
