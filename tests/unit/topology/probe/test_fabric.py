"""Labels of addresses, peer-to-peer in words, and lists of CPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.probe.fabric import join, level_labels
from topology.probe.host_parts import kernel_list
from topology.probe.p2p import p2p_warnings
from topology.probe.readings import P2pReadings
from topology.probe.sysfs import parse_cpu_list


def status(made: Any, a: int, b: int, read: int | str, write: int | str = 0) -> P2pReadings:
    def reading(value: int | str) -> Any:
        return made.bad(value) if isinstance(value, str) else made.ok(value)

    return P2pReadings(
        a_index=a, b_index=b, read=reading(read), write=reading(write), nvlink=made.ok(5), atomics=made.ok(5)
    )


@pytest.mark.parametrize(
    ("read", "write", "told"),
    [
        (0, 0, []),
        ("NOT_SUPPORTED", "UNKNOWN", []),
        (4, 0, ["GPU 0 - GPU 1: no peer-to-peer: reads disabled by a driver setting (registry key)"]),
        (0, 5, ["GPU 0 - GPU 1: no peer-to-peer: writes not supported"]),
        (77, "UNKNOWN", ["GPU 0 - GPU 1: no peer-to-peer: reads status 77"]),
    ],
)
def test_peers_are_told_by_pair_and_status(made: Any, read: int | str, write: int | str, told: list[str]) -> None:
    assert p2p_warnings({0, 1}, [status(made, 0, 1, read, write)]) == told


def test_many_peers_are_few_lines(made: Any) -> None:
    rows = [status(made, a, b, 1 if a < 4 <= b else 0) for a, b in combinations(range(8), 2)]
    (line,) = p2p_warnings(set(range(8)), rows)
    assert line.startswith("GPU 0 - GPU 4, GPU 0 - GPU 5, ")
    assert " and 8 more pairs: " in line
    # Hidden GPUs are not spoken of.
    assert p2p_warnings({0, 1, 2, 3}, rows) == []


def test_labels_are_of_addresses(made: Any) -> None:
    nvml = made.nvml(made.gpu(0), made.gpu(1), made.gpu(2, pci=made.bad("UNKNOWN")), level=20)
    assert level_labels(nvml.gpus, nvml.ancestors) == {frozenset((made.pci(0), made.pci(1))): "PXB"}


def test_a_label_of_the_tree_serves_where_the_driver_has_none(made: Any) -> None:
    gpus = {"a": made.gpu(0), "b": made.gpu(1), "c": made.gpu(2)}
    nvml = made.nvml(*gpus.values())
    silent = [replace(row, level=made.bad("UNKNOWN")) for row in nvml.ancestors]
    found = join(gpus, silent, "box", frozenset(), {frozenset(("a", "b")): "PXB"})
    assert [(pair.a, pair.b, pair.kind) for pair in found.pairs] == [("a", "b", "PXB")]
    assert found.warnings == ("GPU 0 - GPU 2, GPU 1 - GPU 2: topology level unreadable (UNKNOWN)",)


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cpus_are_written_as_the_kernel_does(cpus: set[int]) -> None:
    assert parse_cpu_list(kernel_list(cpus) or "") == tuple(sorted(cpus))


@pytest.mark.parametrize(("cpus", "text"), [((0, 1, 2, 8), "0-2,8"), ((5,), "5"), ((3, 1, 2), "1-3"), ((), None)])
def test_runs_are_written_short(cpus: tuple[int, ...], text: str | None) -> None:
    assert kernel_list(cpus) == text
