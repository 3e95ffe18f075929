"""A host as an NCCL topology file (XML), for NCCL_TOPO_FILE or for tools that read such files."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Final

from topology.checks import doubles
from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Nic
from topology.pcie_tree import PORT
from topology.render.nccl_elements import (
    Element,
    adapter_element,
    bundle_elements,
    cpu_element,
    gpu_element,
    net_element,
    switch_element,
    with_bridge,
)
from topology.render.nccl_places import INVENTED, Hung, hang

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from topology.model import Host, Link, Switch, Topology

_MAX_VALUE: Final = 253  # characters: NCCL keeps 255 with the end of the text
_MAX_PROBLEMS: Final = 20
_NOTE: Final = "<!-- Bus ids of domain fffe are made up: this file is for reading, never for NCCL_TOPO_FILE. -->"
_NOT_XML: Final = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
)


def nccl_xml(topology: Topology, host_name: str | None = None, *, invent_addresses: bool = False) -> str:
    """Write one host as a topology file: version 1 for NCCL, 2 for RCCL where GPUs have XGMI links.

    What is not known is left out, and NCCL then looks it up on the machine. The format has no host bridges, nor names,
    memory or UUIDs of GPUs: they are attributes of their own (`trainmaster_*`), which NCCL and RCCL pass over and
    `parse_nccl_xml` reads. Speeds are Mb/s, as NCCL has them. `invent_addresses` gives parts without a PCI address or
    NUMA number one that no machine has, and a comment that says so: such a file is to be read, not to be given to NCCL.

    Raises:
        TopologyError: with everything that is missing or cannot be carried: the host, PCI addresses, whole GPUs,
            NUMA numbers, NVLinks behind the pairs, names that XML or NCCL cannot hold.

    """
    host = _host(topology, host_name)
    hung = hang(topology, host, invent=invent_addresses)
    nodes = _numbers(hung.sockets, invent=invent_addresses)
    problems = [*hung.problems, *_missing(topology, host), *_twice(host, nodes)]
    if problems:
        raise _refusal(host.name, problems)
    root = _Writer(topology, host, hung).system([nodes[socket.id] for socket in hung.sockets])
    problems = [*_unwritable(root), *_ports_twice(root)]
    if problems:
        raise _refusal(host.name, problems)
    invented = any(address.startswith(INVENTED) for address in hung.address.values())
    return "\n".join([*([_NOTE] if invented else []), *_lines(root, 0)]) + "\n"


def _host(topology: Topology, name: str | None) -> Host:
    names = [host.name for host in topology.hosts]
    if name is None and len(names) == 1:
        return topology.hosts[0]
    if name not in names:
        found = "no host named" if name is None else f"no host {name!r}"
        raise TopologyError(
            asked="an NCCL topology file (XML) of one host",
            found=f"{found}, among {len(names)}",
            remedy=f"name one of {', '.join(names[:16])}",
        )
    return topology.hosts[names.index(name)]


def _refusal(host: str, problems: Sequence[str]) -> TopologyError:
    rest = len(problems) - _MAX_PROBLEMS
    return TopologyError(
        asked=f"an NCCL topology file (XML) of {host}",
        problems=(*problems[:_MAX_PROBLEMS], *([f"and {rest} more"] if rest > 0 else [])),
        remedy="save the topology as JSON, which carries everything",
    )


def _numbers(sockets: Sequence[Switch], *, invent: bool) -> dict[str, int]:
    # -1 is NCCL's word for an unknown node. Two nodes of one number are told apart only in a file for reading.
    numbers: dict[str, int] = {}
    for socket in sockets:
        number = -1 if socket.numa is None else socket.numa
        if invent and number in numbers.values():
            number = next(free for free in count(1000) if free not in numbers.values())
        numbers[socket.id] = number
    return numbers


def _twice(host: Host, nodes: dict[str, int]) -> list[str]:
    whole = [device for device in host.devices if device.parent is None]
    pcis = [device.pci for device in whole if device.pci is not None]
    uuids = [device.uuid for device in whole if device.uuid is not None]
    return [
        *(f"two NUMA nodes of the number {number}" for number in doubles(nodes.values())),
        *(f"two GPUs of the PCI address {pci}" for pci in doubles(pcis)),
        *(f"two GPUs of the UUID {uuid!r}" for uuid in doubles(uuids)),
    ]


def _missing(topology: Topology, host: Host) -> list[str]:
    slices = [f"{device.id} is a part of a GPU (MIG)" for device in host.devices if device.parent is not None]
    own = {device.id for device in host.devices}
    linked = {end for link in topology.links if link.kind.startswith("NV") for end in (link.a, link.b)}
    bare = [pair for pair in topology.pairs if pair.is_nvlink and pair.a in own and not {pair.a, pair.b} <= linked]
    if not (topology.switches or host.nics or any(device.kind is DeviceKind.gpu for device in host.devices)):
        slices.append("the host has neither a GPU nor a network adapter")
    return slices + [f"{pair.a} - {pair.b} is {pair.kind}, but no link tells between what" for pair in bare]


class _Writer:
    # The host and its parts by id, so that the elements can be made from the leaves up. Ports count along the file.

    def __init__(self, topology: Topology, host: Host, hung: Hung) -> None:
        self._host = host
        self._hung = hung
        self._parts: dict[str, Device | Nic] = {device.id: device for device in host.devices}
        self._parts |= {nic.id: nic for nic in host.nics}
        self._kinds = {switch.id: switch.kind for switch in (*topology.switches, *hung.sockets)}
        self._links: dict[str, list[Link]] = {}
        for link in topology.links:
            for end in (link.a, link.b):
                self._links.setdefault(end, []).append(link)
        self._dev = count()

    def system(self, nodes: Sequence[int]) -> Element:
        is_amd = any(link.kind.startswith("XGMI") for name in self._parts for link in self._links.get(name, []))
        cpus = tuple(self._cpu(socket, node) for socket, node in zip(self._hung.sockets, nodes, strict=True))
        return Element(tag="system", attributes=(("version", "2" if is_amd else "1"),), children=cpus)

    def _cpu(self, socket: Switch, node: int) -> Element:
        under = [part for name in self._under(socket.id) if isinstance(part := self._parts.get(name), Device)]
        near = {device.cpus for device in under}
        below = list(self._functions(socket.id))
        nets = [net_element(nic, next(self._dev)) for nic in self._nics(socket.id) if nic.id not in self._hung.address]
        if nets:
            below.append(Element(tag="nic", children=tuple(nets)))
        return cpu_element(node, self._host.cpu_name, near.pop() if len(near) == 1 else None, below)

    def _under(self, name: str) -> Iterator[str]:
        for child in self._hung.below.get(name, ()):
            yield child
            yield from self._under(child)

    def _nics(self, name: str) -> list[Nic]:
        parts = (self._parts.get(child) for child in self._hung.below.get(name, ()))
        return [part for part in parts if isinstance(part, Nic)]

    def _functions(self, name: str) -> Iterator[Element]:
        # Ports of one address that no function joins are ports of one function all the same.
        address = self._hung.address
        adapters: dict[str, list[Nic]] = {}
        for nic in self._nics(name):
            if nic.id in address:
                adapters.setdefault(address[nic.id], []).append(nic)
        children = [child for child in self._hung.below.get(name, ()) if child in address]
        for child in sorted(children, key=lambda child: address[child]):
            bridge = self._hung.bridge.get(child)
            yield from (with_bridge(element, bridge) for element in self._function(child, adapters))

    def _function(self, name: str, adapters: dict[str, list[Nic]]) -> Iterator[Element]:
        part, address = self._parts.get(name), self._hung.address[name]
        if isinstance(part, Device):
            yield self._gpu(part)
        elif isinstance(part, Nic):
            yield from self._adapter(name, adapters.pop(address, []))
        elif any(link.kind == PORT and link.b == name for link in self._links.get(name, [])):
            yield from self._adapter(name, self._nics(name))
        else:
            yield switch_element(address, self._hung.uplink.get(name), self._functions(name), self._peers(name))

    def _gpu(self, device: Device) -> Element:
        address = self._hung.address
        links = [
            link
            for link in self._links.get(device.id, [])
            if all(end in address or end in self._kinds for end in (link.a, link.b))
        ]
        bundles = bundle_elements(device.id, links, address, self._kinds)
        return gpu_element(device, address[device.id], self._hung.uplink.get(device.id), bundles)

    def _adapter(self, name: str, nics: Sequence[Nic]) -> Iterator[Element]:
        if nics:
            # A port that has no name but its function's was never told: only the function is known.
            ports = tuple(net_element(nic, next(self._dev)) for nic in nics if nic.name != nic.pci)
            yield adapter_element(self._hung.address[name], nics[0].kind, self._hung.uplink.get(name), ports)

    def _peers(self, name: str) -> list[str]:
        ends = ({link.a, link.b} - {name} for link in self._links.get(name, []) if link.kind == "PCIe peer")
        return [self._hung.address[end] for pair in ends for end in pair if end in self._hung.address]


def _ports_twice(root: Element) -> list[str]:
    ports = [(net.get("name"), net.get("port")) for net in _walk(root) if net.tag == "net"]
    return [f"two ports of the name {name!r} and the number {number or '?'}" for name, number in doubles(ports)]


def _walk(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        yield from _walk(child)


def _unwritable(root: Element) -> list[str]:
    problems = []
    for name, value in root.attributes:
        if _NOT_XML.search(value):
            problems.append(f"{value[:60]!r} ({name} of <{root.tag}>) has characters XML has not")
        elif (root.tag, name) == ("net", "name") and value != (value.strip() or None):
            problems.append(f"{value[:60]!r} (name of <net>) is empty, or begins or ends with a blank")
        elif len(value.translate(_ESCAPES).encode()) > _MAX_VALUE:
            problems.append(f"{value[:60]!r} ({name} of <{root.tag}>) is longer than the {_MAX_VALUE} bytes NCCL reads")
    return problems + [problem for child in root.children for problem in _unwritable(child)]


def _lines(element: Element, depth: int) -> Iterator[str]:
    # As NCCL's own reader wants it: no declaration, one blank before an attribute, none before the end.
    indent = "  " * depth
    attributes = "".join(f' {name}="{value.translate(_ESCAPES)}"' for name, value in element.attributes)
    if not element.children:
        yield f"{indent}<{element.tag}{attributes}/>"
        return
    yield f"{indent}<{element.tag}{attributes}>"
    for child in element.children:
        yield from _lines(child, depth + 1)
    yield f"{indent}</{element.tag}>"
