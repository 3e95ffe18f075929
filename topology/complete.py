"""Pairs that a description leaves out although its links tell them, as hand-written ones do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from topology.grouping import connected
from topology.hosts import split_hosts
from topology.model import Pair, SwitchKind
from topology.pcie_tree import pcie_labels

if TYPE_CHECKING:
    from topology.model import Topology


def completed(topology: Topology) -> Topology:
    """Add the pairs that NVLinks or the PCIe tree tell; pairs that are there stay as they are."""
    added = [pair for one in split_hosts(topology) for pair in _missing(one)]
    return replace(topology, pairs=(*topology.pairs, *added)) if added else topology


def _missing(one: Topology) -> list[Pair]:
    gpus = [device.id for device in one.gpus]
    known = {frozenset((pair.a, pair.b)) for pair in one.pairs}
    if len(known) == len(gpus) * (len(gpus) - 1) // 2:
        return []
    nvlinks, tree = nvlink_counts(one), pcie_labels(one)
    added = []
    for a, b in combinations(gpus, 2):
        ends = frozenset((a, b))
        kind = f"NV{nvlinks[ends]}" if nvlinks.get(ends) else tree.get(ends)
        if ends not in known and kind is not None:
            added.append(Pair(a=a, b=b, kind=kind))
    return added


def nvlink_counts(one: Topology) -> dict[frozenset[str], int]:
    """Count the NVLinks between every two GPUs of a host, directly or through NVSwitches that both reach.

    GPUs of two islands, each behind an NVSwitch of its own, have none between them.
    """
    gpus = {device.id for device in one.gpus}
    switches = {switch.id for switch in one.switches if switch.kind is SwitchKind.nvswitch}
    between = [(link.a, link.b) for link in one.links if {link.a, link.b} <= switches]
    fabric = {name: at for at, group in enumerate(connected(sorted(switches), between)) for name in group}
    counts: dict[frozenset[str], int] = {}
    up: dict[str, Counter[int]] = {}
    for link in one.links:
        number = int(link.kind[2:]) if link.kind.startswith("NV") and link.kind[2:].isdecimal() else 0
        ends = {link.a, link.b}
        if ends <= gpus:
            counts[frozenset(ends)] = counts.get(frozenset(ends), 0) + number
        for end in ends & gpus if ends & switches else ():
            (other,) = ends & switches
            up.setdefault(end, Counter())[fabric[other]] += number
    for a, b in combinations(up, 2):
        # What one fabric carries is what both have on it; links to different fabrics do not meet.
        if number := (up[a] & up[b]).total():
            counts.setdefault(frozenset((a, b)), number)
    return counts
