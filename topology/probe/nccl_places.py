"""Where each part of a topology file sits: on which host and NUMA node, below which PCI switches, and what it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from topology.checks import doubles, normal_pci
from topology.probe.nccl_cpus import Cpu, cpus_of
from topology.probe.nccl_tree import refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.nccl_tree import Element


_NO_BUS: Final = "ffff:"  # the domain of switches that have no address, in files written for virtual machines


class Role(Enum):
    """What a PCI function is to us."""

    gpu = "gpu"
    nic = "nic"
    switch = "switch"
    nvswitch = "nvswitch"
    unknown = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One PCI function: `path` are the ids above it, the topmost first; `bridge` names the host bridge above them.

    The file has no host bridges, but functions on one bus certainly share one, and this package writes theirs.
    """

    element: Element
    id: str
    address: str
    role: Role
    cpu: Cpu
    parent: str
    path: tuple[str, ...]
    bridge: str | None

    @property
    def pci_class(self) -> str | None:
        """The PCI class in lower case, or None."""
        found = self.element.get("class")
        return None if found is None else found.lower()

    @property
    def gpu(self) -> Element | None:
        """The `gpu` element: the first where one GPU has several, one for each rank or part; each tells all of it."""
        return next(iter(self.element.inside("gpu")), None)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """From `sm`, which RCCL uses for the number of compute units: only without `gcn`, and not for AMD."""
        sm = self.gpu.get("sm") if self.gpu is not None else None
        if sm is None or self.gpu is None or self.gpu.get("gcn") is not None:
            return None
        return divmod(int(sm), 10) if (self.element.get("vendor") or "0x10de").lower() == "0x10de" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One network port: a `net` element, or a function of a network class without any. No place if virtual.

    NCCL hangs what is no PCI function on the first CPU each rank knows: listed by several CPUs, it is nearest none.
    """

    id: str
    name: str
    cpu: Cpu
    net: Element | None
    place: Place | None
    is_near: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All of them, in document order. `merged` are adapters NCCL made up of others that the file lists as well."""

    cpus: tuple[Cpu, ...]
    all: tuple[Place, ...]
    ports: tuple[Port, ...]
    merged: tuple[str, ...] = ()

    def by_host(self) -> dict[str, Places]:
        """Return what each host has, in document order: one, unless the file is of a NVLink domain of several."""
        cpus: dict[str, list[Cpu]] = {}
        places: dict[str, list[Place]] = {}
        ports: dict[str, list[Port]] = {}
        for cpu in self.cpus:
            cpus.setdefault(cpu.host, []).append(cpu)
        for place in self.all:
            places.setdefault(place.cpu.host, []).append(place)
        for port in self.ports:
            ports.setdefault(port.cpu.host, []).append(port)
        return {
            host: Places(cpus=tuple(own), all=tuple(places.get(host, ())), ports=tuple(ports.get(host, ())))
            for host, own in cpus.items()
        }

    def of(self, *roles: Role) -> list[Place]:
        """Return the places of these roles."""
        return [place for place in self.all if place.role in roles]

    @property
    def repeated(self) -> tuple[str, ...]:
        """PCI addresses that more than one function of a host claims, as edited files do."""
        return tuple(address for _, address in doubles((place.cpu.host, place.address) for place in self.all))

    @property
    def shared_functions(self) -> tuple[str, ...]:
        """Ids of network functions with more than one port: nodes, so that their PCIe link counts once."""
        counts = Counter(port.place.id for port in self.ports if port.place is not None)
        return tuple(name for name, count in counts.items() if count > 1)


def find_places(system: Element, host: str) -> Places:
    """Find the place of every part of the `system` element.

    Raises:
        TopologyError: if parts contradict each other, with the line of each.

    """
    cpus, problems = cpus_of(system, host)
    places, ports, loose = [], [], []
    seen: Counter[tuple[str, str]] = Counter()
    for element, cpu in zip(system.inside("cpu"), cpus, strict=True):
        below = [place for pci in element.inside("pci") for place in _functions(pci, cpu, None, seen)]
        places += below
        ports += [port for place in below if place.role is Role.nic for port in _ports(place)]
        nets = [net for nic in element.inside("nic") for net in nic.inside("net")]
        loose += [_port(net, cpu, None) for net in nets]
    ports += _once(loose)
    problems += [*_twice(places, ports), *(problem for place in places for problem in _misfits(place))]
    if problems:
        raise refusal(*problems)
    kept, merged = _without_merged(ports)
    return Places(cpus=tuple(cpus), all=tuple(places), ports=_distinct(kept), merged=merged)


def _functions(pci: Element, cpu: Cpu, above: Place | None, seen: Counter[tuple[str, str]]) -> list[Place]:
    address = normal_pci(pci.attributes["busid"]) or ""
    seen[cpu.host, address] += 1
    count = seen[cpu.host, address]
    place = Place(
        element=pci,
        id=f"{cpu.host}/{address}" + (f"#{count}" if count > 1 else ""),
        address=address,
        role=_role(pci),
        cpu=cpu,
        parent=cpu.id if above is None else above.id,
        path=() if above is None else (*above.path, above.id),
        bridge=_bridge(pci, address) if above is None else above.bridge,
    )
    return [place, *(below for child in pci.inside("pci") for below in _functions(child, cpu, place, seen))]


