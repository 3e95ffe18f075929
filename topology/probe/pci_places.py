"""Where GPUs and NICs sit in the PCIe tree, from raw readings: the kernel's device paths, else NVML's levels. Pure.

A way down is [host bridge, root port, upstream port, downstream port, ..., function]: the root port is a part of the
host bridge, and each upstream port with the downstream port below it is one switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.model import Device, Link, Pcie, Switch, SwitchKind
from topology.pcie_tree import (
    BETWEEN,
    PORT,
    VIRTUAL,
    Chain,
    Hop,
    Member,
    PcieTree,
    tree_from_chains,
    tree_from_labels,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.probe.readings import HostReadings, NicReadings, PciReadings
    from topology.reading import Reading

_GENERATIONS: Final[Mapping[float, int]] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
# Bridges of virtual machines report this; no slot of a machine that trains is so slow.
_NOT_BELIEVED: Final = 2.5


def pcie_or_none(**values: int | None) -> Pcie | None:
    """Make a PCIe link of what is a generation or a width at all; None where nothing is."""
    known = {
        name: value
        for name, value in values.items()
        if value is not None and (value in _WIDTHS if name.endswith("width") else value in _GENERATIONS.values())
    }
    return Pcie(**known) if known else None


class Bus:
    """The PCI functions of a host by address."""

    def __init__(self, host: HostReadings, *, is_virtual: bool) -> None:
        """Index the readings; the bridges of a virtual machine say nothing about a link."""
        self._functions = {function.address: function for function in host.pci_functions}
        self._is_virtual = is_virtual

    def numa(self, address: str | None) -> int | None:
        """Return the NUMA node of a function."""
        function = self._functions.get(address or "")
        return None if function is None else function.numa.value

    def is_placed(self, address: str | None) -> bool:
        """Whether the way up from a function is known."""
        return self._above(address) != ()

    def link_above(self, address: str | None) -> Pcie | None:
        """Return what the kernel tells of the link above a function: the lesser of its two ends."""
        function = self._functions.get(address or "")
        if function is None:
            return None
        above = self._above(address)
        port = self._functions.get(above[-1]) if len(above) > 1 else None
        ends = [function, *([port] if port is not None and self._is_believed(port) else [])]
        generations = [_GENERATIONS.get(end.max_speed_gt.value or 0) for end in ends]
        return pcie_or_none(
            max_generation=min((value for value in generations if value is not None), default=None),
            max_width=min((end.max_width.value for end in ends if end.max_width.value in _WIDTHS), default=None),
            generation=_GENERATIONS.get(function.speed_gt.value or 0),
            width=function.width.value,
            device_max_generation=generations[0],
        )

    def chain(self, member: Member, address: str, host: str) -> Chain:
        """Return the way up from a function, its switches named by their upstream ports."""
        above = self._above(address)
        if not above:
            return Chain(member=member)
        below_root = above[2:]
        upstream = [below_root[at] for at in range(0, len(below_root), 2)]
        hops = tuple(Hop(id=f"{host}/{port}", pcie=self._hop_link(port)) for port in reversed(upstream))
        return Chain(member=member, hops=hops, bridge=f"{host}/{above[0]}")

    def _above(self, address: str | None) -> tuple[str, ...]:
        function = self._functions.get(address or "")
        return () if function is None else function.above.value or ()

    def _hop_link(self, port: str) -> Pcie | None:
        function = self._functions.get(port)
        return self.link_above(port) if function is not None and self._is_believed(function) else None

    def _is_believed(self, port: PciReadings) -> bool:
        return not self._is_virtual and port.max_speed_gt.value != _NOT_BELIEVED


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    # A GPU, a MIG device or a NIC with the function it is reached through.
    id: str
    address: str
    numa: int | None
    pcie: Pcie | None
    port_bytes_per_second: float | None = None
    is_gpu: bool = False


def pcie_tree(
    name: str,
    host: HostReadings,
    bus: Bus,
    devices: Sequence[Device],
    levels: Mapping[frozenset[str], str],
) -> PcieTree:
    """Build the PCIe tree of a host; `levels` are nvidia-smi's labels of GPU addresses, for where /sys is silent.

    What neither places is not in the tree: a place made up for it would be read back as a label.
    NICs and MIG devices that share an adapter or a GPU are ports of it.
    """
    sole = host.numa_nodes[0].node if len(host.numa_nodes) == 1 else None
    gpus = [
        _End(id=device.id, address=device.pci, numa=_or(device.numa, sole), pcie=device.pcie, is_gpu=True)
        for device in devices
        if device.pci is not None
    ]
    nics = [_nic_end(nic, name, bus, sole) for nic in host.nics if bus.is_placed(nic.pci.value)]
    by_chain = any(bus.is_placed(gpu.address) for gpu in gpus) or not gpus
    slots: dict[str, list[_End]] = {}
    for end in (*gpus, *(nics if by_chain else ())):
        slots.setdefault(end.address.rpartition(".")[0], []).append(end)
    places = [_Place(member=_member(name, ends), ends=ends) for ends in slots.values()]
    if by_chain:
        places = [place for place in places if bus.is_placed(place.address)]
        chains = [bus.chain(place.member, place.address, name) for place in places]
        tree = tree_from_chains(name, chains, host.cpu_name.value)
    else:
        places, labels = _labelled(places, levels)
        tree = tree_from_labels(name, [place.member for place in places], labels, host.cpu_name.value)
    return _with_ports(name, tree, [place.ends for place in places if len(place.ends) > 1], host.nics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    # One slot: a member of the tree, and the ends that share it.
    member: Member
    ends: list[_End]

    @property
    def address(self) -> str:
        return self.ends[0].address


def _labelled(
    places: Sequence[_Place], levels: Mapping[frozenset[str], str]
) -> tuple[list[_Place], dict[tuple[str, str], str]]:
    # The places of which every two have a label, and these labels. One without a label to some of the others could
    # be anywhere among them.
    labels: dict[tuple[str, str], str] = {}
    missing: dict[int, set[int]] = {at: set() for at in range(len(places))}
    for (i, a), (j, b) in combinations(enumerate(places), 2):
        nodes = (a.member.numa, b.member.numa)
        label = levels.get(frozenset((a.address, b.address)))
        if label is None and None not in nodes and nodes[0] != nodes[1]:
            label = BETWEEN
        if label is None:
            missing[i].add(j)
            missing[j].add(i)
        else:
            labels[a.member.id, b.member.id] = label
    while any(missing.values()):
        worst = max(missing, key=lambda at: (len(missing[at]), at))
        for other in missing.pop(worst):
            missing[other].discard(worst)
    # One that is left alone has no label at all.
    kept = [places[at] for at in sorted(missing)] if len(missing) > 1 or len(places) == 1 else []
    ids = {place.member.id for place in kept}
    return kept, {ends: label for ends, label in labels.items() if ids.issuperset(ends)}


def _or(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


def _nic_end(nic: NicReadings, name: str, bus: Bus, sole: int | None) -> _End:
    address = nic.pci.value or ""
    return _End(
        id=f"{name}/{nic.name}",
        address=address,
        numa=_or(_or(nic.numa.value, bus.numa(address)), sole),
        pcie=bus.link_above(address),
        port_bytes_per_second=nic.bytes_per_second.value,
    )


def _member(host: str, ends: Sequence[_End]) -> Member:
    first = ends[0]
    name = first.id if len(ends) == 1 else _shared_id(host, ends)
    return Member(id=name, numa=first.numa, pcie=first.pcie)


def _shared_id(host: str, ends: Sequence[_End]) -> str:
    return f"{host}/{min(end.address for end in ends)}"


def _with_ports(name: str, tree: PcieTree, shared: Sequence[Sequence[_End]], nics: Sequence[NicReadings]) -> PcieTree:
    switches, links = list(tree.switches), list(tree.links)
    for ends in shared:
        function = Switch(id=_shared_id(name, ends), kind=SwitchKind.pcie, host=name, numa=ends[0].numa)
        switches.append(function)
        links += [_port(end, function.id) for end in ends]
    sockets = [switch for switch in tree.switches if switch.kind is SwitchKind.socket]
    for nic in nics if sockets else ():
        if nic.pci.error == "NO_PCI":
            near = next((switch for switch in sockets if switch.numa == nic.numa.value), sockets[0])
            links.append(_unplaced(f"{name}/{nic.name}", near.id, nic.bytes_per_second))
    return PcieTree(switches=tuple(switches), links=tuple(links))


def _port(end: _End, function: str) -> Link:
    if end.is_gpu:
        return Link(a=end.id, b=function, kind=PORT, source="inside the GPU: not counted as a limit")
    source = "kernel: rate of the port" if end.port_bytes_per_second is not None else "unknown: the port tells no rate"
    return Link(a=end.id, b=function, kind=PORT, bytes_per_second=end.port_bytes_per_second, source=source)


def _unplaced(nic: str, socket: str, rate: Reading[float]) -> Link:
    source = "kernel: rate of the port" if rate.value is not None else "unknown: a virtual NIC"
    return Link(a=nic, b=socket, kind=VIRTUAL, bytes_per_second=rate.value, source=source)
