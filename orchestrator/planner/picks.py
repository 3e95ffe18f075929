"""Which devices of a host a part of it takes: those that gather fastest together, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.planner.groups import Near, near_of
from orchestrator.planner.rates import pair_rate
from orchestrator.planner.world import World
from topology.grouping import connected
from topology.model import Device, Pair, Topology
from topology.units import format_rate


def nearest(near: Near, host: str, devices: Sequence[Device], count: int) -> tuple[Device, ...]:
    """Take the `count` devices of one host that gather fastest together, the first of those that are equally good."""
    pairs = near.pairs[host]
    if count == len(devices) or count == 1 or len({pair.kind for pair in pairs}) == 1:
        return tuple(devices[:count])
    # Over PCIe alone nothing is faster than devices below one switch, or one processor.
    ranked = near.wires.ranked(host, count) if any(pair.is_nvlink for pair in pairs) else None
    if ranked is not None:
        return tuple(device for device in devices if device.id in ranked.best)
    groups = sorted(fastest_groups(devices, pairs), key=lambda group: -len(group))
    enough = [group for group in groups if len(group) >= count]
    names = list(min(enough, key=len) if enough else [name for group in groups for name in group])[:count]
    return tuple(device for device in devices if device.id in names)


def fastest_groups(devices: Sequence[Device], pairs: Sequence[Pair]) -> tuple[tuple[str, ...], ...]:
    """Device ids joined by the fastest kind of link among the devices."""
    ids = {device.id for device in devices}
    inside = [(pair.a, pair.b, pair_rate(pair.kind)) for pair in pairs if pair.a in ids and pair.b in ids]
    fastest = max((rate for _, _, rate in inside), default=0.0)
    return connected([d.id for d in devices], [(a, b) for a, b, rate in inside if rate >= fastest])


def pick_words(topology: Topology, world: World) -> str:
    """Say which GPUs of a host a part takes, and what others would gather at; empty where it takes whole hosts."""
    host = world.hosts[0]
    gpus = [device for device in host.devices if device.kind is world.devices[0].kind]
    if not world.is_gpu or len(world.hosts) > 1 or not 1 < world.size < len(gpus):
        return ""
    places = [str(at if device.index is None else device.index) for at, device in enumerate(gpus)]
    chosen = {device.id for device in world.devices}
    names = ", ".join(place for device, place in zip(gpus, places, strict=True) if device.id in chosen)
    near = near_of(topology)
    pairs = near.pairs[host.name]
    if pairs and len({pair.kind for pair in pairs}) == 1:
        return f"GPUs {names}: all {len(gpus)} are joined alike, so any {world.size} would do"
    ranked = near.wires.ranked(host.name, world.size)
    if ranked is None:
        return f"GPUs {names}: joined by the best links that nvidia-smi tells"
    best, worst = format_rate(ranked.best_bytes_per_second), format_rate(ranked.worst_bytes_per_second)
    if chosen != ranked.best and not ranked.is_as_good(chosen):
        return f"GPUs {names}; the {world.size} that gather fastest would reach {best} over full wires"
    if best == worst:
        return f"GPUs {names}, the nearest to each other: any {world.size} gather at up to {best} over full wires"
    return f"GPUs {names}: no other {world.size} gather faster ({best} over full wires; the worst {world.size} {worst})"
