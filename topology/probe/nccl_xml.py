"""NCCL and RCCL topology files -> Topology. Pure: the bytes in, a machine or a refusal out.

The file tells PCI trees, NVLink and XGMI counts and network ports. It tells neither the memory of a GPU or host nor
host bridges: the first are unknown (or a table's) with a warning, the second are never guessed to be shared.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.hardware import peak
from topology.model import Device, DeviceKind, Host, Link, Nic, Switch, SwitchKind, Topology
from topology.probe.nccl_links import NO_RATE, join_gpus, pci_bytes_per_second, pci_warnings
from topology.probe.nccl_places import Places, Role, find_places
from topology.probe.nccl_tree import read_document, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.probe.nccl_places import Place, Port

_MEGABIT_BYTES: Final = 125_000
# Above any port there is; libfabric providers (cxi) have been seen to write kilobits.
_MAX_MEGABITS: Final = 10_000_000
_MAX_GPUS: Final = 256
_MAX_CPUS: Final = 64
_RDMA: Final = re.compile(r"(?:mlx\d|bnxt_re|irdma|roce|rocep|ibp|hns_|erdma|mana_)", re.IGNORECASE)
_NVIDIA: Final = "0x10de"
_VENDORS: Final[Mapping[str, str]] = {_NVIDIA: "NVIDIA", "0x1002": "AMD", "0x1d94": "Hygon"}
# NVIDIA device ids and the names NVML gives them (pci.ids 2026.08.22); other ids keep their number.
_NAMES: Final[Mapping[str, str]] = {
    "0x1db1": "Tesla V100-SXM2-16GB",
    "0x1db4": "Tesla V100-PCIE-16GB",
    "0x1db5": "Tesla V100-SXM2-32GB",
    "0x1db6": "Tesla V100-PCIE-32GB",
    "0x1eb8": "Tesla T4",
    "0x20b0": "NVIDIA A100-SXM4-40GB",
    "0x20b2": "NVIDIA A100-SXM4-80GB",
    "0x20b5": "NVIDIA A100 80GB PCIe",
    "0x20f1": "NVIDIA A100-PCIE-40GB",
    "0x2235": "NVIDIA A40",
    "0x2236": "NVIDIA A10",
    "0x2237": "NVIDIA A10G",
    "0x26b9": "NVIDIA L40S",
    "0x27b8": "NVIDIA L4",
    "0x2330": "NVIDIA H100 80GB HBM3",
    "0x2331": "NVIDIA H100 PCIe",
    "0x2335": "NVIDIA H200",
    "0x2901": "NVIDIA B200",
}
_BEFORE_ROOT: Final = re.compile(rb"(?:\s+|<\?[^>]{0,200}\?>)*")
_ROOT: Final = re.compile(rb"<system\s[^<>]*\bversion\s*=")


def recognises(content: bytes) -> bool:
    """Whether the first element is `system`, as in a topology file: comments may come before it."""
    text = content[: 2**16].removeprefix(b"\xef\xbb\xbf")
    at = _skip(text, 0)
    while text.startswith(b"<!--", at):
        end = text.find(b"-->", at)
        if end < 0:
            return False
        at = _skip(text, end + 3)
    return _ROOT.match(text, at) is not None


def _skip(text: bytes, at: int) -> int:
    match = _BEFORE_ROOT.match(text, at)
    return at if match is None else match.end()


def parse_nccl_xml(content: bytes, *, host: str) -> Topology:
    """Read the bytes of a topology file of NCCL or RCCL as the machine of one host.

    Raises:
        TopologyError: naming line and reason, if it is cut off, no topology, or tells what cannot be.

    """
    document = read_document(content)
    places = find_places(document.root, host)
    gpus = sorted(places.of(Role.gpu), key=_order)
    if len(gpus) > _MAX_GPUS or len(places.cpus) > _MAX_CPUS:
        raise refusal(f"line 1: {len(gpus)} GPUs and {len(places.cpus)} cpu elements; one host has fewer")
    fabric = join_gpus(gpus, places, host)
    devices = tuple(_device(place, host) for place in gpus)
    nics = tuple(_nic(port) for port in places.ports)
    warnings = [
        *_memory_warnings(devices),
        *_left_out(places, document.skipped),
        *fabric.warnings,
        *pci_warnings(places),
        *_port_warnings(places.ports),
    ]
    return Topology(
        hosts=(_host(places, host, devices, nics),),
        links=(*fabric.links, *_tree_links(places)),
        pairs=fabric.pairs,
        switches=(*fabric.switches, *_switches(places, host)),
        warnings=tuple(warnings),
        source="nccl-xml",
    )


def _order(place: Place) -> int:
    index = _index(place)
    return _MAX_GPUS if index is None else index


def _index(place: Place) -> int | None:
    dev = place.gpu.get("dev") if place.gpu is not None else None
    return int(dev) if dev is not None and int(dev) >= 0 else None


def _device(place: Place, host: str) -> Device:
    name = _name(place)
    known = peak(name)
    return Device(
        id=place.id,
        host=host,
        kind=DeviceKind.gpu,
        name=name,
        memory_bytes=None if known is None else known.memory_bytes,
        numa=place.cpu.numa,
        pci=place.address,
        index=_index(place),
        compute_capability=place.compute_capability,
    )


def _name(place: Place) -> str:
    vendor, device = ((place.element.get(key) or "").lower() for key in ("vendor", "device"))
    if vendor == _NVIDIA and device in _NAMES:
        return _NAMES[device]
    if not vendor or not device:
        return "unknown GPU"
    return f"{_VENDORS.get(vendor, vendor)} GPU {vendor.removeprefix('0x')}:{device.removeprefix('0x')}"


def _nic(port: Port) -> Nic:
    return Nic(
        id=port.id,
        name=port.name,
        kind=_kind(port),
        bytes_per_second=_rate(port),
        numa=port.cpu.numa,
        pci=None if port.place is None else port.place.address,
    )


def _rate(port: Port) -> float | None:
    megabits = int((port.net.get("speed") if port.net is not None else None) or 0)
    return float(megabits * _MEGABIT_BYTES) if 0 < megabits <= _MAX_MEGABITS else None


def _kind(port: Port) -> str:
    # InfiniBand adapters are class 0x0207. Ethernet ones with a verbs name are RoCE. Without a function, unknown.
    pci_class = port.place.pci_class if port.place is not None else None
    if pci_class is None:
        return "unknown"
    if pci_class.startswith("0x0207"):
        return "infiniband"
    return "roce" if port.net is not None and _RDMA.match(port.name) else "ethernet"


def _switches(places: Places, host: str) -> list[Switch]:
    sockets = [Switch(id=cpu.id, kind=SwitchKind.socket, host=host) for cpu in places.cpus]
    shared = [Switch(id=name, kind=SwitchKind.pcie, host=host) for name in places.shared_functions]
    trees = [Switch(id=place.id, kind=SwitchKind.pcie, host=host) for place in places.of(Role.switch)]
    return [*sockets, *trees, *shared]


def _tree_links(places: Places) -> list[Link]:
    shared = frozenset(places.shared_functions)
    ports: dict[str, list[str]] = {}
    for port in places.ports:
        if port.place is not None:
            ports.setdefault(port.place.id, []).append(port.id)
    links = []
    for place in places.all:
        ends = ports.get(place.id, []) if place.role is Role.nic else [place.id]
        if place.id in shared:
            links += [Link(a=end, b=place.id, kind="port", source=NO_RATE) for end in ends]
            ends = [place.id]
        if place.role in {Role.gpu, Role.switch, Role.nic}:
            rate = pci_bytes_per_second(place.element)
            source = NO_RATE if rate is None else "table"
            links += [Link(a=end, b=place.parent, kind="PCIe", source=source, bytes_per_second=rate) for end in ends]
    virtual = [port for port in places.ports if port.place is None]
    links += [Link(a=port.id, b=port.cpu.id, kind="virtual", source=NO_RATE) for port in virtual]
    return links + [Link(a=a.id, b=b.id, kind="SYS", source=NO_RATE) for a, b in combinations(places.cpus, 2)]


def _host(places: Places, host: str, devices: tuple[Device, ...], nics: tuple[Nic, ...]) -> Host:
    named = [cpu.name for cpu in places.cpus if cpu.name is not None]
    return Host(
        name=host,
        memory_bytes=None,
        cores=sum(cpu.num_threads for cpu in places.cpus) or None,
        devices=devices,
        nics=nics,
        cpu_name=named[0] if named else None,
    )


def _memory_warnings(devices: tuple[Device, ...]) -> list[str]:
    unknown = [device.id for device in devices if device.memory_bytes is None]
    warnings = ["the file tells no host memory"]
    if len(unknown) < len(devices):
        warnings.append(
            f"the file tells no GPU memory: {len(devices) - len(unknown)} GPU(s) have the table's, by PCI id"
        )
    if unknown:
        warnings.append(f"the memory of {len(unknown)} GPU(s) is unknown: {_listed(unknown)}")
    return warnings


def _left_out(places: Places, skipped: tuple[str, ...]) -> list[str]:
    warnings = []
    unclassed = [place.address for place in places.of(Role.unknown) if place.pci_class is None]
    other = [f"{place.address} ({place.pci_class})" for place in places.of(Role.unknown) if place.pci_class is not None]
    if places.repeated:
        warnings.append(f"PCI addresses that more than one function has: {_listed(places.repeated)}")
    if unclassed:
        text = "PCI function(s) without a class, which NCCL looks up on the machine"
        warnings.append(f"{len(unclassed)} {text}; they are left out: {_listed(unclassed)}")
    if other:
        warnings.append(f"{len(other)} PCI function(s) of other classes left out: {_listed(other)}")
    if skipped:
        warnings.append(f"unknown elements skipped: {_listed(skipped)}")
    return warnings


def _port_warnings(ports: tuple[Port, ...]) -> list[str]:
    warnings, silent = [], []
    for port in ports:
        speed = port.net.get("speed") if port.net is not None else None
        if speed is None:
            silent.append(port.id)
        elif _rate(port) is None:
            warnings.append(f"NIC {port.id}: {speed} Mb/s is no rate of a port; its rate is unknown")
    return warnings + ([f"the rate of {len(silent)} NIC(s) is unknown: {_listed(silent)}"] if silent else [])


def _listed(names: list[str] | tuple[str, ...], limit: int = 16) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
