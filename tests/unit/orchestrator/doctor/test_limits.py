"""Shared memory, locked memory, open files, processes, memory of the control group."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.doctor.checks_limits import check_limits
from topology.units import GIB, MIB


def test_a_roomy_process_has_no_findings(made: Any) -> None:
    assert made.found(check_limits(made.limits(), made.machine(made.gpu()))) == []


@pytest.mark.parametrize(
    ("total", "free", "gpus", "severity"),
    [
        (64 * MIB, 64 * MIB, 2, "error"),
        (64 * MIB, 64 * MIB, 1, "warning"),
        (512 * MIB, 512 * MIB, 2, "warning"),
        (8 * GIB, 10 * MIB, 2, "warning"),
    ],
)
def test_small_shared_memory(made: Any, total: int, free: int, gpus: int, severity: str) -> None:
    limits = made.limits(shm_total_bytes=made.ok(total), shm_free_bytes=made.ok(free))
    found = check_limits(limits, made.machine(*(made.gpu(at) for at in range(gpus))))
    assert made.found(found) == [("shm", severity)]


@pytest.mark.parametrize(("code", "severity"), [("ENOENT", "error"), ("EACCES", "note")])
def test_no_shared_memory_is_a_fault_and_an_unreadable_one_a_note(made: Any, code: str, severity: str) -> None:
    limits = made.limits(shm_total_bytes=made.bad(code), shm_free_bytes=made.bad(code))
    found = check_limits(limits, made.machine())
    assert made.found(found) == [("shm", severity)]
    assert code in next(item.evidence for item in found if item.check == "shm")


@pytest.mark.parametrize(("kind", "severity"), [("infiniband", "error"), ("roce", "error"), ("ethernet", "note")])
def test_locked_memory_matters_with_rdma(made: Any, kind: str, severity: str) -> None:
    machine = made.machine(made.gpu(), nics=(made.nic("n", 0, kind),))
    found = check_limits(made.limits(memlock_bytes=made.ok(8 * MIB)), machine)
    assert made.found(found) == [("memlock", severity)]
    assert "8192 KiB" in next(item.evidence for item in found if item.check == "memlock")


def test_a_large_limit_of_locked_memory_is_a_warning(made: Any) -> None:
    machine = made.machine(nics=(made.nic("n", 0),))
    found = check_limits(made.limits(memlock_bytes=made.ok(64 * GIB)), machine)
    assert made.found(found) == [("memlock", "warning")]


def test_few_files_and_processes(made: Any) -> None:
    limits = made.limits(open_files=made.ok(1024), open_files_hard=made.bad("UNLIMITED"), pids=made.ok(512))
    found = check_limits(limits, made.machine())
    assert made.found(found) == [("open-files", "warning"), ("pids", "warning")]
    assert "hard limit unlimited" in next(item.evidence for item in found if item.check == "open-files")


def test_unreadable_limits_are_notes(made: Any) -> None:
    odd = made.bad("EPERM")
    limits = made.limits(memlock_bytes=odd, open_files=odd, pids=odd)
    found = check_limits(limits, made.machine(memory_limit_bytes=odd))
    assert {severity for _, severity in made.found(found)} == {"note"}
    assert [check for check, _ in made.found(found)] == ["memlock", "open-files", "pids", "memory-limit"]


@pytest.mark.parametrize(("left", "faults"), [(1 * GIB, [("memory-limit", "warning")]), (20 * GIB, [])])
def test_a_full_control_group(made: Any, left: int, faults: list[tuple[str, str]]) -> None:
    machine = made.machine(memory_limit_bytes=made.ok(32 * GIB), memory_headroom_bytes=made.ok(left))
    assert made.found(check_limits(made.limits(), machine)) == faults
