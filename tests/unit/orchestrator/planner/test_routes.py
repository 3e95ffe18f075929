"""Rates of collectives from the wires of drawn machines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.calibration_file import Calibration, Measured, Section
from orchestrator.config import BatchConfig, Engine, EngineConfig, Offload
from orchestrator.planner.plan import Plan
from orchestrator.planner.routes import Routes, routes_of
from orchestrator.planner.wires import measured_links, wires_of
from topology.collectives import Collective, bus_factor
from topology.graph import graph_of
from topology.model import Device, Topology
from topology.presets import preset, preset_names
from topology.routing.bound import bound
from topology.routing.menu import menu
from topology.routing.software import Runner
from topology.units import GB

Planner = Callable[..., Plan]
ROOT = Path(__file__).parents[4]
ON_ONE_HOST = ("dgx_h100", "dgx_a100", "2x24gb-pcie", "pcie_l40s_x8", "dgx1_v100", "a100_pcie_pairs_x4", "a100_sxm_x4")


def _by_host(topology: Topology) -> list[Sequence[Device]]:
    return [host.devices for host in topology.hosts]


def _routes(topology: Topology, *, one_fabric: bool = False) -> Routes:
    found = wires_of(topology).routes(_by_host(topology), one_fabric=one_fabric)
    assert found is not None
    return found


def _of_library(topology: Topology, collective: Collective) -> float:
    """Bus rate of the fastest thing that the library runs, by the menu of all routes."""
    graph = graph_of(topology)
    entries = [e for e in menu(graph, collective, search=False) if e.runner is Runner.builtin]
    return max(float(bus_factor(collective, graph.size)) / entry.cost.overlapped for entry in entries)


@pytest.mark.parametrize("name", ON_ONE_HOST)
def test_rates_are_those_of_the_menu_of_routes(name: str) -> None:
    found = _routes(preset(name))
    reduce, gather = (_of_library(preset(name), c) for c in (Collective.all_reduce, Collective.all_gather))
    assert found.reduce.bytes_per_second == pytest.approx(reduce, rel=0.01)
    assert found.gather.bytes_per_second == pytest.approx(gather, rel=0.01)


@pytest.mark.parametrize("name", ["4xa100-40gb+4xh100-80gb", "g5_12xlarge"])
def test_two_hosts_reduce_over_trees_and_gather_over_rings(name: str) -> None:
    topology = preset(name, nodes=1 if "+" in name else 2)
    found = _routes(topology)
    assert found.reduce.algorithm == "double tree"
    assert found.reduce.bytes_per_second == pytest.approx(_of_library(topology, Collective.all_reduce), rel=0.01)
    assert found.gather.bytes_per_second == pytest.approx(_of_library(topology, Collective.all_gather), rel=0.01)
    assert "network port" in found.gather.limit


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "cpu"])
def test_no_gather_beats_its_bound(name: str) -> None:
    topology = preset(name)
    some = wires_of(topology).routes([host.devices for host in topology.hosts[:2]])
    devices = [device.id for host in topology.hosts[:2] for device in host.devices]
    if len(devices) == 1:
        assert some is None
        return
    assert some is not None
    least = bound(graph_of(topology, devices), Collective.all_gather).bus_bytes_per_second
    assert 0.2 * least < some.gather.bytes_per_second <= least


@pytest.mark.parametrize("nodes", [3, 6])
def test_a_cluster_is_reckoned_by_two_of_its_hosts(nodes: int) -> None:
    """The ring over all hosts and that over two of them pass each host's ports once."""
    topology = preset("dgx_h100", nodes=nodes)
    graph = graph_of(topology)
    whole = routes_of(graph, graph.size, nodes)
    assert whole is not None
    found = _routes(topology)
    assert found.gather.bytes_per_second == pytest.approx(whole.gather.bytes_per_second, rel=0.01)
    assert found.reduce.bytes_per_second == pytest.approx(whole.reduce.bytes_per_second, rel=0.01)


def test_trees_between_switches_pay_with_two_hosts_only() -> None:
    """From three hosts on an inner node sends everything twice."""
    two, three = (_routes(preset("dgx_h100", nodes=nodes)) for nodes in (2, 3))
    assert two.reduce.algorithm == "NVLS tree"
    assert three.reduce.algorithm == "ring"
    assert two.reduce.bytes_per_second > 1.2 * three.reduce.bytes_per_second


