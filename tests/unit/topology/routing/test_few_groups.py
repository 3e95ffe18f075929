"""The best and the worst group of a small host are those of the full ranking, wherever an answer is given."""

from __future__ import annotations

import pytest

from topology.presets import preset
from topology.routing.few_groups import best_group, worst_gather_rate
from topology.routing.groups import rank_groups

MACHINES = {
    "4xv100-16gb": (2, 3),
    "dgx1_v100": (2, 4),
    "h100_nvl_x8": (2, 4),
    "a100_pcie_pairs_x4": (2, 3),
    "a100_pcie_pairs_x8": (4, 6),
    "rtx_a6000_x4": (2,),
    "a100_sxm_x4": (3,),
}


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, sizes in MACHINES.items() for size in sizes])
def test_the_first_and_the_last_of_the_ranking(name: str, size: int) -> None:
    topology = preset(name)
    groups = rank_groups(topology, size).groups
    best = best_group(topology, size)
    if best is None:
        assert (name, size) == ("a100_pcie_pairs_x8", 6)  # its groups tie, and only a program tells them apart
        return
    assert best.devices == groups[0].devices
    assert best.all_gather_bytes_per_second == groups[0].all_gather_bytes_per_second
    assert worst_gather_rate(topology, size) == groups[-1].all_gather_bytes_per_second


def test_larger_machines_and_switches_of_two_halves_are_left_to_programs() -> None:
    assert best_group(preset("dgx2_v100"), 4) is None
    assert best_group(preset("dgx1_v100", nodes=2), 4) is None
    assert worst_gather_rate(preset("dgx2_v100"), 4) is None
    assert best_group(preset("pcie_4090x8"), 4) is None
