"""Files for experts: as NCCL and its example tuner read them, and true to the routes they come from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.route.exports import exports, rows_of
from orchestrator.route.graph_xml import graph_xml, rings_of
from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import graph_of
from topology.model import Topology
from topology.presets import preset
from topology.routing.choose import Route, routes
from topology.routing.double_tree import double_tree
from topology.routing.ring import multi_ring
from topology.routing.software import Runner

GRAPHS = Path(__file__).resolve().parents[4].parent / "shared" / "corpus" / "nccl_xml" / "graphs"
TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
MACHINES = ("dgx1_v100", "8xh100", "2x24gb-pcie")


def read_graph(text: str) -> dict[int, tuple[float, list[list[int]]]]:
    """Speed and channels by number of the graph, with every attribute that NCCL asks for (search.cc)."""
    root = ET.fromstring(text)
    assert root.tag == "graphs"
    assert root.attrib["version"] == "1"
    found = {}
    for graph in root:
        assert graph.tag == "graph"
        for name in ("id", "pattern", "crossnic", "nchannels", "samechannels"):
            int(graph.attrib[name])
        float(graph.attrib["speedinter"])
        float(graph.attrib.get("latencyinter", "0"))
        assert graph.attrib["typeintra"] in TYPES
        assert graph.attrib["typeinter"] in TYPES
        channels = []
        for channel in graph:
            assert channel.tag == "channel"
            assert {node.tag for node in channel} <= {"gpu", "net"}
            channels.append([int(node.attrib["dev"], 16) for node in channel if node.tag == "gpu"])
        assert len(channels) == int(graph.attrib["nchannels"])
        found[int(graph.attrib["id"])] = (float(graph.attrib["speedintra"]), channels)
    return found


def read_rows(text: str) -> list[tuple[str, int, int, str, str, int, int]]:
    """The lines that the example tuner keeps, as it takes them apart."""
    found = []
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        assert len(line) < 256
        collective, least, most, algorithm, protocol, channels, nodes, ranks = line.split(",")
        assert collective in {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
        assert algorithm in {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
        assert protocol in {"ll", "ll128", "simple"}
        assert int(channels) == -1
        found.append((collective, int(least), int(most), algorithm, protocol, int(nodes), int(ranks)))
    return found


def files(topology: Topology) -> dict[str, str]:
    return {Path(path).name: text for _, path, text in exports(topology, graph_of(topology, ()), "/out")}


@pytest.mark.parametrize("name", MACHINES)
def test_each_size_finds_the_row_of_its_route_or_none(name: str) -> None:
    topology = preset(name)
    graph = graph_of(topology, ())
    rows = read_rows(files(topology)["tuner.csv"])
    words = {"ring": "ring", "double tree": "tree", "NVLS": "nvls"}
    for collective in (Collective.all_reduce, Collective.all_gather, Collective.reduce_scatter):
        own = [row for row in rows if row[0] == collective.value.replace("_", "")]
        assert all(above[1] > below[2] for below, above in pairwise(own))
        for route in routes(graph, collective):
            hits = [row for row in own if row[1] <= route.nbytes <= row[2]]
            chosen = route.chosen
            expected = (words.get(chosen.algorithm), chosen.protocol.lower() or "simple", 1, graph.size)
            is_nccls = chosen.runner is Runner.builtin
            assert [(row[3], row[4], row[5], row[6]) for row in hits] == ([expected] if is_nccls else [])


def test_rows_reach_from_no_byte_to_all_bytes_and_meet_without_a_gap() -> None:
    rows = rows_of(routes(graph_of(preset("dgx1_v100"), ()), Collective.all_reduce))
    assert rows[0].min_bytes == 0
    assert rows[-1].max_bytes == 2**32 - 1
    assert all(above.min_bytes == below.max_bytes + 1 for below, above in pairwise(rows))


def test_what_only_our_own_executor_runs_leaves_a_gap() -> None:
    by_size = routes(graph_of(preset("dgx1_v100"), ()), Collective.all_reduce, (2**10, 2**20, 2**30))

    def ours(route: Route) -> Route:
        return replace(route, chosen=replace(route.chosen, runner=Runner.executor))

    (row,) = rows_of((ours(by_size[0]), by_size[1], ours(by_size[2])))
    assert (row.min_bytes, row.max_bytes) == (2**15 + 1, 2**25)


@pytest.mark.parametrize("name", [*MACHINES, "4xv100-16gb"])
def test_channels_are_rings_and_carry_no_more_than_the_wires(name: str) -> None:
    topology = preset(name)
    graph = graph_of(topology, ())
    speed, channels = read_graph(graph_xml(topology, graph))[0]
    assert 1 <= len(channels) <= 32
    assert speed <= {"8xh100": 36.7}.get(name, 20)  # what NCCL gives to one channel
    assert all(sorted(order) == list(range(graph.size)) for order in channels)
    schedule = multi_ring(graph, Collective.all_gather)
    paths = {(send.source, send.target): send.path for send in schedule.sends}
    load: dict[int, float] = defaultdict(float)
    for order in channels:
        for source, target in zip(order, order[1:] + order[:1], strict=True):
            for edge in paths[source, target]:
                load[edge] += speed
    limits = [graph.edges[edge].bytes_per_second for edge in load]
    shares = [load[edge] * 1e9 / rate for edge, rate in zip(load, limits, strict=True) if rate]
    assert 0.9 <= max(shares) <= 1.001


def test_a_cube_mesh_gets_the_twelve_channels_that_nccl_finds_there() -> None:
    topology = preset("dgx1_v100")
    speed, channels = read_graph(graph_xml(topology, graph_of(topology, ())))[0]
    assert (speed, len(channels)) == (12.5, 12)


def test_a_ring_is_read_off_its_schedule() -> None:
    graph = graph_of(preset("4xv100-16gb"), ())
    schedule = multi_ring(graph, Collective.all_gather)
    rings = rings_of(schedule)
    assert sum(share for _, share in rings) == 1
    assert all(sorted(order) == [0, 1, 2, 3] and order[0] == 0 for order, _ in rings)
    with pytest.raises(TopologyError, match="round"):
        rings_of(double_tree(graph_of(preset("dgx1_v100"), ()), Collective.all_reduce))


def test_gpus_are_numbered_as_the_driver_does() -> None:
    topology = preset("2x24gb-pcie")
    host = topology.hosts[0]
    moved = tuple(replace(device, index=at) for device, at in zip(host.devices, (11, 3), strict=True))
    numbered = replace(topology, hosts=(replace(host, devices=moved),))
    assert 'dev="0xb"' in graph_xml(numbered, graph_of(numbered, ()))
    silent = replace(topology, hosts=(replace(host, devices=(moved[0], replace(moved[1], index=None))),))
    assert "graph.xml is not here: no number of" in files(silent)["README.txt"]
    assert "graph.xml" not in files(silent)


def test_several_hosts_get_a_table_and_the_reason_for_no_graph() -> None:
    found = files(preset("2xa100-40gb+2xt4"))
    assert set(found) == {"tuner.csv", "README.txt"}
    assert {row[5:] for row in read_rows(found["tuner.csv"])} == {(2, 4)}
    assert "a graph file is of one host" in found["README.txt"]


def test_the_text_beside_them_says_how_to_try_and_that_nothing_is_applied() -> None:
    found = files(preset("2x24gb-pcie"))
    assert read_graph(found["graph.xml"])
    text = found["README.txt"]
    assert text.startswith("Nothing here is applied.")
    for word in ("-c 1", "#wrong", "NCCL_GRAPH_FILE=graph.xml", "NCCL_TUNER_CONFIG_FILE=tuner.csv", "medians"):
        assert word in text


def test_cpu_ranks_have_nothing_to_export() -> None:
    topology = preset("cpu")
    with pytest.raises(UserError, match="gloo"):
        exports(topology, graph_of(topology, ()), "/out")


@pytest.mark.skipif(not GRAPHS.is_dir(), reason="the corpus lies outside the repository")
def test_real_files_read_by_the_same_rules() -> None:
    found = {path.name: path.read_text() for path in GRAPHS.glob("*.xml") if "PARTIAL" not in path.name}
    assert len(found) >= 2
    for text in found.values():
        speed, channels = read_graph(text)[0]
        assert speed > 0
        assert channels


@pytest.mark.parametrize("name", ["tuner.csv", "graph.xml", "README.txt"])
def test_files_of_others_are_not_written_over(tmp_path: Path, name: str) -> None:
    topology = preset("2x24gb-pcie")
    graph = graph_of(topology, ())
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=rf"{name} there, and not written by an export"):
        exports(topology, graph, str(tmp_path))
    (tmp_path / name).unlink()
    (tmp_path / "notes.md").write_text("mine")
    for _, path, text in exports(topology, graph, str(tmp_path)):
        Path(path).write_text(text)
    assert exports(topology, graph, str(tmp_path))  # its own may be written again
    with pytest.raises(UserError, match="there is a file of that name"):
        exports(topology, graph, str(tmp_path / "notes.md"))


def test_what_is_exported_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main(["route", "topology=2x24gb-pcie", f"route.export={folder}"]) == 0
    told = capsys.readouterr().err
    for path in folder.iterdir():
        assert f"route.export: wrote {path}" in told
    assert f"(new folder {folder})" in told
    (folder / "README.txt").write_text("mine")
    assert main(["route", "topology=2x24gb-pcie", f"route.export={folder}"]) == 2
    assert (folder / "README.txt").read_text() == "mine"
