from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.codec import SCHEMA, fingerprint, from_json, to_json
from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Topology
from topology.presets import preset, preset_names
from topology.units import GIB

sizes = st.integers(0, 2**50)
rates = st.none() | st.floats(0, 1e13, allow_nan=False)


@st.composite
def devices(draw: st.DrawFn, host: str, at: int) -> Device:
    is_cpu = draw(st.booleans())
    return Device(
        id=f"{host}/{at}",
        host=host,
        kind=DeviceKind.cpu if is_cpu else DeviceKind.gpu,
        name=draw(st.text(max_size=8)),
        memory_bytes=draw(sizes),
        numa=draw(st.none() | st.integers(0, 7)),
        pci=draw(st.sampled_from([None, "0000:18:00.0", "10000:01:00.0"])),
        uuid=draw(st.none() | st.just(f"GPU-{at}")),
        index=draw(st.none() | st.integers(0, 9)),
        compute_capability=draw(st.none() | st.tuples(st.integers(5, 12), st.integers(0, 9))),
        cores=draw(st.integers(1, 4)) if is_cpu else 0,
        features=tuple(draw(st.lists(st.sampled_from(["avx2", "fma", "amx_bf16"]), unique=True))),
        free_memory_bytes=draw(st.none() | sizes),
    )


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    hosts, links, pairs = [], [], []
    for name in ["ha", "hb"][: draw(st.integers(1, 2))]:
        own = tuple(draw(devices(name, at)) for at in range(draw(st.integers(0, 3))))
        nics = tuple(
            Nic(id=f"{name}/n{at}", name=f"n{at}", kind="ethernet", bytes_per_second=draw(rates))
            for at in range(draw(st.integers(0, 2)))
        )
        limit, clock = draw(st.none() | sizes), draw(rates)
        parts: dict[str, Any] = {
            "available_memory_bytes": draw(st.none() | sizes),
            "memory_limit_bytes": limit,
            "clock_hz": clock,
        }
        hosts.append(Host(name=name, memory_bytes=draw(sizes), cores=draw(sizes), devices=own, nics=nics, **parts))
        for a, b in combinations(own, 2):
            pairs.append(Pair(a=a.id, b=b.id, kind=draw(st.sampled_from(["NV12", "PIX", "SYS"]))))
            links.append(Link(a=a.id, b=b.id, kind="NV12", bytes_per_second=draw(rates), source=draw(st.text())))
    warnings = tuple(draw(st.lists(st.text(max_size=9), max_size=2)))
    return Topology(hosts=tuple(hosts), links=tuple(links), pairs=tuple(pairs), warnings=warnings, source="made up")


@given(topologies())
@settings(max_examples=30, deadline=None)
def test_a_round_trip_through_text_is_exact(topology: Topology) -> None:
    assert from_json(json.loads(json.dumps(to_json(topology)))) == topology


@pytest.mark.parametrize("name", preset_names())
def test_presets_round_trip(name: str) -> None:
    data = to_json(preset(name))
    assert from_json(data) == preset(name)
    assert data["fingerprint"] == fingerprint(from_json(data))


def test_the_json_keeps_its_contract() -> None:
    data = to_json(preset("8xh100"))
    assert {"schema", "fingerprint", "hosts", "links", "pairs", "warnings"} <= data.keys()
    assert {"id", "name", "memory_bytes", "numa", "pci"} <= data["hosts"][0]["devices"][0].keys()
    assert data["links"][0].keys() >= {"a", "b", "kind", "bytes_per_second", "source"}
    assert data["pairs"][0].keys() == {"a", "b", "kind"}


def test_a_file_written_by_hand_needs_no_more_than_the_contract() -> None:
    device = {"id": "GPU-1", "name": "T4", "memory_bytes": 16 * GIB, "numa": 0, "pci": "0000:18:00.0"}
    topology = from_json({"schema": SCHEMA, "hosts": [{"devices": [device]}]})
    assert topology.devices[0].kind is DeviceKind.gpu
    assert topology.hosts[0].name == topology.devices[0].host == "host0"


def test_all_faults_are_told_with_their_paths() -> None:
    data = to_json(preset("2x24gb-pcie"))
    data["hosts"][0]["devices"][0]["memory_bytes"] = "24"
    del data["hosts"][0]["devices"][1]["id"]
    data["hosts"][0]["devices"][1]["compute_capability"] = [8]
    data["pairs"][0]["kind"] = "PCIE"
    data["warnings"] = [1]
    data["links"] = {}
    with pytest.raises(TopologyError) as caught:
        from_json(data)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "$.hosts[0].devices[0].memory_bytes",
        "$.hosts[0].devices[1].compute_capability",
        "$.hosts[0].devices[1].id",
        "$.links",
        "$.pairs[0]",
        "$.warnings[0]",
    ]


def test_faults_between_values_are_told_too() -> None:
    data = to_json(preset("2x24gb-pcie"))
    data["pairs"][0]["b"] = "GPU-missing"
    with pytest.raises(TopologyError, match="unknown id 'GPU-missing'"):
        from_json(data)


@pytest.mark.parametrize("data", [[], None, {}, {"schema": "trainmaster.topology/9"}])
def test_another_schema_is_refused(data: object) -> None:
    with pytest.raises(TopologyError, match=r"schema|JSON"):
        from_json(data)


def renamed(topology: Topology) -> Topology:
    text = json.dumps(to_json(topology)).replace("GPU-0", "GPU-9").replace('"workstation', '"elsewhere')
    return from_json(json.loads(text))


def test_the_fingerprint_ignores_names_and_what_moves() -> None:
    topology = preset("2x24gb-pcie")
    host = topology.hosts[0]
    busy = tuple(replace(device, free_memory_bytes=GIB, pci=None) for device in host.devices)
    moved = replace(host, available_memory_bytes=GIB, clock_hz=1e9, devices=busy)
    changed = replace(topology, hosts=(moved,), warnings=("hot",), source="elsewhere")
    assert fingerprint(renamed(changed)) == fingerprint(topology)
    assert renamed(changed) != changed


def test_the_fingerprint_ignores_the_order_of_ends() -> None:
    topology = preset("2x24gb-pcie")
    turned = tuple(Pair(a=pair.b, b=pair.a, kind=pair.kind) for pair in topology.pairs)
    assert fingerprint(replace(topology, pairs=turned)) == fingerprint(topology)


def test_the_fingerprint_sees_every_change_of_shape() -> None:
    topology = preset("2x24gb-pcie")
    host = topology.hosts[0]
    larger = tuple(replace(device, memory_bytes=48 * GIB) for device in host.devices)
    changed = [
        replace(topology, pairs=(replace(topology.pairs[0], kind="SYS"),)),
        replace(topology, hosts=(replace(host, devices=larger),)),
        replace(topology, hosts=(replace(host, cores=4),)),
        replace(topology, links=(Link(a=host.devices[0].id, b=host.devices[1].id, kind="NV4", source="s"),)),
    ]
    assert len({fingerprint(topology), *map(fingerprint, changed)}) == 5


def test_presets_have_different_fingerprints() -> None:
    assert len({fingerprint(preset(name)) for name in preset_names()}) == len(preset_names())