def _bridge(pci: Element, address: str) -> str | None:
    told = pci.attributes.get("trainmaster_bridge")
    if told is not None:
        return told.strip() or None
    return None if address.startswith(_NO_BUS) else f"bridge{address.rsplit(':', 1)[0]}"


def _role(pci: Element) -> Role:
    # NCCL's order (ncclTopoAddPci): what is inside decides, then the class; an unknown class with functions below
    # is a switch. AMD's compute GPUs are class 0x12, as accelerators of other vendors are.
    pci_class, vendor = (pci.get("class") or "").lower(), (pci.get("vendor") or "").lower()
    if pci.inside("gpu") or pci_class.startswith("0x03") or (pci_class.startswith("0x12") and vendor == "0x1002"):
        return Role.gpu
    if pci.inside("nic") or pci_class.startswith("0x02"):
        return Role.nic
    if pci.inside("pci") or pci.inside("pcilink") or pci_class.startswith("0x0604"):
        return Role.switch
    return Role.nvswitch if pci_class == "0x068000" else Role.unknown


def _ports(place: Place) -> list[Port]:
    nets = [net for nic in place.element.inside("nic") for net in nic.inside("net")]
    if nets:
        return [_port(net, place.cpu, place) for net in nets]
    return [Port(id=f"{place.id}/port", name=place.address, cpu=place.cpu, net=None, place=place)]


def _port(net: Element, cpu: Cpu, place: Place | None) -> Port:
    name = net.attributes["name"].strip()
    return Port(id=f"{cpu.host}/{name}", name=name, cpu=cpu, net=net, place=place)


def _number(port: Port) -> str:
    return (port.net.get("port") if port.net is not None else None) or "?"


def _once(loose: Sequence[Port]) -> list[Port]:
    # One adapter that several CPUs of a host list is one adapter; twice under one CPU it is a contradiction.
    kept: list[Port] = []
    first: dict[tuple[str, str], int] = {}
    for port in loose:
        at = first.setdefault((port.id, _number(port)), len(kept))
        if at < len(kept) and kept[at].cpu != port.cpu:
            kept[at] = replace(kept[at], is_near=False)
        else:
            kept.append(port)
    return kept


def _without_merged(ports: Sequence[Port]) -> tuple[list[Port], tuple[str, ...]]:
    # NCCL names an adapter it merged `mlx5_0+mlx5_1`. Where its parts are listed too, they are the hardware.
    names = {(port.cpu.host, port.name) for port in ports}
    merged = [
        port
        for port in ports
        if "+" in port.name and all((port.cpu.host, part) in names for part in port.name.split("+"))
    ]
    left_out = {(port.id, _number(port)) for port in merged}
    return [port for port in ports if (port.id, _number(port)) not in left_out], tuple(port.id for port in merged)


def _distinct(ports: Sequence[Port]) -> tuple[Port, ...]:
    # Ports of one adapter share its name; NCCL_IB_HCA writes them as NAME:PORT.
    counts = Counter(port.id for port in ports)
    return tuple(replace(port, id=f"{port.id}:{_number(port)}") if counts[port.id] > 1 else port for port in ports)


def _twice(places: Sequence[Place], ports: Sequence[Port]) -> list[str]:
    told = [(f"the GPU {place.address}", place.cpu.host, place.element) for place in places if place.role is Role.gpu]
    told += [(f"the GPU {uuid}", place.cpu.host, place.element) for place in places if (uuid := _uuid(place))]
    told += [(f"the port {port.name}:{_number(port)}", port.cpu.host, port.net) for port in ports if port.net]
    problems = []
    seen: dict[tuple[str, str], int] = {}
    for what, host, element in told:
        if (what, host) in seen:
            problems.append(f"line {element.line}: {what} again, first on line {seen[what, host]}")
        seen.setdefault((what, host), element.line)
    return problems


def _uuid(place: Place) -> str | None:
    return None if place.gpu is None else place.gpu.get("trainmaster_uuid")


def _misfits(place: Place) -> list[str]:
    where, inner = f"line {place.element.line}: the PCI function {place.address}", place.element
    problems = []
    gpus = inner.inside("gpu")
    if len({gpu.get("sm") for gpu in gpus}) > 1 or len({gpu.get("dev") for gpu in gpus}) > 1:
        problems.append(f"{where} holds {len(gpus)} GPUs of different dev or sm")
    if gpus and inner.inside("nic"):
        problems.append(f"{where} is both a GPU and a NIC")
    if place.role in {Role.gpu, Role.nic} and inner.inside("pci"):
        problems.append(f"{where} is a {place.role.value} with other functions below it")
    return problems
