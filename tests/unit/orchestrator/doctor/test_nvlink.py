"""NVLink that should be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.doctor.checks_nvlink import check_nvlink

SXM = "NVIDIA H100 80GB HBM3"


def two(made: Any, *links: Any, name: str = SXM, **changes: Any) -> Any:
    gpus = (made.gpu(at, name=name, nvlink=link) for at, link in enumerate(links))
    return made.machine(*gpus, **changes)


def test_all_ports_active_passes(made: Any) -> None:
    links = [made.nvlink(*[1] * 18, fabric=made.ok(3))] * 2
    found = check_nvlink(two(made, *links), made.manager())
    assert made.found(found) == []
    assert "18 active" in found[0].title


def test_dead_ports_name_the_fabric_manager(made: Any) -> None:
    links = [made.nvlink(*[0] * 18)] * 2
    manager = made.manager(running=made.ok(value=False), switches=made.ok(("0000:05:00.0",)))
    found = check_nvlink(two(made, *links), manager)
    assert made.found(found) == [("nvlink", "error")]
    assert "1 NVSwitch(es)" in found[0].evidence
    assert "no nv-fabricmanager process" in found[0].evidence
    assert "nvidia-fabricmanager" in found[0].remedy


@pytest.mark.parametrize("state", [1, 2])
def test_an_unfinished_fabric_is_an_error(made: Any, state: int) -> None:
    links = [made.nvlink(*[1] * 18, fabric=made.ok(state))]
    assert made.found(check_nvlink(two(made, *links), made.manager())) == [("fabric-manager", "error")]


def test_cards_without_nvlink_are_left_alone(made: Any) -> None:
    cards = ["NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090", "NVIDIA H200 NVL", "NVIDIA L40S"]
    for name in cards:
        assert check_nvlink(two(made, made.nvlink(), made.nvlink(), name=name), made.manager()) == ()
        assert made.found(check_nvlink(two(made, made.nvlink(0), made.nvlink(0), name=name), made.manager())) == []


@pytest.mark.parametrize(
    "name",
    [
        "Tesla V100-SXM2-32GB",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H200",
        "NVIDIA H20",
        "NVIDIA B200",
        "NVIDIA B300 SXM6 AC",
        "NVIDIA GB200",
    ],
)
def test_modules_with_nvlink_are_known_by_name(made: Any, name: str) -> None:
    found = check_nvlink(two(made, made.nvlink(0, 0), made.nvlink(0, 0), name=name), made.manager())
    assert made.found(found) == [("nvlink", "error")]


@pytest.mark.parametrize("running", [True, False])
def test_one_dark_card_among_working_ones_is_the_card_s_fault(made: Any, running: bool) -> None:
    links = [made.nvlink(*[1] * 18)] * 7 + [made.nvlink(*[0] * 18)]
    found = check_nvlink(two(made, *links), made.manager(running=made.ok(running)))
    assert made.found(found) == [("nvlink", "error")]
    assert "0000:17:00.0: all its NVLinks are down" in found[0].title
    assert "7 equal GPU(s) have up to 18" in found[0].evidence
    assert "Install nvidia-fabricmanager" not in found[0].remedy
    assert "GPU-7" in found[0].remedy


@pytest.mark.parametrize("ports", [0, 18])
def test_one_unreadable_card_among_working_ones_is_told(made: Any, ports: int) -> None:
    working = made.nvlink(*[1] * 18)
    silent = replace(working, ports=(made.bad("UNKNOWN"),) * ports)
    found = check_nvlink(two(made, working, working, silent), made.manager())
    assert made.found(found) == [("nvlink", "warning")]
    assert "0000:12:00.0" in found[0].title
    assert "fabricmanager" not in found[0].remedy


def test_a_bridge_that_joins_only_two_of_four_cards_is_no_fault(made: Any) -> None:
    links = [made.nvlink(1, 1)] * 2 + [made.nvlink(0, 0)] * 2
    assert made.found(check_nvlink(two(made, *links, name="NVIDIA A100-PCIE-40GB"), made.manager())) == []


def test_mig_switches_nvlink_off_and_is_no_fault(made: Any) -> None:
    gpus = [made.gpu(0, name=SXM, nvlink=made.nvlink(1, 1)), made.gpu(1, name=SXM, nvlink=made.nvlink(0, 0), mig=True)]
    assert made.found(check_nvlink(made.machine(*gpus), made.manager())) == []


def test_one_card_outside_the_fabric_of_the_others(made: Any) -> None:
    links = [made.nvlink(1, fabric=made.ok(3)), made.nvlink(1, fabric=made.ok(2))]
    (found,) = check_nvlink(two(made, *links), made.manager())
    assert (found.check, found.severity.value) == ("fabric-manager", "error")
    assert "1 GPU(s) have not joined" in found.title
    assert "Install nvidia-fabricmanager" not in found.remedy


def test_a_card_with_fewer_ports_than_its_equals(made: Any) -> None:
    found = check_nvlink(two(made, made.nvlink(*[1] * 12), made.nvlink(*[1] * 10, 0, 0)), made.manager())
    assert made.found(found) == [("nvlink", "warning")]
    assert "0000:11:00.0: 10 of 12" in found[0].evidence


def test_silence_in_a_virtual_machine_is_a_note(made: Any) -> None:
    assert made.found(check_nvlink(two(made, made.nvlink(), made.nvlink()), made.manager())) == [("nvlink", "note")]


def test_unreadable_ports_are_a_note(made: Any) -> None:
    link = made.nvlink()
    broken = type(link)(ports=(made.bad("UNKNOWN"),), fabric_state=made.bad())
    assert made.found(check_nvlink(two(made, broken, broken), made.manager())) == [("nvlink", "note")]


@pytest.mark.parametrize(("version", "faults"), [("580.95.05", []), ("575.57.08", [("fabric-manager", "error")])])
def test_the_manager_has_the_driver_s_version(made: Any, version: str, faults: list[tuple[str, str]]) -> None:
    links = [made.nvlink(*[1] * 18)] * 2
    assert made.found(check_nvlink(two(made, *links), made.manager(version=made.ok(version)))) == faults