def test_a_rack_is_one_fabric() -> None:
    topology = preset("gb200_nvl72")
    rack, tray = _routes(topology, one_fabric=True), wires_of(topology).routes([topology.hosts[0].devices])
    assert tray is not None
    assert rack.gather.bytes_per_second == tray.gather.bytes_per_second
    assert rack.reduce.algorithm == "NVLS"
    assert rack.reduce.bytes_per_second == pytest.approx(0.6 * 900 * GB * 2 * (71 / 72) / (1 + 1 / 72), rel=1e-3)


def test_the_slowest_port_of_mixed_hosts_limits() -> None:
    topology = preset("mixed_a100_h100", nodes=2)
    found = _routes(topology)
    ports = {host.name: sum(nic.bytes_per_second or 0 for nic in host.nics) for host in topology.hosts}
    assert found.gather.bytes_per_second <= 0.95 * min(ports.values()) * 1.001
    assert min(ports, key=lambda name: ports[name]) in found.gather.limit or "GPU" in found.gather.limit


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "2x24gb-pcie",
            "ring, bus rate 15.4 GB/s, limited by each GPU's PCIe Gen4 x16 link (49% of 31.5 GB/s each)",
        ),
        (
            "dgx_a100",
            "ring, bus rate 231.0 GB/s, limited by each GPU's NVLinks to the NVSwitch (77% of 300.0 GB/s each)",
        ),
        (
            "dgx1_v100",
            "several rings, bus rate 135.0 GB/s, limited by the NVLinks between two GPUs (90% of 50.0 GB/s each)",
        ),
    ],
)
def test_words_name_the_wire(name: str, words: str) -> None:
    assert _routes(preset(name)).gather.text == words


def test_wires_that_nobody_read_give_no_rate() -> None:
    topology = preset("2x24gb-pcie")
    assert wires_of(replace(topology, links=(), switches=())).routes(_by_host(topology)) is None
    apart = preset("dgx_h100", nodes=2)
    without = replace(apart, switches=tuple(s for s in apart.switches if s.host is not None), links=())
    assert wires_of(without).routes(_by_host(apart)) is None


def _calibrated(*measured: Measured) -> Calibration:
    section = Section(name="links", made="2026-11-30", measured=measured)
    return Calibration(
        made="2026-11-30",
        fingerprint="",
        hosts=(),
        devices=(),
        versions=(),
        ranks=0,
        threads=0,
        sections=(section,),
    )


def test_measured_links_count_as_measured() -> None:
    """What was measured under load is what copies reach: no share is taken off it."""
    topology = preset("2x24gb-pcie")
    own = [x for x in topology.links if {x.a, x.b} & {device.id for device in topology.gpus}]
    rates = [
        Measured(name=f"{x.a}|{x.b}", value=9e9, unit="bytes/s", repeats=3, spread=0.0, how="copies at once")
        for x in own
    ]
    other = Measured(name="latency", value=1e-5, unit="s", repeats=3, spread=0.0, how="ping")
    links = measured_links(_calibrated(*rates, other))
    assert links == {frozenset((x.a, x.b)): 9e9 for x in own}
    found = wires_of(topology, links).routes(_by_host(topology))
    assert found is not None
    assert found.gather.bytes_per_second == pytest.approx(9e9)
    assert "100% of 9.0 GB/s" in found.gather.limit
    assert measured_links(None) == {}


def test_plain_machines_are_reckoned_without_a_solver() -> None:
    """Loading scipy takes longer than such a plan."""
    script = """
import sys
from orchestrator.planner.wires import wires_of
from topology.presets import preset
for name, nodes in (("dgx_h100", 1), ("2x24gb-pcie", 1), ("pcie_l40s_x8", 1), ("dgx_h100", 4), ("gh200", 2)):
    topology = preset(name, nodes=nodes)
    assert wires_of(topology).routes([host.devices for host in topology.hosts])
print(sorted({"numpy", "scipy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plan_tells_what_its_collectives_reach(plan_for: Planner) -> None:
    ddp = plan_for("8b", "dgx_h100")
    assert any(reason.startswith("Links: gradients take NVLS, bus rate 473.2 GB/s") for reason in ddp.reasons)
    engine = EngineConfig(name=Engine.zero3, offload_param=Offload.none)
    zero3 = plan_for("8b", "dgx_h100", engine=engine, devices=8, batch=BatchConfig(global_=16, micro=1))
    assert any(
        reason.startswith("Links: weights and gradients take ring, bus rate 366.8 GB/s") for reason in zero3.reasons
    )
    alone = plan_for("tiny", "rtx4090")
    assert not any("limited by" in reason for reason in alone.reasons)
