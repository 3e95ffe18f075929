"""Peer-to-peer: status, ACS, IOMMU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.doctor.checks_p2p import check_p2p


def two(made: Any, **changes: Any) -> Any:
    return made.machine(made.gpu(0), made.gpu(1), **changes)


BOTH = ("0000:01:01.0", "0000:02:01.0")


def pci(made: Any, first: int, second: int, **changes: Any) -> Any:
    return made.pci((BOTH[0], made.ok(first)), ("0000:00:01.0", made.ok(0)), (BOTH[1], made.ok(second)), **changes)


def test_one_gpu_has_no_peer(made: Any) -> None:
    assert check_p2p(made.machine(made.gpu()), made.pci()) == ()


def test_working_p2p_has_no_findings(made: Any) -> None:
    assert made.found(check_p2p(two(made), pci(made, 0, 0))) == []


@pytest.mark.parametrize(
    ("status", "level", "severity", "said"),
    [
        (4, 10, "warning", "DISABLED_BY_REGKEY"),
        (4, 50, "warning", "DISABLED_BY_REGKEY"),
        (1, 20, "note", "CHIPSET_NOT_SUPPORTED"),
        (2, 10, "note", "GPU_NOT_SUPPORTED"),
        (5, 10, "note", "NOT_SUPPORTED"),
        (3, 10, "warning", "IOH_TOPOLOGY_NOT_SUPPORTED"),
        (3, 50, "note", "IOH_TOPOLOGY_NOT_SUPPORTED"),
        (6, 10, "note", "STATUS_UNKNOWN"),
    ],
)
def test_p2p_that_is_off(made: Any, status: int, level: int, severity: str, said: str) -> None:
    found = check_p2p(two(made, p2p=status, level=level), pci(made, 0, 0))
    assert made.found(found) == [("p2p", severity)]
    assert said in found[0].evidence


@pytest.mark.parametrize("status", [1, 2, 3, 5])
def test_nvlink_between_far_gpus_promises_p2p(made: Any, status: int) -> None:
    found = check_p2p(two(made, p2p=status, level=50, is_linked=True), pci(made, 0, 0))
    assert made.found(found) == [("p2p", "warning")]


@pytest.mark.parametrize("status", [1, 2, 5])
def test_cards_without_p2p_get_no_advice_to_change_anything(made: Any, status: int) -> None:
    (found,) = (item for item in check_p2p(two(made, p2p=status), pci(made, 0, 0)) if item.check == "p2p")
    assert "not supported here" in found.title
    assert "host memory" in found.title
    assert found.remedy.startswith("Nothing to repair")


def three(made: Any, *statuses: int, linked: tuple[bool | None, ...] = (False,) * 3, names: str = "AAA") -> Any:
    machine = made.machine(*(made.gpu(at, name=f"NVIDIA {letter}") for at, letter in enumerate(names)))
    rows = zip(machine.pairs, statuses, linked, strict=True)
    pairs = tuple(replace(pair, p2p=made.ok(status), is_linked=join) for pair, status, join in rows)
    return replace(machine, pairs=pairs)


def p2p_only(made: Any, machine: Any) -> list[tuple[str, str]]:
    return [item for item in made.found(check_p2p(machine, made.pci())) if item[0] == "p2p"]


def test_a_pair_that_differs_from_its_equals_is_told(made: Any) -> None:
    assert p2p_only(made, three(made, 0, 0, 1)) == [("p2p", "warning")]


@pytest.mark.parametrize(
    "changes",
    [
        {"linked": (True, False, False)},  # a bridge joins two of three cards: the others are of another kind
        {"linked": (None, None, None)},  # who is joined is unknown
        {"names": "AAB"},
    ],
)
def test_pairs_of_other_kinds_accuse_nobody(made: Any, changes: dict[str, Any]) -> None:
    assert p2p_only(made, three(made, 0, 1, 1, **changes)) == [("p2p", "note")]


def test_unknown_status_is_a_note(made: Any) -> None:
    machine = two(made)
    pairs = tuple(replace(pair, p2p=made.bad("FUNCTION_NOT_FOUND")) for pair in machine.pairs)
    found = check_p2p(replace(machine, pairs=pairs), pci(made, 0, 0))
    assert made.found(found) == [("p2p", "note")]


@pytest.mark.parametrize("control", [0b0100, 0b1000, 0x1D])
def test_redirecting_ports_between_gpus_are_suspects(made: Any, control: int) -> None:
    found = check_p2p(two(made), made.pci(("0000:01:01.0", made.ok(control)), ("0000:00:01.0", made.ok(control))))
    assert made.found(found) == [("acs", "warning")]
    (suspect,) = (item for item in found if item.check == "acs")
    # The port that both share leads to the CPU anyway.
    assert suspect.evidence.endswith("0000:01:01.0")


@pytest.mark.parametrize("control", [0, 0b0001, 0b1_0000])
def test_other_acs_bits_are_no_suspects(made: Any, control: int) -> None:
    assert made.found(check_p2p(two(made), made.pci(("0000:01:01.0", made.ok(control))))) == []


def test_gpus_under_ports_of_their_own_meet_no_acs(made: Any) -> None:
    machine = made.machine(
        made.gpu(0, bridges=made.ok(("0000:00:01.0",))), made.gpu(1, bridges=made.ok(("0000:00:02.0",)))
    )
    assert made.found(check_p2p(machine, made.pci(("0000:00:01.0", made.ok(0x1D))))) == []


def test_ports_that_are_unknown_are_told(made: Any) -> None:
    gpus = (made.gpu(at, bridges=made.bad("ENOENT")) for at in range(2))
    found = check_p2p(made.machine(*gpus), made.pci())
    assert made.found(found) == [("acs", "note")]


@pytest.mark.parametrize(("code", "faults"), [("NEEDS_ROOT", [("acs", "note")]), ("NO_ACS", [])])
def test_ports_that_do_not_tell(made: Any, code: str, faults: list[tuple[str, str]]) -> None:
    assert made.found(check_p2p(two(made), made.pci(("0000:01:01.0", made.bad(code))))) == faults


@pytest.mark.parametrize(
    ("kind", "virtual", "faults"),
    [("identity", False, []), ("DMA-FQ", False, [("iommu", "warning")]), ("DMA", True, [])],
)
def test_translation_on_bare_metal(made: Any, kind: str, virtual: bool, faults: list[tuple[str, str]]) -> None:
    machine = two(made, is_virtual=made.ok(virtual))
    assert made.found(check_p2p(machine, pci(made, 0, 0, iommu=kind))) == faults


def test_every_fault_asks_for_a_test_first_and_none_forces_p2p(made: Any) -> None:
    found = check_p2p(two(made, p2p=4), pci(made, 0x1D, 0x1D, iommu="DMA"))
    faults = [item for item in found if item.severity.value == "warning"]
    assert len(faults) == 3
    assert all("test with verification" in item.remedy and "NCCL_P2P" not in item.remedy for item in faults)
