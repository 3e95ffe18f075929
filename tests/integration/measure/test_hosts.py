"""Links and collectives as ranks measure them: on this host, and on two made from network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.calibration_file import loads
from orchestrator.config import DataConfig, ModelConfig, RouteCollective, RouteConfig, RunConfig, TopologyConfig
from orchestrator.measure import on_host
from orchestrator.measure.use import COLLECTIVES, LINKS, measured_graph, measured_software
from orchestrator.route.show import route
from topology.codec import to_json
from topology.collectives import Collective
from topology.fingerprint import fingerprint
from topology.graph import LinkClass

ROOT = Path(__file__).resolve().parents[3]
_BITS = 200_000_000
_PAYLOAD = 1448 / 1514  # of a packet on the wire
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def _has_namespaces() -> bool:
    if os.geteuid() != 0:
        return False
    name = f"probe{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
    except FileNotFoundError:
        return False
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return made.returncode == 0


@pytest.mark.slow
def test_ranks_of_this_host_tell_what_routes_need() -> None:
    found = on_host._found("cpu", f"{LINKS},{COLLECTIVES}")
    links = {entry["name"]: entry["value"] for entry in found[LINKS]}
    collectives = {entry["name"]: entry["value"] for entry in found[COLLECTIVES]}
    assert 1e7 < links["host_copy"] < 1e11
    assert 0 < links["one_way_share"] <= 1
    assert {"sum", "result_copy", "executor_share"} <= collectives.keys()
    assert any(name.startswith("all_to_all.gloo.") for name in collectives)
    assert {"step", "launch"} & collectives.keys()
    for kind in Collective:
        assert 0.05 < collectives[f"tried.{kind.value}.builtin.4194304.2"] < 20
        assert any(name.startswith(f"tried.{kind.value}.") and ".builtin." not in name for name in collectives)


def test_a_rank_without_a_launcher_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    from orchestrator.measure.group import main

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "SLURM_PROCID"):
            patch.delenv(name, raising=False)
        assert main([]) == 2
    assert "torchrun" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not _has_namespaces(), reason="network namespaces need root")
def test_two_hosts_find_the_shaped_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description says 10 Gb/s; the links carry 200 Mb/s."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from route_predictions import on_all_hosts
    from shaped_hosts import machine, shaped_hosts

    told = machine(2, 2, 10_000_000_000)
    (tmp_path / "machine.json").write_text(json.dumps(to_json(told)))
    saved = tmp_path / "calibration.json"
    words = ["-m", "orchestrator.measure.group", "--topology", str(tmp_path / "machine.json"), "--save", str(saved)]
    with shaped_hosts(2, _BITS) as made:
        on_all_hosts(made, [*words, "--parts", LINKS], cache=str(tmp_path))
    calibration = loads(saved.read_text(), "calibration")
    assert calibration.fingerprint == fingerprint(told)
    assert (tmp_path / "trainmaster" / "calibration" / f"{calibration.fingerprint}.json").is_file()
    graph = measured_graph(told, (), calibration)
    rates = {edge.bytes_per_second for edge in graph.edges if edge.link is LinkClass.network}
    for rate in rates:
        assert rate == pytest.approx(_BITS / 8 * _PAYLOAD, rel=0.1)
    assert 0 < measured_software(graph, calibration).one_way_share <= 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = RunConfig(
        model=ModelConfig(path="none"),
        data=DataConfig(path="none"),
        topology=TopologyConfig(path=str(tmp_path / "machine.json")),
        route=RouteConfig(collective=RouteCollective.all_gather, sizes=("64MiB",)),
    )
    shown = route(asked)
    assert "times by what was measured" in shown.text
    wire_seconds = 32 * 2**20 / (_BITS / 8 * _PAYLOAD)  # the other host's half comes in once
    assert shown.body["chosen"]["seconds"] == pytest.approx(wire_seconds, rel=0.2)
