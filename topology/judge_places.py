"""Suspicious places: what virtual machines and containers make up, and places that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.pcie_tree import pcie_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from topology.model import Host, Pair, Topology

_GEN1: Final = 1
_MAX_NAMED: Final = 3
_MEASURE: Final = "take rates from a measurement (`trainmaster bench`) or the cloud's own topology file"


def place_warnings(one: Topology, host: Host, names: Mapping[str, str]) -> Iterator[str]:
    """Tell where the places of one host's GPUs cannot be what they seem."""
    gpus = one.gpus
    if host.is_virtual:
        yield f"a virtual machine: its PCIe labels and NUMA nodes are the hypervisor's, not the board's; {_MEASURE}"
    slow = [names[d.id] for d in gpus if d.pcie is not None and d.pcie.max_generation == _GEN1]
    if slow:
        yield f"{_listed(slow)}: PCIe at 2.5 GT/s at most, which no such card has: a virtual bridge; {_MEASURE}"
    numa = {device.id: device.numa for device in gpus}
    if (host.sockets or 1) > 1 and any(node is None for node in numa.values()):
        unknown = [names[name] for name, node in numa.items() if node is None]
        yield (
            f"{_listed(unknown)}: NUMA node unknown on {host.sockets} sockets; "
            "ranks cannot be bound to near cores (see `lspci -vv`, BIOS setting of NUMA)"
        )
    own = [pair for pair in one.pairs if pair.a in numa]
    yield from _numa_lies(own, numa, names)
    yield from _two_stories(one, own, names)


def _numa_lies(own: Sequence[Pair], numa: Mapping[str, int | None], names: Mapping[str, str]) -> Iterator[str]:
    known = [pair for pair in own if numa[pair.a] is not None and numa[pair.b] is not None and not pair.is_nvlink]
    apart = [pair for pair in known if pair.kind == "SYS" and numa[pair.a] == numa[pair.b]]
    joined = [pair for pair in known if pair.kind != "SYS" and numa[pair.a] != numa[pair.b]]
    hint = f"as virtual machines and containers tell it; {_MEASURE}"
    if apart:
        yield f"{_pairs(apart, names)}: SYS although on one NUMA node, {hint}"
    if joined:
        yield f"{_pairs(joined, names)}: nearer than SYS although on two NUMA nodes, {hint}"


def _two_stories(one: Topology, own: Sequence[Pair], names: Mapping[str, str]) -> Iterator[str]:
    labels = pcie_labels(one) if own else {}
    other = [
        pair for pair in own if not pair.is_nvlink and labels.get(frozenset((pair.a, pair.b)), pair.kind) != pair.kind
    ]
    if other:
        first = other[0]
        tree = labels[frozenset((first.a, first.b))]
        yield (
            f"{_pairs(other, names)}: {first.kind} by the driver, {tree} by the PCIe tree of the kernel; "
            f"the driver's word counts; {_MEASURE}"
        )


def _pairs(pairs: Sequence[Pair], names: Mapping[str, str]) -> str:
    return _listed([f"{names[pair.a]} - {names[pair.b]}" for pair in pairs])


def _listed(texts: Sequence[str]) -> str:
    rest = f" and {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
    return ", ".join(texts[:_MAX_NAMED]) + rest
