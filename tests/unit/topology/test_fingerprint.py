from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.codec import from_json, to_json
from topology.fingerprint import fingerprint
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, Topology
from topology.network import NetworkSpec, merge
from topology.presets import preset, preset_names
from topology.units import GIB, MIB

# Names of small machines of every kind: with and without NVLink, PCIe switches, NICs, several hosts.
NAMES = ("dgx_a100", "dgx1_v100", "pcie_l40s_x8", "rtx3090_nvlink_pair", "gh200", "mixed_a100_h100", "cpu")
machines = st.sampled_from([preset(name) for name in NAMES])


def with_host(topology: Topology, change: Callable[[Host], Host], at: int = 0) -> Topology:
    hosts = tuple(change(host) if place == at else host for place, host in enumerate(topology.hosts))
    return replace(topology, hosts=hosts)


def with_device(topology: Topology, change: Callable[[Device], Device], at: int = 0) -> Topology:
    def changed(host: Host) -> Host:
        return replace(host, devices=tuple(change(d) if n == at else d for n, d in enumerate(host.devices)))

    return with_host(topology, changed)


@st.composite
def rebooted(draw: st.DrawFn, topology: Topology) -> Topology:
    """The same hardware after a reboot: all that moves has moved, and every order and name is another."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    lost_mib = draw(st.integers(0, 40))
    hosts, ids = [], {}
    for number, host in enumerate(topology.hosts):
        name = f"other{number}"
        devices = list(host.devices)
        rng.shuffle(devices)
        moved = []
        for at, device in enumerate(devices):
            ids[device.id] = f"GPU-{name}-{at}"
            moved.append(_moved(device, ids[device.id], name, at, rng))
        nics = list(host.nics)
        rng.shuffle(nics)
        ids |= {nic.id: f"{name}/n{at}" for at, nic in enumerate(nics)}
        hosts.append(
            replace(
                host,
                name=name,
                devices=tuple(moved),
                nics=tuple(Nic(**{**_values(nic), "id": ids[nic.id], "name": f"n{at}"}) for at, nic in enumerate(nics)),
                memory_bytes=None if host.memory_bytes is None else host.memory_bytes - lost_mib * MIB,
                available_memory_bytes=rng.randrange(GIB),
                clock_hz=rng.random() * 4e9,
            )
        )
    ids |= {switch.id: f"s{at}" for at, switch in enumerate(topology.switches)}
    names = {host.name: f"other{number}" for number, host in enumerate(topology.hosts)}
    switches = [replace(s, id=ids[s.id], host=names.get(s.host or "")) for s in topology.switches]
    links = [replace(link, a=ids[link.a], b=ids[link.b], source="measured") for link in topology.links]
    links = [replace(link, a=link.b, b=link.a) if rng.random() < 0.5 else link for link in links]
    pairs = [replace(pair, a=ids[pair.a], b=ids[pair.b]) for pair in topology.pairs]
    pairs = [Pair(a=pair.b, b=pair.a, kind=pair.kind) if rng.random() < 0.5 else pair for pair in pairs]
    for values in (hosts, switches, links, pairs):
        rng.shuffle(values)
    return Topology(
        hosts=tuple(hosts),
        switches=tuple(switches),
        links=tuple(links),
        pairs=tuple(pairs),
        warnings=("a warning",),
        source="elsewhere",
    )


def _moved(device: Device, name: str, host: str, at: int, rng: random.Random) -> Device:
    pcie = device.pcie and replace(device.pcie, generation=rng.choice([None, 1, 3]), width=rng.choice([None, 8, 16]))
    return replace(
        device,
        id=name,
        uuid=None if device.uuid is None else name,
        host=host,
        index=at,
        pci=f"0000:{at:02x}:00.0",
        pcie=pcie,
        free_memory_bytes=rng.randrange(GIB),
        features=tuple(reversed(device.features)),
        power_limit_watts=rng.choice([None, 100.0]),
    )


def _values(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@given(data=st.data(), topology=machines)
@settings(max_examples=40)
def test_it_is_the_same_after_a_reboot(data: st.DataObject, topology: Topology) -> None:
    assert fingerprint(data.draw(rebooted(topology))) == fingerprint(topology)


def no_gpu(topology: Topology) -> Topology:
    *others, last = topology.hosts
    gone = last.devices[-1].id
    return replace(
        topology,
        hosts=(*others, replace(last, devices=last.devices[:-1])),
        links=tuple(link for link in topology.links if gone not in {link.a, link.b}),
        pairs=tuple(pair for pair in topology.pairs if gone not in {pair.a, pair.b}),
    )


def no_nic(topology: Topology) -> Topology:
    gone = topology.hosts[0].nics[0].id
    links = tuple(link for link in topology.links if gone not in {link.a, link.b})
    return replace(with_host(replace(topology, links=links), lambda h: replace(h, nics=h.nics[1:])))


def other_link(prefix: str, **changes: Any) -> Callable[[Topology], Topology]:
    def change(topology: Topology) -> Topology:
        at = next(at for at, link in enumerate(topology.links) if link.kind.startswith(prefix))
        links = list(topology.links)
        links[at] = replace(links[at], **changes)
        return replace(topology, links=tuple(links))

    return change


def no_link(topology: Topology) -> Topology:
    return replace(topology, links=topology.links[1:])


def more_gpus(topology: Topology) -> Topology:
    new = replace(topology.hosts[0].devices[0], id="GPU-new", uuid="GPU-new", pci=None)
    return with_host(topology, lambda host: replace(host, devices=(*host.devices, new)))


def slot(**changes: Any) -> Callable[[Topology], Topology]:
    return lambda one: with_device(one, lambda device: replace(device, pcie=replace(device.pcie or Pcie(), **changes)))


def device_change(**changes: Any) -> Callable[[Topology], Topology]:
    return lambda one: with_device(one, lambda device: replace(device, **changes))


def host_change(**changes: Any) -> Callable[[Topology], Topology]:
    return lambda one: with_host(one, lambda host: replace(host, **changes))


def other_pair(topology: Topology) -> Topology:
    first = topology.pairs[0]
    return replace(topology, pairs=(replace(first, kind="PXB"), *topology.pairs[1:]))


CHANGES: dict[str, Callable[[Topology], Topology]] = {
    "a GPU lost": no_gpu,
    "a GPU more": more_gpus,
    "another model": device_change(name="NVIDIA A30"),
    "another memory": device_change(memory_bytes=12 * GIB),
    "another NUMA node": device_change(numa=9),
    "MIG": device_change(mig=True),
    "a NIC lost": no_nic,
    "a link lost": no_link,
    "another NVLink count": other_link("NV", kind="NV3"),
    "a slower PCIe link": other_link("PCIe", bytes_per_second=1e9),
    "a slot of another generation": slot(max_generation=2),
    "a slot of fewer lanes": slot(max_width=8),
    "a pair farther apart": other_pair,
    "another CPU": host_change(cpu_name="Another CPU"),
    "a socket lost": host_change(sockets=7),
    "cores lost": host_change(cores=3),
    "half of the memory": lambda one: with_host(one, lambda h: replace(h, memory_bytes=(h.memory_bytes or 0) // 2)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["dgx_a100", "rtx3090_nvlink_pair", "dgx1_v100", "mixed_a100_h100"])
def test_it_changes_with_the_hardware(name: str, change: str) -> None:
    topology = preset(name)
    changed = CHANGES[change](topology)
    assert fingerprint(changed) != fingerprint(topology)


@given(topology=machines, data=st.data())
@settings(max_examples=40)
def test_any_link_or_pair_that_goes_missing_shows(topology: Topology, data: st.DataObject) -> None:
    what = data.draw(st.sampled_from(["links", "pairs"]))
    parts = getattr(topology, what)
    if parts:
        at = data.draw(st.integers(0, len(parts) - 1))
        changed = replace(topology, **{what: parts[:at] + parts[at + 1 :]})
        assert fingerprint(changed) != fingerprint(topology)


@given(topology=machines, changes=st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=2, unique=True))
@settings(max_examples=20)
def test_different_changes_are_told_apart(topology: Topology, changes: list[str]) -> None:
    if topology.pairs and topology.hosts[0].nics and topology.links[0].kind.startswith("NV"):
        first, second = (fingerprint(CHANGES[change](topology)) for change in changes)
        assert first != second


def test_where_a_part_hangs_counts_not_only_how_many_there_are() -> None:
    # Two GPUs under one switch and one under the other, or all three under one.
    def tree(*under: str) -> Topology:
        gpus = tuple(
            Device(id=f"g{at}", host="h", kind=DeviceKind.gpu, name="T4", memory_bytes=1) for at in range(len(under))
        )
        kind = preset("pcie_l40s_x8").switches[0].kind
        return Topology(
            hosts=(Host(name="h", memory_bytes=1, cores=1, devices=gpus),),
            switches=(Switch(id="s", kind=kind, host="h"), Switch(id="t", kind=kind, host="h")),
            links=tuple(Link(a=gpu.id, b=end, kind="PCIe", source="") for gpu, end in zip(gpus, under, strict=True)),
        )

    assert fingerprint(tree("s", "s", "t")) == fingerprint(tree("t", "s", "t"))
    assert fingerprint(tree("s", "s", "t")) != fingerprint(tree("s", "s", "s"))


def test_the_two_wirings_of_a_mesh_are_told_apart() -> None:
    # Both give each GPU two NV2 and two NV1: what counts is which sockets they lead to.
    mesh = preset("dgx1_v100")
    other = {"NV1": "NV2", "NV2": "NV1"}
    at = {device.id: number for number, device in enumerate(mesh.devices)}

    def swapped(pair: Pair) -> Pair:
        crosses = at[pair.a] // 4 != at[pair.b] // 4
        return replace(pair, kind=other[pair.kind]) if crosses and pair.is_nvlink else pair

    assert fingerprint(replace(mesh, pairs=tuple(map(swapped, mesh.pairs)))) != fingerprint(mesh)


@pytest.mark.parametrize(
    ("told_mib", "other_mib", "same"),
    [
        (515_000, 515_012, True),  # MemTotal of 512 GiB from boot to boot
        (64 * 1024, 64 * 1024 + 9, True),  # a virtual machine that tells the whole of it
        (64 * 1024, 63 * 1024, True),
        (64 * 1024, 48 * 1024, False),
        (512 * 1024, 256 * 1024, False),
    ],
)
def test_memory_counts_by_installed_size(told_mib: int, other_mib: int, *, same: bool) -> None:
    def machine(mib: int) -> str:
        return fingerprint(Topology(hosts=(Host(name="h", memory_bytes=mib * MIB, cores=1, devices=()),)))

    assert (machine(told_mib) == machine(other_mib)) is same


def test_memory_that_is_not_known_is_no_memory_of_any_size() -> None:
    hosts = [Host(name="h", memory_bytes=size, cores=1, devices=()) for size in (None, 0, GIB)]
    assert len({fingerprint(Topology(hosts=(host,))) for host in hosts}) == 3


def test_it_survives_json() -> None:
    for name in preset_names():
        assert fingerprint(from_json(to_json(preset(name)))) == fingerprint(preset(name))


def test_the_order_of_hosts_does_not_count_but_their_number_does() -> None:
    cluster = preset("dgx_a100", nodes=3)
    assert fingerprint(replace(cluster, hosts=cluster.hosts[::-1])) == fingerprint(cluster)
    assert fingerprint(preset("dgx_a100", nodes=2)) != fingerprint(cluster)


def test_merged_hosts_have_one_fingerprint_in_any_order() -> None:
    hosts = [preset("rtx4090"), preset("pcie_4090x2"), preset("l40s")]
    assert fingerprint(merge(hosts, NetworkSpec())) == fingerprint(merge(hosts[::-1], NetworkSpec()))


def test_a_thousand_hosts_take_less_than_a_second() -> None:
    cluster = preset("dgx_h100", nodes=1024)
    for _ in range(3):
        start = process_time()
        fingerprint(cluster)
        seconds = process_time() - start
        if seconds < 1:
            break
    assert seconds < 1
