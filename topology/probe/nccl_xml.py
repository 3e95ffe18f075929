"""NCCL and RCCL topology files -> Topology. Pure: the bytes in, a machine or a refusal out.

The file tells PCI trees, NVLink and XGMI counts and network ports. It tells neither the memory of a GPU or host nor
host bridges, unless this package wrote it: the first are unknown (or a table's) with a warning, the second are never
guessed to be shared.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from topology.model import Device, DeviceKind, Host, Link, Nic, Switch, SwitchKind, Topology
from topology.probe.nccl_extract import recognises
from topology.probe.nccl_links import join_gpus
from topology.probe.nccl_names import gpu_memory_bytes, gpu_name, told_memory_bytes
from topology.probe.nccl_pcie import pcie_of, pcie_parts
from topology.probe.nccl_places import Places, Role, find_places
from topology.probe.nccl_tree import read_document, refusal
from topology.probe.nccl_warnings import left_out, memory_warnings, no_gpus, port_warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.fabric import Fabric
    from topology.probe.nccl_pcie import PcieParts
    from topology.probe.nccl_places import Place, Port

__all__ = ["parse_nccl_xml", "recognises"]

_MEGABIT_BYTES: Final = 125_000
# Above any port there is; libfabric providers (cxi) have been seen to write kilobits.
_MAX_MEGABITS: Final = 10_000_000
_MAX_GPUS: Final = 256
_MAX_PAIRS: Final = _MAX_GPUS * (_MAX_GPUS - 1) // 2
_MAX_CPUS: Final = 64
_RDMA: Final = re.compile(r"(?:mlx\d|bnxt_re|irdma|roce|rocep|ibp|hns_|erdma|mana_)", re.IGNORECASE)


def parse_nccl_xml(content: bytes, *, host: str) -> Topology:
    """Read the bytes of a topology file of NCCL or RCCL, or of text that has one inside.

    It is the machine of one host, or where NCCL wrote a NVLink domain of several, of HOST-0, HOST-1 and so on.

    Raises:
        TopologyError: naming line and reason, if it is cut off, no topology, or tells what cannot be.

    """
    document = read_document(content)
    places = find_places(document.root, host)
    by_host = places.by_host()
    _check_sizes(list(by_host.values()))
    parts = [_one_host(own, name) for name, own in by_host.items()]
    hosts = tuple(made for made, _, _ in parts)
    fabrics, trees = [fabric for _, fabric, _ in parts], [tree for _, _, tree in parts]
    switches, links = _joined(fabrics, host)
    if len(hosts) > 1:
        hosts = tuple(_in_domain(made, host, links) for made in hosts)
    devices = [device for made in hosts for device in made.devices]
    warnings = [
        *no_gpus(places),
        *memory_warnings(devices, {place.id for place in places.of(Role.gpu) if _is_told(place)}),
        *left_out(places, document.skipped),
        *_told(hosts, [fabric.warnings for fabric in fabrics]),
        *_told(hosts, [tree.warnings for tree in trees]),
        *port_warnings(places.ports, [nic for made in hosts for nic in made.nics]),
    ]
    return Topology(
        hosts=hosts,
        links=(*links, *(link for tree in trees for link in tree.links)),
        pairs=tuple(pair for fabric in fabrics for pair in fabric.pairs),
        switches=(*switches, *(switch for tree in trees for switch in tree.switches)),
        warnings=tuple(warnings),
        source="nccl-xml",
    )


def _check_sizes(by_host: Sequence[Places]) -> None:
    num_gpus = [len(places.of(Role.gpu)) for places in by_host]
    num_cpus = [len(places.cpus) for places in by_host]
    if max(num_gpus) > _MAX_GPUS or max(num_cpus) > _MAX_CPUS:
        raise refusal(f"line 1: {max(num_gpus)} GPUs and {max(num_cpus)} cpu elements; one host has fewer")
    if any(sum(count * (count - 1) // 2 for count in counts) > _MAX_PAIRS for counts in (num_gpus, num_cpus)):
        raise refusal(f"line 1: {sum(num_gpus)} GPUs and {sum(num_cpus)} cpu elements; a NVLink domain has fewer")


def _one_host(places: Places, name: str) -> tuple[Host, Fabric, PcieParts]:
    gpus = sorted(places.of(Role.gpu), key=_order)
    tree = pcie_parts(places)
    devices = tuple(_device(place) for place in gpus)
    named = [cpu.name for cpu in places.cpus if cpu.name is not None]
    counts = [cpu.num_threads for cpu in places.cpus if cpu.num_threads is not None]
    host = Host(
        name=name,
        memory_bytes=None,
        cores=sum(counts) or None if len(counts) == len(places.cpus) else None,
        devices=devices,
        nics=tuple(_nic(port) for port in places.ports),
        cpu_name=named[0] if named else None,
        is_virtual=tree.is_virtual,
    )
    return host, join_gpus(gpus, [device.name for device in devices], name), tree


def _is_told(place: Place) -> bool:
    return told_memory_bytes(place.element) is not None


def _order(place: Place) -> int:
    index = _index(place)
    return 2**31 if index is None else index


def _index(place: Place) -> int | None:
    dev = place.gpu.get("dev") if place.gpu is not None else None
    return int(dev) if dev is not None and int(dev) >= 0 else None


def _device(place: Place) -> Device:
    name = gpu_name(place.element)
    return Device(
        id=place.id,
        host=place.cpu.host,
        kind=DeviceKind.gpu,
        name=name,
        memory_bytes=gpu_memory_bytes(place.element, name),
        numa=place.cpu.numa,
        pci=place.address,
        uuid=place.gpu.get("trainmaster_uuid") if place.gpu is not None else None,
        index=_index(place),
        compute_capability=place.compute_capability,
        pcie=pcie_of(place.element),
        cpus=place.cpu.cpus,
    )


def _nic(port: Port) -> Nic:
    return Nic(
        id=port.id,
        name=port.name,
        kind=_kind(port),
        bytes_per_second=_rate(port),
        numa=port.cpu.numa if port.is_near else None,
        pci=None if port.place is None else port.place.address,
    )


def _rate(port: Port) -> float | None:
    megabits = int((port.net.get("speed") if port.net is not None else None) or 0)
    return float(megabits * _MEGABIT_BYTES) if 0 < megabits <= _MAX_MEGABITS else None


def _kind(port: Port) -> str:
    # InfiniBand adapters are class 0x0207. Ethernet ones with a verbs name are RoCE. Without a function, or where
    # NCCL found no more than "a network function" (0x02), unknown.
    pci_class = port.place.pci_class if port.place is not None else None
    if pci_class is None or pci_class == "0x02":
        return "unknown"
    if pci_class.startswith("0x0207"):
        return "infiniband"
    return "roce" if port.net is not None and _RDMA.match(port.name) else "ethernet"


def _joined(fabrics: Sequence[Fabric], name: str) -> tuple[list[Switch], list[Link]]:
    # NCCL joins hosts in one file only where one NVLink fabric joins their GPUs: its switches are one node.
    switches = [switch for fabric in fabrics for switch in fabric.switches]
    links = [link for fabric in fabrics for link in fabric.links]
    if len(fabrics) == 1 or not switches:
        return switches, links
    own = {switch.id for switch in switches}
    shared = Switch(id=f"{name}/nvswitch", kind=SwitchKind.nvswitch)
    return [shared], [replace(link, b=shared.id) if link.b in own else link for link in links]


def _in_domain(host: Host, name: str, links: Sequence[Link]) -> Host:
    shared = f"{name}/nvswitch"
    joined = {link.a for link in links if link.b == shared}
    devices = (replace(device, fabric=shared) if device.id in joined else device for device in host.devices)
    return replace(host, devices=tuple(devices))


def _told(hosts: Sequence[Host], texts: Sequence[tuple[str, ...]]) -> list[str]:
    if len(hosts) == 1:
        return list(texts[0])
    return [f"{host.name}: {text}" for host, own in zip(hosts, texts, strict=True) for text in own]
