"""How GPUs of one host are joined, from raw readings: nvidia-smi's pair labels, NVLink bundles, the NVSwitch.

Pure. Where the two ends of a bundle disagree, or a port could not be read, the smaller count holds and a
warning says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.model import Link, Pair, Switch, SwitchKind
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.probe.readings import AncestorReadings, GpuReadings, NvlinkReadings

# NVML_TOPOLOGY_*; INTERNAL (two GPUs on one board) is printed as PIX.
_LABELS: Final[Mapping[int, str]] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

# Advertised GB/s of one NVLink in one direction by compute capability (NVIDIA whitepapers P100, V100, Turing,
# A100, GA102, H100, B200, as of 2026-01). Later chips are unknown.
_LINK_GB: Final[Mapping[tuple[int, int], float]] = {
    (6, 0): 20.0,
    (7, 0): 25.0,
    (7, 5): 25.0,
    (8, 0): 25.0,
    (8, 6): 14.0625,
    (9, 0): 25.0,
    (10, 0): 50.0,
    (10, 3): 50.0,
}
# By the driver's NVLink version code, for cards that do not tell their capability. Drivers hand out two numberings
# (nvml.h: 4 is NVLink 3.0, 6 is 4.0, 7 is 5.0; the kernel driver's: 5 is 3.0, 7 is 4.0, 8 is 5.0): the slower holds.
_VERSION_GB: Final[Mapping[int, float]] = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 14.0625, 6: 14.0625, 7: 25.0, 8: 50.0}
_RATE_SOURCE: Final = "driver: active NVLink count; table: advertised rate of one link by chip generation"
_ACTIVE: Final = frozenset({1, 2})  # active, or asleep until there is traffic
_TO_GPU, _TO_SWITCH = 0, 2


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
    link_bytes_per_second: float | None


def join(
    gpus: Mapping[str, GpuReadings],
    ancestors: Sequence[AncestorReadings],
    host: str,
    gpu_addresses: frozenset[str],
) -> Fabric:
    """Label every pair of the GPUs (by device id) and bundle their NVLinks.

    `gpu_addresses` are the PCI addresses of all GPUs of the host, hidden ones included.
    """
    ports = {name: _ports(gpu, gpu_addresses) for name, gpu in gpus.items()}
    levels = {frozenset((row.a_index, row.b_index)): row.level for row in ancestors}
    pairs, links, warnings = [], [], _port_warnings(gpus, ports)
    for a, b in combinations(gpus, 2):
        direct = _direct(gpus[a], gpus[b], ports[a], ports[b])
        switched = min(ports[a].to_switch, ports[b].to_switch)
        level = levels.get(frozenset((gpus[a].index, gpus[b].index)))
        label = _LABELS.get(level.value) if level is not None and level.value is not None else None
        if min(direct):
            links.append(_bundle(a, b, min(direct), ports[a], ports[b]))
        if direct[0] != direct[1]:
            ends = f"GPU {gpus[a].index} and GPU {gpus[b].index}"
            warnings.append(f"{ends}: {direct[0]} and {direct[1]} active NVLinks towards each other")
        kind = f"NV{min(direct) or switched}" if min(direct) or switched else label
        if kind is None:
            code = "never asked" if level is None else level.error or f"level {level.value}"
            warnings.append(f"GPU {gpus[a].index} - GPU {gpus[b].index}: topology level unreadable ({code})")
        else:
            pairs.append(Pair(a=a, b=b, kind=kind))
    switches, up = _switch_links(ports, host)
    return Fabric(links=(*links, *up), pairs=tuple(pairs), switches=switches, warnings=tuple(warnings))


def _ports(gpu: GpuReadings, gpu_addresses: frozenset[str]) -> _Ports:
    active = [port for port in gpu.nvlinks if port.state.value in _ACTIVE]
    kinds = [_end(port, gpu_addresses) for port in active]
    rate = _link_gb(gpu, active)
    towards = [port.remote_pci.value for port, kind in zip(active, kinds, strict=True) if kind == _TO_GPU]
    return _Ports(
        to_gpu=Counter(address for address in towards if address is not None),
        to_switch=kinds.count(_TO_SWITCH),
        unknown=len([kind for kind in kinds if kind not in {_TO_GPU, _TO_SWITCH}]) + towards.count(None),
        unread=len([port for port in gpu.nvlinks if port.state.error is not None]),
        link_bytes_per_second=None if rate is None else rate * GB,
    )


def _link_gb(gpu: GpuReadings, active: Sequence[NvlinkReadings]) -> float | None:
    if gpu.compute_capability.value is not None:
        return _LINK_GB.get(gpu.compute_capability.value)
    rates = {_VERSION_GB.get(port.version.value) if port.version.value is not None else None for port in active}
    return rates.pop() if len(rates) == 1 else None


def _end(port: NvlinkReadings, gpu_addresses: frozenset[str]) -> int | None:
    # Old drivers do not tell the type of the far end: then its address, matched against the GPUs, decides.
    if port.remote_type.value is not None:
        return port.remote_type.value
    return _TO_GPU if port.remote_pci.value in gpu_addresses else None


def _direct(a: GpuReadings, b: GpuReadings, a_ports: _Ports, b_ports: _Ports) -> tuple[int, int]:
    return a_ports.to_gpu.get(b.pci.value or "?", 0), b_ports.to_gpu.get(a.pci.value or "?", 0)


def _bundle(a: str, b: str, count: int, a_ports: _Ports, b_ports: _Ports) -> Link:
    rates = (a_ports.link_bytes_per_second, b_ports.link_bytes_per_second)
    slower = min(rates[0], rates[1]) if rates[0] is not None and rates[1] is not None else None
    rate = None if slower is None else count * slower
    return Link(a=a, b=b, kind=f"NV{count}", bytes_per_second=rate, source=_RATE_SOURCE)


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
