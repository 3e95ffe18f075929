"""The fingerprint of the hardware: what a stored calibration may be keyed by, and what tells of a changed machine.

The parts are the nodes of a graph and what joins them its edges. Each node begins with a colour made of what it is,
and again and again takes a colour made of its own and those of its neighbours, until no two more are told apart
(colour refinement, Weisfeiler and Leman 1968). The fingerprint is the hash of all colours. So no name, index or order
takes part: not those of a driver, nor those of the file. The price is that two machines whose every part has the same
surroundings look alike (two rings of four equal GPUs, and one of eight), which no change of a part brings about.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from topology.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from topology.model import Device, Host, Link, Nic, Pcie, Topology

_VERSION: Final = 2
_BYTES: Final = 16
_RATED: Final = frozenset({"PCIe", "NET"})  # what these can do shows in nothing else: NV4 or SYS say it by their name
_KEPT_BACK: Final = 0.995


def fingerprint(topology: Topology) -> str:
    """SHA-256 of the hardware shape; O(rounds x parts), with as many rounds as a change needs to be seen everywhere.

    Left out, since they move while the hardware stays: names of hosts and parts, UUIDs, PCI addresses, orders, free
    memory, clocks, the PCIe speed of the moment, power limits (which are set), warnings and sources. Memory counts by
    installed size, since drivers and kernels keep a different part of it to themselves.
    """
    # Imported here: the two cost a start-up more than reading the whole host does.
    import hashlib
    import json

    known: dict[Hashable, int] = {}

    def colour(value: Hashable) -> int:
        # Equal values are hashed once: a thousand hosts have few different parts.
        if value not in known:
            digest = hashlib.sha256(json.dumps(value).encode()).digest()
            known[value] = int.from_bytes(digest[:_BYTES], "big")
        return known[value]

    graph = _graph(topology, colour)
    counts = sorted(Counter(_refined(graph.colours, graph.neighbours, colour)).items())
    return hashlib.sha256(json.dumps([_VERSION, counts]).encode()).hexdigest()


_Neighbours = list[list[tuple[int, int]]]  # of each node: (colour of the edge, node at its other end)


class _Graph:
    """Nodes by number, with the colours they begin with."""

    def __init__(self, colour: Callable[[Hashable], int]) -> None:
        self.colours: list[int] = []
        self.neighbours: _Neighbours = []
        self._colour = colour

    def add(self, what: str, shape: Hashable) -> int:
        """Add a node; return its number."""
        self.colours.append(self._colour((what, shape)))
        self.neighbours.append([])
        return len(self.colours) - 1

    def join(self, kind: Hashable, one: int, two: int) -> None:
        edge = self._colour(kind)
        self.neighbours[one].append((edge, two))
        self.neighbours[two].append((edge, one))


def _graph(topology: Topology, colour: Callable[[Hashable], int]) -> _Graph:
    graph = _Graph(colour)
    at: dict[str | None, int] = {}
    home: dict[str | None, int] = {}
    for host in topology.hosts:
        home[host.name] = here = graph.add("host", _host_shape(host))
        for device in host.devices:
            at[device.id] = graph.add("device", _device_shape(device))
            graph.join("host", at[device.id], here)
        for nic in host.nics:
            at[nic.id] = graph.add("nic", _nic_shape(nic))
            graph.join("host", at[nic.id], here)
    for switch in topology.switches:
        at[switch.id] = graph.add("switch", switch.kind.value)
        if switch.host in home:
            graph.join("host", at[switch.id], home[switch.host])
    _join_devices(topology.devices, graph, at)
    for link in topology.links:
        graph.join(_link_shape(link), at[link.a], at[link.b])
    for pair in topology.pairs:
        graph.join(pair.kind, at[pair.a], at[pair.b])
    return graph


def _join_devices(devices: Iterable[Device], graph: _Graph, at: dict[str | None, int]) -> None:
    # Slices with the GPU they are of, and GPUs of one NVLink fabric with each other.
    fabrics: dict[str, int] = {}
    for device in devices:
        if device.parent in at and device.parent != device.id:
            graph.join("parent", at[device.id], at[device.parent])
        if device.fabric is not None:
            if device.fabric not in fabrics:
                fabrics[device.fabric] = graph.add("fabric", None)
            graph.join("fabric", at[device.id], fabrics[device.fabric])


def _refined(colours: list[int], neighbours: _Neighbours, colour: Callable[[Hashable], int]) -> list[int]:
    count = len(set(colours))
    while True:
        # The sum stands for the two of them: that two sums of hashes meet is as unlikely as that two hashes do.
        colours = [
            colour((colours[node], *sorted([edge + colours[other] for edge, other in around])))
            for node, around in enumerate(neighbours)
        ]
        refined = len(set(colours))
        if refined == count:
            return colours
        count = refined


def _host_shape(host: Host) -> Hashable:
    cpu = (host.cores, host.sockets, host.threads_per_core, host.cpu_name)
    return (_installed_gib(host.memory_bytes), *cpu)


def _device_shape(device: Device) -> Hashable:
    return (
        *(device.kind.value, device.name, _installed_gib(device.memory_bytes), device.numa),
        *(device.compute_capability, device.cores, _sorted(device.features), _pcie_shape(device.pcie)),
        *(device.mig, device.parent is not None, device.fabric is not None),
    )


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(values))


def _pcie_shape(pcie: Pcie | None) -> Hashable:
    return None if pcie is None else (pcie.max_generation, pcie.max_width, pcie.device_max_generation)


def _nic_shape(nic: Nic) -> Hashable:
    return (nic.kind, _rounded(nic.bytes_per_second), nic.numa)


def _link_shape(link: Link) -> Hashable:
    return ("link", link.kind, _rounded(link.bytes_per_second) if link.kind in _RATED else None)


@lru_cache(maxsize=256)
def _rounded(bytes_per_second: float | None) -> str | None:
    return None if bytes_per_second is None else f"{bytes_per_second:.3g}"


@lru_cache(maxsize=256)
def _installed_gib(size_bytes: int | None) -> int | None:
    """Round up to the next size modules come in: 503.4 is 512, 79.3 is 80, 23.5 is 24.

    A little above a size counts as that size, so that a machine that tells the whole of it may tell some MiB more.
    """
    if size_bytes is None:
        return None
    kept = int(size_bytes * _KEPT_BACK)
    gib = -(-kept // GIB)
    step = max(1, 1 << max(0, gib.bit_length() - 4))
    return -(-gib // step) * step
