"""Which devices of a host a part takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config import DataConfig, ModelConfig, RunConfig
from orchestrator.planner.groups import near_of
from orchestrator.planner.picks import nearest, pick_words
from orchestrator.planner.subsets import choose_worlds
from topology.collectives import Collective
from topology.graph import graph_of
from topology.model import Topology
from topology.presets import preset
from topology.routing.bound import bound
from topology.routing.groups import rank_groups

CONFIG = RunConfig(model=ModelConfig(path="m"), data=DataConfig(path="r"))


def _picked(topology: Topology, count: int) -> list[int]:
    (host,) = topology.hosts
    chosen = nearest(near_of(topology), host.name, host.devices, count)
    return [host.devices.index(device) for device in chosen]


@pytest.mark.parametrize(
    ("name", "count", "places"),
    [
        ("dgx1_v100", 4, [0, 1, 2, 3]),
        ("dgx1_v100", 2, [0, 3]),
        ("a100_pcie_pairs_x8", 4, [0, 1, 2, 3]),
        ("a100_pcie_pairs_x8", 2, [0, 1]),
        ("pcie_l40s_x8", 4, [0, 1, 2, 3]),
        ("pcie_4090x8", 2, [0, 1]),
        ("dgx_h100", 5, [0, 1, 2, 3, 4]),
    ],
)
def test_the_group_that_gathers_fastest_is_taken(name: str, count: int, places: list[int]) -> None:
    topology = preset(name)
    picked = _picked(topology, count)
    assert picked == places
    ids = [topology.devices[at].id for at in picked]
    best = rank_groups(topology, count).groups[0].all_gather_bytes_per_second
    assert bound(graph_of(topology, ids), Collective.all_gather).bus_bytes_per_second == pytest.approx(best)


def test_where_wires_were_not_read_labels_decide() -> None:
    topology = preset("a100_pcie_pairs_x8")
    without = replace(topology, links=(), switches=())
    assert _picked(without, 2) == [0, 1]
    assert _picked(without, 4) == [0, 1, 2, 3]


def _words(name: str, count: int) -> str:
    topology = preset(name)
    (world,) = choose_worlds(replace(CONFIG, devices=count), topology)
    return pick_words(topology, world)


def test_words_tell_what_others_would_reach() -> None:
    assert _words("dgx1_v100", 4) == (
        "GPUs 0, 1, 2, 3: no other 4 gather faster (100.0 GB/s over full wires; the worst 4 15.8 GB/s)"
    )
    assert _words("dgx_h100", 4) == "GPUs 0, 1, 2, 3: all 8 are joined alike, so any 4 would do"
    assert _words("pcie_l40s_x8", 4).startswith("GPUs 0, 1, 2, 3, the nearest to each other: any 4 gather at up to")
    assert _words("dgx_h100", 8) == ""


def test_a_worse_part_is_told_as_such() -> None:
    topology = preset("dgx1_v100")
    (world,) = choose_worlds(replace(CONFIG, devices=4), topology)
    worse = replace(world, devices=tuple(topology.devices[at] for at in (0, 1, 4, 5)))
    assert pick_words(topology, worse) == (
        "GPUs 0, 1, 4, 5; the 4 that gather fastest would reach 100.0 GB/s over full wires"
    )
