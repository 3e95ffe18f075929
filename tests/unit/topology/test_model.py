from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any

import pytest

from topology.checks import normal_pci
from topology.errors import TopologyError
from topology.grouping import connected
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.reading import Reading


def gpu(name: str, **changes: Any) -> Device:
    parts: dict[str, Any] = {"host": "h", "kind": DeviceKind.gpu, "name": "T4", "memory_bytes": 16}
    return Device(id=name, **{**parts, **changes})


def host(*devices: Device, name: str = "h", **changes: Any) -> Host:
    return Host(name=name, memory_bytes=1, cores=1, devices=devices, **changes)


def test_values_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        gpu("a").name = "b"  # type: ignore[misc]


def test_a_reading_is_a_value_or_an_error() -> None:
    assert Reading(source="s", value=0).value == 0
    for value, error in ((None, None), (1, "E")):
        with pytest.raises(TopologyError, match="reading of s"):
            Reading(source="s", value=value, error=error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bytes": -1}, "memory_bytes -1 is not from 0"),
        ({"free_memory_bytes": -1}, "free_memory_bytes"),
        ({"numa": -1}, "numa -1"),
        ({"cores": 2}, "2 cores on a gpu"),
        ({"kind": DeviceKind.cpu}, "0 cores on a cpu"),
        ({"pci": "00000000:18:00.0"}, "not like 0000:18:00.0"),
        ({"host": ""}, "empty host"),
        ({"power_limit_watts": float("nan")}, "power_limit_watts nan"),
        ({"index": -1}, "index -1"),
    ],
)
def test_a_device_rejects_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        gpu("a", **changes)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        gpu("", memory_bytes=-1, numa=-2)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("make", "problems"),
    [
        (lambda: Pcie(max_generation=9, width=3), ["generation 9", "3 lanes"]),
        (
            lambda: Nic(id="", name="n", kind="ethernet", numa=-1, pci="18:00"),
            ["an empty id", "numa -1", "pci '18:00'"],
        ),
        (lambda: Switch(id="", kind=SwitchKind.pcie), ["an empty id"]),
        (
            lambda: Link(a="a", b="a", kind="", source="", assumed_bytes_per_second=-1.0),
            ["the same id at both ends", "an empty kind", "assumed rate -1.0"],
        ),
        (lambda: Pair(a="a", b="a", kind="?"), ["the same id at both ends", "kind '?'"]),
    ],
)
def test_each_value_tells_all_that_is_wrong_with_it(make: Callable[[], object], problems: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        make()
    assert [told.startswith(begun) for told, begun in zip(caught.value.problems, problems, strict=True)] == [
        True for _ in problems
    ]


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_is_finite_and_not_negative(rate: float) -> None:
    with pytest.raises(TopologyError, match="bytes_per_second"):
        Nic(id="n", name="n", kind="ethernet", bytes_per_second=rate)
    with pytest.raises(TopologyError, match="bytes_per_second"):
        Link(a="a", b="b", kind="NV1", source="s", bytes_per_second=rate)


@pytest.mark.parametrize("kind", ["NV0", "NV", "pix", "SOC", ""])
def test_a_pair_takes_only_the_labels_of_nvidia_smi(kind: str) -> None:
    with pytest.raises(TopologyError, match="kind"):
        Pair(a="a", b="b", kind=kind)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"hosts": ()}, "no host"),
        ({"hosts": (host(gpu("a"), gpu("a")),)}, "'a' more than once"),
        ({"hosts": (host(), host())}, "host name 'h' more than once"),
        ({"hosts": (host(gpu("a")),), "pairs": (Pair(a="a", b="z", kind="SYS"),)}, "pair over the unknown id 'z'"),
        ({"hosts": (host(gpu("a")),), "links": (Link(a="a", b="z", kind="NV1", source="s"),)}, "unknown id 'z'"),
    ],
)
def test_a_topology_rejects_what_cannot_be(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology(**parts)


def test_pairs_stay_on_one_host_and_come_once() -> None:
    one, two = host(gpu("a"), gpu("b")), host(gpu("c", host="g"), name="g")
    with pytest.raises(TopologyError, match="between two hosts"):
        Topology(hosts=(one, two), pairs=(Pair(a="a", b="c", kind="SYS"),))
    with pytest.raises(TopologyError, match="two pairs over a - b"):
        Topology(hosts=(one,), pairs=(Pair(a="a", b="b", kind="SYS"), Pair(a="b", b="a", kind="PIX")))


def test_a_host_rejects_devices_of_another() -> None:
    with pytest.raises(TopologyError, match="devices of another host: a"):
        host(gpu("a", host="other"))


def test_islands_are_the_parts_joined_by_nvlink() -> None:
    devices = [gpu(name) for name in "abcde"]
    pairs = (Pair(a="a", b="c", kind="NV2"), Pair(a="c", b="e", kind="NV1"), Pair(a="a", b="b", kind="PIX"))
    assert Topology(hosts=(host(*devices),), pairs=pairs).islands == (("a", "c", "e"), ("b",), ("d",))


def test_a_long_chain_is_one_group() -> None:
    names = [str(at) for at in range(20_000)]
    steps = list(pairwise(names))
    for joined in (steps, [(b, a) for a, b in reversed(steps)]):
        assert connected(names, joined) == (tuple(names),)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("0000:AF:00.0", "0000:af:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("virtio2", None),
        ("", None),
    ],
)
def test_pci_addresses_take_the_form_of_sysfs(text: str, address: str | None) -> None:
    assert normal_pci(text) == address
