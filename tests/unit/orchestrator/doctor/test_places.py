"""NUMA nodes of NICs and GPUs, and where this process may run."""

from __future__ import annotations

from typing import Any

from orchestrator.doctor.checks_numa import check_numa


def nics(found: Any) -> list[str]:
    return [item.severity.value for item in found if item.check == "nic-numa"]


def test_each_node_with_its_nic_passes(made: Any) -> None:
    machine = made.machine(
        made.gpu(0), made.gpu(1, numa=made.ok(1)), nics=(made.nic("mlx5_0", 0), made.nic("mlx5_1", 1))
    )
    assert made.found(check_numa(machine)) == []


def test_a_spare_nic_on_the_wrong_socket_is_a_fault(made: Any) -> None:
    gpus = (made.gpu(0, numa=made.ok(1)), made.gpu(1, numa=made.ok(1)))
    found = check_numa(made.machine(*gpus, nics=(made.nic("mlx5_0", 0),)))
    assert nics(found) == ["warning"]
    assert "node 0: 0 GPU(s), 1 RDMA port(s); node 1: 2 GPU(s), 0 RDMA port(s)" in found[0].evidence


def test_one_nic_for_two_sockets_is_a_note(made: Any) -> None:
    found = check_numa(made.machine(made.gpu(0), made.gpu(1, numa=made.ok(1)), nics=(made.nic("mlx5_0", 0),)))
    assert nics(found) == ["note"]


def test_ethernet_does_not_count(made: Any) -> None:
    found = check_numa(made.machine(made.gpu(0, numa=made.ok(1)), nics=(made.nic("eth0", 0, "ethernet"),)))
    assert nics(found) == []


def test_unknown_nodes_are_a_note_and_never_a_fault(made: Any) -> None:
    found = check_numa(made.machine(made.gpu(numa=made.bad("NO_NODE")), nics=(made.nic("mlx5_0", None),)))
    assert nics(found) == ["note"]
    assert "NO_NODE" in found[0].evidence


def test_a_process_pinned_away_from_its_gpu(made: Any) -> None:
    machine = made.machine(made.gpu(0, cpus=made.ok((8, 9))), made.gpu(1), cpus=made.ok((0, 1)))
    found = check_numa(machine)
    assert made.found(found) == [("cpu-affinity", "warning")]
    assert "0000:10:00.0" in found[0].evidence
    assert "0000:11:00.0" not in found[0].evidence


def test_unknown_affinity_is_a_note(made: Any) -> None:
    assert made.found(check_numa(made.machine(made.gpu(cpus=made.bad())))) == [("cpu-affinity", "note")]
    assert made.found(check_numa(made.machine(made.gpu(), cpus=made.bad("ENOENT")))) == [("cpu-affinity", "note")]
