"""Where each part of a topology file sits: under which NUMA node, below which PCI switches, and what it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from topology.checks import normal_pci
from topology.probe.nccl_tree import refusal

if TYPE_CHECKING:
    from topology.probe.nccl_tree import Element


class Role(Enum):
    """What a PCI function is to us."""

    gpu = "gpu"
    nic = "nic"
    switch = "switch"
    nvswitch = "nvswitch"
    unknown = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One `cpu` element, a NUMA node. `num_threads` counts the bits of its affinity mask."""

    id: str
    numa: int | None
    num_threads: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One PCI function: `path` are the ids above it, the topmost first; `top` is the address below the CPU."""

    element: Element
    id: str
    address: str
    role: Role
    cpu: Cpu
    parent: str
    path: tuple[str, ...]
    top: str

    @property
    def pci_class(self) -> str | None:
        """The PCI class in lower case, or None."""
        found = self.element.get("class")
        return None if found is None else found.lower()

    @property
    def gpu(self) -> Element | None:
        """The `gpu` element of this function."""
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
    """One network port: a `net` element, or a function of a network class without any. No place if virtual."""

    id: str
    name: str
    cpu: Cpu
    net: Element | None
    place: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All of them, in document order."""

    cpus: tuple[Cpu, ...]
    all: tuple[Place, ...]
    ports: tuple[Port, ...]

    def of(self, role: Role) -> list[Place]:
        """Return the places of one role."""
        return [place for place in self.all if place.role is role]

    @property
    def repeated(self) -> tuple[str, ...]:
        """PCI addresses that more than one function claims, as edited files do."""
        return tuple(address for address, count in Counter(place.address for place in self.all).items() if count > 1)

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
    cpus, places, ports = [], [], []
    seen: Counter[str] = Counter()
    for element in system.inside("cpu"):
        cpu = _cpu(element, host)
        cpus.append(cpu)
        tops = element.inside("pci")
        below = [place for pci in tops for place in _functions(pci, cpu, host, None, seen)]
        places += below
        ports += [port for place in below if place.role is Role.nic for port in _ports(place, host)]
        nets = [net for nic in element.inside("nic") for net in nic.inside("net")]
        ports += [_port(net, cpu, None, host) for net in nets]
    problems = [*_contradictions(system), *(problem for place in places for problem in _misfits(place))]
    if problems:
        raise refusal(*problems)
    return Places(cpus=tuple(cpus), all=tuple(places), ports=_distinct(ports))


def _cpu(element: Element, host: str) -> Cpu:
    node = element.get("numaid")
    numa = None if node is None or node == "-1" else int(node)
    vendor, family, model = (element.get(key) for key in ("vendor", "familyid", "modelid"))
    return Cpu(
        id=f"{host}/node{'?' if numa is None else numa}",
        numa=numa,
        num_threads=sum(int(part, 16).bit_count() for part in (element.get("affinity") or "0").split(",")),
        name=vendor and f"{vendor}{f' {family}/{model}' if family and model else ''}",
    )


def _functions(pci: Element, cpu: Cpu, host: str, above: Place | None, seen: Counter[str]) -> list[Place]:
    address = normal_pci(pci.attributes["busid"]) or ""
    seen[address] += 1
    place = Place(
        element=pci,
        id=f"{host}/{address}" + (f"#{seen[address]}" if seen[address] > 1 else ""),
        address=address,
        role=_role(pci),
        cpu=cpu,
        parent=cpu.id if above is None else above.id,
        path=() if above is None else (*above.path, above.id),
        top=address if above is None else above.top,
    )
    inner = pci.inside("pci")
    return [place, *(below for child in inner for below in _functions(child, cpu, host, place, seen))]


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


def _ports(place: Place, host: str) -> list[Port]:
    nets = [net for nic in place.element.inside("nic") for net in nic.inside("net")]
    if nets:
        return [_port(net, place.cpu, place, host) for net in nets]
    return [Port(id=f"{place.id}/port", name=place.address, cpu=place.cpu, net=None, place=place)]


def _port(net: Element, cpu: Cpu, place: Place | None, host: str) -> Port:
    name = net.attributes["name"].strip()
    return Port(id=f"{host}/{name}", name=name, cpu=cpu, net=net, place=place)


def _distinct(ports: list[Port]) -> tuple[Port, ...]:
    # Ports of one adapter share its name; NCCL_IB_HCA writes them as NAME:PORT.
    counts = Counter(port.id for port in ports)
    return tuple(
        Port(
            id=f"{port.id}:{port.net.get('port') or '?'}", name=port.name, cpu=port.cpu, net=port.net, place=port.place
        )
        if counts[port.id] > 1 and port.net is not None
        else port
        for port in ports
    )


def _contradictions(system: Element) -> list[str]:
    problems = []
    seen: dict[tuple[str, str], int] = {}
    for element in system.walk():
        key = None
        if element.tag == "pci" and _role(element) is Role.gpu:
            key = ("the GPU", normal_pci(element.attributes["busid"]) or "")
        elif element.tag == "cpu":
            key = ("the NUMA node", str(int(element.attributes["numaid"])))
        elif element.tag == "net":
            key = ("the port", f"{element.get('name')}:{element.get('port') or '?'}")
        if key in seen:
            problems.append(f"line {element.line}: {key[0]} {key[1]} again, first on line {seen[key]}")
        elif key is not None:
            seen[key] = element.line
    hashes = {cpu.get("host_hash") for cpu in system.inside("cpu")} - {None}
    if len(hashes) > 1:
        problems.append(f"line {system.line}: CPUs of {len(hashes)} hosts (host_hash); dump the topology of one host")
    return problems


def _misfits(place: Place) -> list[str]:
    where, inner = f"line {place.element.line}: the PCI function {place.address}", place.element
    problems = []
    if len(inner.inside("gpu")) > 1:
        problems.append(f"{where} holds {len(inner.inside('gpu'))} GPUs; parts of one GPU are not supported")
    if inner.inside("gpu") and inner.inside("nic"):
        problems.append(f"{where} is both a GPU and a NIC")
    if place.role in {Role.gpu, Role.nic} and inner.inside("pci"):
        problems.append(f"{where} is a {place.role.value} with other functions below it")
    return problems
