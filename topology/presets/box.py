"""A host as it is drawn: what it has, and where each part sits in its PCIe tree.

A place is a path from the NUMA node down, `0/bridge0/switch1`: a GPU or port there sits right below its last part.
Labels between parts follow from their places, as on the machine itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.hardware import peak
from topology.link_rates import nvlink_rate
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.pcie_tree import Chain, Hop, Member, PcieTree, pcie_labels, tree_from_chains
from topology.tables.shown_memory import SHOWN_MIB
from topology.units import GB, GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.hardware import Peak

_FIRST_GPU_BUS: Final = 0x10
_FIRST_NIC_BUS: Final = 0x80
_C2C_SOURCE: Final = "NVIDIA GH200 and GB200 data sheets: 900 GB/s of NVLink-C2C a Grace CPU, both ways together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors of a host; `cores` of one socket, `nodes` NUMA nodes of one socket."""

    name: str | None
    sockets: int = 1
    cores: int
    threads: int = 2
    nodes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU: its PCIe generation (x16) and power limit. Its memory counts where the peak table does not have it."""

    name: str
    capability: tuple[int, int]
    generation: int
    watts: int
    memory_gib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A network port: its kind, its rate per direction, its place and the PCIe generation of its x16 slot."""

    name: str
    kind: str
    gbit: float
    place: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One host. `nvlinks` is the NVLink count of each GPU towards NVSwitch, `mesh` that between two GPUs.

    `c2c_gb` is the rate of NVLink-C2C between a GPU and its CPU (then it has no PCIe slot), in GB/s per direction;
    `slot_generation` is the PCIe generation of the GPUs' slots where it is below that of the cards.
    """

    host: str
    cpu: Cpu
    memory_gib: int
    card: Card
    gpus: tuple[str, ...]
    ports: tuple[Port, ...] = ()
    nvlinks: int = 0
    mesh: Mapping[tuple[int, int], int] = field(default_factory=lambda: MappingProxyType({}))
    c2c_gb: float | None = None
    slot_generation: int | None = None
    is_virtual: bool | None = False


def ports(names: str, kind: str, gbit: float, places: tuple[str, ...], generation: int) -> tuple[Port, ...]:
    """Make ports at these places; `names` holds a {} for their number."""
    return tuple(
        Port(name=names.format(at), kind=kind, gbit=gbit, place=place, generation=generation)
        for at, place in enumerate(places)
    )


def draw(box: Box, fabric: str | None = None) -> Topology:
    """Draw the host alone; `fabric` names the NVLink fabric its GPUs share with other hosts."""
    devices = tuple(_device(box, at, place, fabric) for at, place in enumerate(box.gpus))
    nics = tuple(_nic(box, at, port) for at, port in enumerate(box.ports))
    tree = _tree(box, devices, nics)
    nvlinks, nvswitches = _nvlinks(box, devices)
    host = Host(
        name=box.host,
        memory_bytes=box.memory_gib * GIB,
        cores=box.cpu.sockets * box.cpu.cores * box.cpu.threads,
        devices=devices,
        sockets=box.cpu.sockets,
        threads_per_core=box.cpu.threads,
        nics=nics,
        cpu_name=box.cpu.name,
        is_virtual=box.is_virtual,
    )
    links = (*nvlinks, *_c2c(box, devices), *tree.links)
    whole = Topology(hosts=(host,), switches=(*nvswitches, *tree.switches), links=links)
    return replace(whole, pairs=_pairs(box, whole))


def _device(box: Box, at: int, place: str, fabric: str | None) -> Device:
    card = box.card
    known = peak(card.name)
    uuid = gpu_uuid(at)
    numa = int(place.split("/", maxsplit=1)[0])
    generation = box.slot_generation or card.generation
    slot = Pcie(max_generation=generation, max_width=16, device_max_generation=card.generation)
    return Device(
        id=uuid,
        host=box.host,
        kind=DeviceKind.gpu,
        name=card.name,
        memory_bytes=_memory_bytes(card, known),
        numa=numa,
        pci=f"0000:{_FIRST_GPU_BUS + at:02x}:00.0",
        uuid=uuid,
        index=at,
        compute_capability=card.capability,
        pcie=slot if box.c2c_gb is None else None,
        power_limit_watts=card.watts,
        fabric=fabric,
        cpus=_cpus(box.cpu, numa),
    )


def gpu_uuid(at: int, host: int = 0) -> str:
    """Make a UUID that no other drawn GPU has."""
    return f"GPU-{at:08d}-0000-0000-0000-{host:012d}"


def _cpus(cpu: Cpu, node: int) -> str:
    # Hardware threads of a core are counted after all first ones, as kernels on x86 servers do.
    total = cpu.sockets * cpu.cores
    cores = cpu.cores // cpu.nodes
    first = node * cores
    lists = (f"{thread * total + first}-{thread * total + first + cores - 1}" for thread in range(cpu.threads))
    return ",".join(lists)


def _nic(box: Box, at: int, port: Port) -> Nic:
    return Nic(
        id=f"{box.host}/{port.name}",
        name=port.name,
        kind=port.kind,
        bytes_per_second=port.gbit * GB / 8,
        numa=int(port.place.split("/")[0]),
        pci=f"0000:{_FIRST_NIC_BUS + at:02x}:00.0",
    )


def _tree(box: Box, devices: tuple[Device, ...], nics: tuple[Nic, ...]) -> PcieTree:
    chains = [
        _chain(box.host, Member(id=device.id, numa=device.numa, pcie=device.pcie), place, device.pcie)
        for device, place in zip(devices, box.gpus, strict=True)
        if box.c2c_gb is None
    ]
    for nic, port in zip(nics, box.ports, strict=True):
        pcie = Pcie(max_generation=port.generation, max_width=16)
        chains.append(_chain(box.host, Member(id=nic.id, numa=nic.numa, pcie=pcie), port.place, pcie))
    return tree_from_chains(box.host, chains, box.cpu.name)


def _chain(host: str, member: Member, place: str, pcie: Pcie | None) -> Chain:
    _, bridge, *switches = place.split("/")
    hops = tuple(Hop(id=f"{host}/{name}", pcie=pcie) for name in reversed(switches))
    return Chain(member=member, hops=hops, bridge=f"{host}/{bridge}")


def _nvlinks(box: Box, devices: tuple[Device, ...]) -> tuple[tuple[Link, ...], tuple[Switch, ...]]:
    if box.nvlinks:
        switch = Switch(id=f"{box.host}/nvswitch", kind=SwitchKind.nvswitch, host=box.host)
        return tuple(_nvlink(box.card, device.id, switch.id, box.nvlinks) for device in devices), (switch,)
    links = (_nvlink(box.card, devices[a].id, devices[b].id, count) for (a, b), count in sorted(box.mesh.items()))
    return tuple(links), ()


def _nvlink(card: Card, a: str, b: str, count: int) -> Link:
    rate = nvlink_rate(compute_capability=card.capability, name=card.name)
    if rate is None:
        return Link(a=a, b=b, kind=f"NV{count}", source="unknown")
    return Link(
        a=a,
        b=b,
        kind=f"NV{count}",
        bytes_per_second=count * rate.bytes_per_second,
        source=f"table: {rate.source}",
    )


def _c2c(box: Box, devices: tuple[Device, ...]) -> tuple[Link, ...]:
    if box.c2c_gb is None:
        return ()
    rate = box.c2c_gb * GB
    return tuple(
        Link(
            a=device.id,
            b=f"{box.host}/node{device.numa}",
            kind="C2C",
            bytes_per_second=rate,
            source=f"table: {_C2C_SOURCE}",
        )
        for device in devices
    )


def _pairs(box: Box, drawn: Topology) -> tuple[Pair, ...]:
    labels, devices = pcie_labels(drawn), drawn.devices
    pairs = []
    for a, b in combinations(range(len(devices)), 2):
        count = box.nvlinks or box.mesh.get((a, b), 0)
        one, two = devices[a].id, devices[b].id
        pairs.append(Pair(a=one, b=two, kind=f"NV{count}" if count else labels[frozenset((one, two))]))
    return tuple(pairs)


def _memory_bytes(card: Card, known: Peak | None) -> int:
    if card.name in SHOWN_MIB:
        return SHOWN_MIB[card.name] * MIB
    return card.memory_gib * GIB if known is None else known.memory_bytes
