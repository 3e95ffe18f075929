"""How GPUs of one host are joined, from raw readings: nvidia-smi's pair labels, NVLink bundles, the NVSwitch.

Pure. Where the two ends of a bundle disagree, or a port could not be read, the smaller count holds and a
warning says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.link_rates import nvlink_rate
from topology.model import Link, Pair, Switch, SwitchKind
from topology.pcie_tree import table_source
from topology.probe.p2p import name_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.link_rates import Rate
    from topology.probe.readings import AncestorReadings, GpuReadings, NvlinkReadings
    from topology.reading import Reading

# NVML_TOPOLOGY_*; INTERNAL (two GPUs on one board) is printed as PIX.
_LABELS: Final[Mapping[int, str]] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

_COUNT_SOURCE: Final = "driver: active NVLink count"
_SAME_BOARD: Final = "PIX"  # two MIG devices of one GPU
_ACTIVE: Final = frozenset({1, 2})  # active, or asleep until there is traffic
_TO_GPU, _TO_SWITCH = 0, 2
_MIG: Final = 1  # the mode, in which links are off


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What `join` found among the devices it was given."""

    links: tuple[Link, ...]
    pairs: tuple[Pair, ...]
    switches: tuple[Switch, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    # Active ports of one GPU: towards each PCI address of a GPU, towards switches, and to an unknown end.
    to_gpu: Mapping[str, int]
    to_switch: int
    unknown: int
    unread: int
    rate: Rate | None  # of one link


def level_labels(gpus: Sequence[GpuReadings], ancestors: Sequence[AncestorReadings]) -> dict[frozenset[str], str]:
    """Return nvidia-smi's PCIe label of every two GPU addresses whose common ancestor NVML tells, NVLink aside."""
    address = {gpu.index: normal_pci(gpu.pci.value or "") for gpu in gpus}
    labels = {}
    for row in ancestors:
        a, b = address.get(row.a_index), address.get(row.b_index)
        label = _LABELS.get(row.level.value) if row.level.value is not None else None
        if a is not None and b is not None and a != b and label is not None:
            labels[frozenset((a, b))] = label
    return labels


def join(
    gpus: Mapping[str, GpuReadings],
    ancestors: Sequence[AncestorReadings],
    host: str,
    gpu_addresses: frozenset[str],
    tree_labels: Mapping[frozenset[str], str] = MappingProxyType({}),
    switch_addresses: frozenset[str] = frozenset(),
) -> Fabric:
    """Label every pair of the GPUs (by device id) and bundle their NVLinks.

    `gpu_addresses` are the PCI addresses of all GPUs of the host, hidden ones included; `tree_labels` serve pairs of
    device ids whose common ancestor NVML does not tell; `switch_addresses` are those of the NVSwitches on the bus.
    """
    ports = {name: _ports(gpu, gpu_addresses, switch_addresses) for name, gpu in gpus.items()}
    levels = {frozenset((row.a_index, row.b_index)): row.level for row in ancestors}
    pairs, links, warnings = [], [], _port_warnings(gpus, ports)
    unread: dict[str, list[str]] = {}
    for a, b in combinations(gpus, 2):
        direct = _direct(gpus[a], gpus[b], ports[a], ports[b])
        switched = min(ports[a].to_switch, ports[b].to_switch)
        ends = f"GPU {gpus[a].index} and GPU {gpus[b].index}"
        level = levels.get(frozenset((gpus[a].index, gpus[b].index)))
        if min(direct):
            links.append(_bundle(a, b, min(direct), ports[a], ports[b]))
        if direct[0] != direct[1] and _MIG not in {gpus[a].mig_mode.value, gpus[b].mig_mode.value}:
            warnings.append(f"{ends}: {direct[0]} and {direct[1]} active NVLinks towards each other")
        count = min(direct) or switched
        kind = f"NV{count}" if count else _label(gpus[a], gpus[b], level) or tree_labels.get(frozenset((a, b)))
        if kind is None:
            code = "never asked" if level is None else level.error or f"level {level.value}"
            unread.setdefault(code, []).append(f"GPU {gpus[a].index} - GPU {gpus[b].index}")
        else:
            pairs.append(Pair(a=a, b=b, kind=kind))
    num_pairs = len(pairs) + sum(map(len, unread.values()))
    warnings += [
        f"{name_pairs(names, num_pairs)}: topology level unreadable ({code})" for code, names in unread.items()
    ]
    switches, up = _switch_links(ports, host)
    return Fabric(links=(*links, *up), pairs=tuple(pairs), switches=switches, warnings=tuple(warnings))


def _label(a: GpuReadings, b: GpuReadings, level: Reading[int] | None) -> str | None:
    if a.index == b.index:
        return _SAME_BOARD
    return None if level is None or level.value is None else _LABELS.get(level.value)


def _ports(gpu: GpuReadings, gpu_addresses: frozenset[str], switch_addresses: frozenset[str]) -> _Ports:
    active = [port for port in gpu.nvlinks if port.state.value in _ACTIVE]
    kinds = [_end(port, gpu_addresses, switch_addresses) for port in active]
    towards = [port.remote_pci.value for port, kind in zip(active, kinds, strict=True) if kind == _TO_GPU]
    return _Ports(
        to_gpu=Counter(address for address in towards if address is not None),
        to_switch=kinds.count(_TO_SWITCH),
        unknown=len([kind for kind in kinds if kind not in {_TO_GPU, _TO_SWITCH}]) + towards.count(None),
        unread=len([port for port in gpu.nvlinks if port.state.error is not None]),
        rate=_rate(gpu, active),
    )


def _rate(gpu: GpuReadings, active: Sequence[NvlinkReadings]) -> Rate | None:
    # Links of one GPU are of one kind; where they say otherwise, the slowest holds.
    slowest: Rate | None = None
    for version in {port.version.value for port in active}:
        capability, name = gpu.compute_capability.value, gpu.name.value
        rate = nvlink_rate(compute_capability=capability, name=name, version=version)
        if rate is None:
            return None
        if slowest is None or rate.bytes_per_second < slowest.bytes_per_second:
            slowest = rate
    return slowest


def _end(port: NvlinkReadings, gpu_addresses: frozenset[str], switch_addresses: frozenset[str]) -> int | None:
    # Old drivers do not tell the type of the far end: then what is known to sit at its address decides.
    if port.remote_type.value is not None:
        return port.remote_type.value
    if port.remote_pci.value in switch_addresses:
        return _TO_SWITCH
    return _TO_GPU if port.remote_pci.value in gpu_addresses else None


def _direct(a: GpuReadings, b: GpuReadings, a_ports: _Ports, b_ports: _Ports) -> tuple[int, int]:
    return a_ports.to_gpu.get(b.pci.value or "?", 0), b_ports.to_gpu.get(a.pci.value or "?", 0)


def _bundle(a: str, b: str, count: int, a_ports: _Ports, b_ports: _Ports) -> Link:
    kind = f"NV{count}"
    if a_ports.rate is None or b_ports.rate is None:
        return Link(a=a, b=b, kind=kind, source=f"{_COUNT_SOURCE}; unknown: the rate of one link of this chip")
    slower = min(a_ports.rate, b_ports.rate, key=lambda rate: rate.bytes_per_second)
    rate, source = float(count * slower.bytes_per_second), f"{_COUNT_SOURCE}; {table_source(slower)}"
    return Link(a=a, b=b, kind=kind, bytes_per_second=rate, source=source)


def _switch_links(ports: Mapping[str, _Ports], host: str) -> tuple[tuple[Switch, ...], list[Link]]:
    # The NVSwitch chips of a host form one non-blocking fabric towards its GPUs: one node stands for them.
    joined = {name: own for name, own in ports.items() if own.to_switch}
    if not joined:
        return (), []
    switch = Switch(id=f"{host}/nvswitch", kind=SwitchKind.nvswitch, host=host)
    return (switch,), [_bundle(name, switch.id, own.to_switch, own, own) for name, own in joined.items()]


def _port_warnings(gpus: Mapping[str, GpuReadings], ports: Mapping[str, _Ports]) -> list[str]:
    warnings = []
    for name, own in ports.items():
        label = f"GPU {gpus[name].index}"
        if own.unread:
            warnings.append(f"{label}: the state of {own.unread} NVLink(s) could not be read; they count as inactive")
        if own.unknown:
            warnings.append(f"{label}: {own.unknown} active NVLink(s) with an unknown far end; they are not counted")
    return warnings
