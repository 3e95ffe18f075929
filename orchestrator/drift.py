"""Whether the nodes of a batch job are the machine that was planned for, in what a plan stands on.

A plan may be made on a login node, for a machine that is drawn, assumed or only partly given to the job. So names,
addresses and parts that the plan leaves alone do not count: the devices that ranks run on do, their memory, how they
are joined, and what the ranks need of the host. Where one side does not know a thing, it is not held against the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.planner.plan import Plan
from topology.hosts import split_hosts
from topology.model import Device, DeviceKind, Topology
from topology.units import format_bytes, format_rate

__all__ = ["Drift", "Place", "compare", "places_of_nodes", "places_of_plan"]

# Drivers and kernels keep a different part of the memory to themselves; another size of card is further off.
_SAME_MEMORY = 0.05
_SAME_RATE = 0.1
# What a change within one of these does to rates is less than what is known of them.
_WAYS = {"PIX": "one PCIe switch", "PXB": "one PCIe switch", "PHB": "one socket", "NODE": "one socket"}
_ACROSS = "two sockets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a plan stands on of one host, or what a node has.

    Attributes:
        name: of the host or node.
        devices: GPUs by index, or CPU slots.
        ways: of each two of them how they are joined (the two by their places in `devices`); those that are known.
        ranks: how many run there; of a node, how many could.
        host_bytes: memory that the ranks need of the host; of a node, what it gives. None: not known.
        cores: the same of cores, on CPUs.
        port_bytes_per_second: of the fastest network port; None: not known, or no other host.
    """

    name: str
    devices: tuple[Device, ...]
    ways: tuple[tuple[int, int, str], ...]
    ranks: int
    host_bytes: int | None
    cores: int | None
    port_bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What came of a comparison.

    Attributes:
        nodes: for each host of the plan, in the order of its ranks, the node that stands for it.
        differences: in words; empty where the plan holds.
        is_other_kind: whether GPUs are missing where the plan has them, or the other way round: no new plan in the same
            job can mend that.
    """

    nodes: tuple[str, ...]
    differences: tuple[str, ...]
    is_other_kind: bool = False


def places_of_plan(plan: Plan, topology: Topology) -> tuple[Place, ...]:
    """What the plan stands on, host by host in the order of its ranks; `topology` is the one it was made for."""
    strategy, memory = plan.chosen.strategy, plan.chosen.estimate.memory
    home = {device.id: device.host for device in topology.devices}
    used: dict[str, list[str]] = {}
    for name in strategy.device_ids:
        used.setdefault(home[name], []).append(name)
    parts = {one.hosts[0].name: one for one in split_hosts(topology)}
    nodes = plan.run_config.launch.nodes if strategy.num_nodes == 1 else 0
    found = []
    for host, ids in used.items():
        # On CPUs one host may be planned for and its ranks be spread over several nodes.
        ranks = -(-len(ids) // nodes) if nodes > 1 else len(ids)
        place = _place(parts[host], ids, is_one_of_many=len(used) > 1)
        cores = strategy.threads_per_process * ranks
        found += [replace(place, ranks=ranks, host_bytes=memory.host_bytes * ranks, cores=cores)] * max(1, nodes)
    return tuple(found)


def places_of_nodes(topology: Topology, nodes: Sequence[str]) -> tuple[Place, ...]:
    """What the nodes have, in the order in which SLURM counts them."""
    parts = {one.hosts[0].name: one for one in split_hosts(topology)}
    found = []
    for name in nodes:
        one = parts[name]
        kind = DeviceKind.gpu if one.gpus else DeviceKind.cpu
        ids = [device.id for device in one.devices if device.kind is kind]
        place = _place(one, ids, is_one_of_many=len(nodes) > 1)
        host = one.hosts[0]
        # SLURM hands out hardware threads, and a plan asks it for as many as it has threads.
        cores = None if host.cores is None else host.cores * host.threads_per_core
        found.append(replace(place, host_bytes=host.memory_bytes, cores=cores))
    return tuple(found)


def compare(planned: Sequence[Place], found: Sequence[Place]) -> Drift:
    """Give each host of the plan a node that can stand for it, and say what keeps the others from it."""
    free, nodes = list(found), []
    for at, place in enumerate(planned):
        # Its own number first: then equal nodes keep their order.
        own = [node for node in found[at : at + 1] if node in free]
        fit = next((node for node in (*own, *free) if not any(_differences(place, node))), None)
        nodes.append("" if fit is None else fit.name)
        if fit is not None:
            free.remove(fit)
    if all(nodes):
        return Drift(nodes=tuple(nodes), differences=())
    told = [] if len(found) >= len(planned) else [f"{_count(len(found), 'node')}, the plan is for {len(planned)}"]
    rest = [place for place, node in zip(planned, nodes, strict=True) if not node]
    for place, node in zip(rest, free, strict=False):
        told += [f"{node.name}: {text}" for text in _differences(place, node)]
    kinds = [{device.kind for place in side for device in place.devices} for side in (planned, found)]
    return Drift(nodes=(), differences=tuple(told), is_other_kind=kinds[0].isdisjoint(kinds[1]))


def _place(one: Topology, ids: Sequence[str], *, is_one_of_many: bool) -> Place:
    by_id = {device.id: device for device in one.devices}
    numbers: dict[str, int] = {}
    for name in ids:
        numbers.setdefault(name, len(numbers))
    between = [pair for pair in one.pairs if pair.a in numbers and pair.b in numbers]
    ways = [
        (numbers[pair.a], numbers[pair.b], pair.kind if pair.is_nvlink else _WAYS.get(pair.kind, _ACROSS))
        for pair in between
    ]
    rates = [nic.bytes_per_second for nic in one.nics if nic.bytes_per_second]
    return Place(
        name=one.hosts[0].name,
        devices=tuple(by_id[name] for name in numbers),
        ways=tuple(sorted(ways)),
        ranks=len(ids),
        host_bytes=None,
        cores=None,
        port_bytes_per_second=max(rates, default=None) if is_one_of_many else None,
    )


def _differences(planned: Place, node: Place) -> Iterator[str]:
    """Say what the node lacks of what was planned for, or has otherwise."""
    is_gpu = planned.devices[0].kind is DeviceKind.gpu
    count = len(planned.devices) if is_gpu else 1  # CPU slots are shares of one machine
    mine, theirs = planned.devices[:count], node.devices[:count]
    if _names(mine) != _names(theirs):
        yield f"{_listed(node.devices if is_gpu else theirs)}, the plan is for {_listed(mine)}"
    elif is_gpu:
        yield from _memory_differences(mine, theirs)
        yield from _way_differences(planned, node, count)
    if planned.host_bytes and node.host_bytes is not None and node.host_bytes < planned.host_bytes:
        yield f"{format_bytes(node.host_bytes)} of host memory, the plan needs {format_bytes(planned.host_bytes)}"
    if not is_gpu and node.cores is not None and planned.cores and node.cores < planned.cores:
        yield f"{_count(node.cores, 'core')}, the plan needs {planned.cores}"
    one, other = planned.port_bytes_per_second, node.port_bytes_per_second
    if one is not None and other is not None and abs(one - other) > _SAME_RATE * one:
        yield f"a network port of {format_rate(other)}, the plan is for {format_rate(one)}"


def _memory_differences(mine: Sequence[Device], theirs: Sequence[Device]) -> Iterator[str]:
    sizes = [sorted(device.memory_bytes for device in side if device.memory_bytes) for side in (mine, theirs)]
    if len(sizes[0]) != len(sizes[1]):  # not known of all
        return
    for one, other in zip(*sizes, strict=True):
        if abs(one - other) > _SAME_MEMORY * one:
            yield f"{mine[0].name} with {format_bytes(other)}, the plan is for {format_bytes(one)}"
            return


def _way_differences(planned: Place, node: Place, count: int) -> Iterator[str]:
    found = [way for a, b, way in node.ways if max(a, b) < count]
    mine, theirs = Counter(way for _, _, way in planned.ways), Counter(found)
    if mine and theirs and mine != theirs:
        yield f"GPUs joined by {_counted(theirs)}, the plan is for {_counted(mine)}"


def _names(devices: Sequence[Device]) -> Counter[tuple[DeviceKind, str]]:
    return Counter((device.kind, device.name) for device in devices)


def _listed(devices: Sequence[Device]) -> str:
    counts = Counter(device.name for device in devices)
    return ", ".join(f"{number} x {name}" for name, number in counts.items()) or "no device"


def _counted(ways: Counter[str]) -> str:
    return ", ".join(f"{way} ({number} pairs)" if number > 1 else way for way, number in sorted(ways.items()))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
