"""What follows from a topology: its class, islands at each level, and what is suspicious, with what to do about it.

Pure. A judgement leans on facts that are there: what was not read leads to no alarm.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from topology.checks import doubles
from topology.complete import nvlink_counts
from topology.grouping import connected
from topology.hosts import split_hosts
from topology.judge_links import link_warnings
from topology.judge_places import place_warnings
from topology.model import Device, Host, SwitchKind, Topology
from topology.pcie_tree import LEVELS, tree_faults, violations

if TYPE_CHECKING:
    from collections.abc import Mapping

NVLINK: Final = "NV"
_LEVELS: Final = (NVLINK, *LEVELS)
_PAIR: Final = 2


class MachineClass(Enum):
    """How the devices of a host are joined; the values are what people read."""

    cpu = "CPU only"
    single = "one GPU"
    fabric = "NVLink fabric over several hosts"
    nvswitch = "NVSwitch"
    full_mesh = "NVLink mesh, each GPU to each"
    partial_mesh = "NVLink mesh, some GPUs without a direct link"
    pairs = "NVLink pairs"
    pcie = "PCIe only"


def machine_class(one: Topology, wide_fabrics: frozenset[str] = frozenset()) -> MachineClass:
    """Tell how the GPUs of one host are joined by the fastest links.

    Args:
        one: a topology of one host (`split_hosts` gives them).
        wide_fabrics: the NVLink partitions that join GPUs of several hosts.

    """
    gpus = one.gpus
    if not gpus:
        return MachineClass.cpu
    if any(device.fabric in wide_fabrics for device in gpus):
        return MachineClass.fabric
    if len(gpus) == 1:
        return MachineClass.single
    nvswitches = {switch.id for switch in one.switches if switch.kind is SwitchKind.nvswitch}
    if any({link.a, link.b} & nvswitches for link in one.links):
        return MachineClass.nvswitch
    return _mesh_class(one)


def _mesh_class(one: Topology) -> MachineClass:
    joined = [pair for pair in one.pairs if pair.is_nvlink]
    sizes = Counter(len(island) for island in one.islands)
    if not joined:
        return MachineClass.pcie
    if max(sizes) == _PAIR:
        return MachineClass.pairs
    full = sum(count * size * (size - 1) // 2 for size, count in sizes.items())
    return MachineClass.full_mesh if len(joined) == full else MachineClass.partial_mesh


def machine_classes(topology: Topology) -> tuple[MachineClass, ...]:
    """Tell the class of each host."""
    return tuple(kind for _, kind in _classed(topology))


def _classed(topology: Topology) -> list[tuple[Topology, MachineClass]]:
    homes: dict[str, set[str]] = {}
    for device in topology.gpus:
        if device.fabric is not None:
            homes.setdefault(device.fabric, set()).add(device.host)
    wide = frozenset(name for name, hosts in homes.items() if len(hosts) > 1)
    return [(one, machine_class(one, wide)) for one in split_hosts(topology)]


def islands_at(topology: Topology, level: str) -> tuple[tuple[str, ...], ...]:
    """Group the devices by what joins them at a level or nearer: NV, PIX, PXB, PHB, NODE or SYS.

    At NV only NVLink counts; at the other levels NVLink counts too, as the nearest of all.

    Raises:
        ValueError: the level is none of these.

    """
    if level not in _LEVELS:
        message = f"no level {level!r}; there are {', '.join(_LEVELS)}"
        raise ValueError(message)
    rank = _LEVELS.index(level)
    near = [(pair.a, pair.b) for pair in topology.pairs if _rank(pair.kind) <= rank]
    return connected([device.id for device in topology.devices], near)


def _rank(kind: str) -> int:
    return _LEVELS.index(NVLINK if kind.startswith(NVLINK) else kind)


def contradictions(one: Topology) -> tuple[str, ...]:
    """Tell what no host can have: a description that has it is damaged."""
    labels = {(pair.a, pair.b): pair.kind for pair in one.pairs}
    wrong = violations([device.id for device in one.devices], labels)
    text = "but a way round is nearer: no PCIe tree has both"
    counts = nvlink_counts(one)
    unlike = []
    for (a, b), kind in labels.items() if counts else ():
        number = counts.get(frozenset((a, b)), 0)
        if (number or kind.startswith(NVLINK)) and kind != f"NV{number}":
            unlike.append(f"{a} - {b} is {kind}, but its links are {f'NV{number}' if number else 'no NVLinks'}")
    return (
        *(f"{a} - {b} is {labels[a, b]}, {text}" for a, b in wrong),
        *unlike,
        *tree_faults(one),
        *(f"two GPUs at the PCI address {address}" for address in _shared_addresses(one)),
    )


def _shared_addresses(one: Topology) -> list[str]:
    return doubles(gpu.pci for gpu in one.gpus if gpu.pci is not None and gpu.parent is None)


def judge(topology: Topology) -> tuple[str, ...]:
    """Tell what is suspicious, each with its remedy; in the order in which it matters."""
    found: list[str] = []
    for one, kind in _classed(topology):
        (host,) = one.hosts
        names = short_names(host)
        told = [*contradictions(one)]
        if kind is not MachineClass.cpu:
            told += link_warnings(one, names, is_switched=kind is MachineClass.nvswitch)
            told += place_warnings(one, host, names)
        prefix = f"{host.name}: " if len(topology.hosts) > 1 else ""
        found += [prefix + text for text in told]
    return tuple(found)


def judged(topology: Topology) -> Topology:
    """Add what `judge` tells to the warnings, each text once."""
    return replace(topology, warnings=tuple(dict.fromkeys((*topology.warnings, *judge(topology)))))


def short_names(host: Host) -> Mapping[str, str]:
    """Name the devices of a host as nvidia-smi does, by its index where that is known: people compare with it."""
    taken: Counter[str] = Counter()
    names = {}
    for at, device in enumerate(host.devices):
        text = _short(device, at)
        if device.parent is not None:  # a slice of that card, whose own name it must not take
            text = f"{text}.{sum(1 for other in host.devices[:at] if other.parent == device.parent)}"
        names[device.id] = text if not taken[text] else f"{text}.{taken[text]}"
        taken[text] += 1
    return names


def _short(device: Device, at: int) -> str:
    return f"{device.kind.value.upper()}{at if device.index is None else device.index}"
