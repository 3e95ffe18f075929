"""Which trial starts next, and on which devices or cores: pure functions of the machine and of what runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from topology.model import Device, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a trial's plan uses: ids of devices (none: no plan, or all of them) and bytes of host memory."""

    devices: tuple[str, ...] = ()
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a trial runs: ids of GPUs, or numbers of CPU cores; neither means all there is.

    `elsewhere` is a place that a scheduler chooses.
    """

    devices: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    host_bytes: int = 0
    elsewhere: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing may run beside it."""
        return not self.devices and not self.cores and not self.elsewhere

    def __str__(self) -> str:
        """For people."""
        if self.elsewhere:
            return "what SLURM gives"
        if self.devices:
            return ", ".join(self.devices)
        return f"cores {','.join(map(str, self.cores))}" if self.cores else "the whole machine"


WHOLE = Place()
ELSEWHERE = Place(elsewhere=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What trials share: at most `limit` at once, on the GPUs of one host or on groups of CPU cores.

    With GPUs their plans together take no more than `host_bytes` of its memory (None: unknown). With
    `elsewhere` a scheduler holds them back, not we.
    """

    limit: int = 1
    machine: Topology | None = None
    core_groups: tuple[tuple[int, ...], ...] = ()
    host_bytes: int | None = None
    elsewhere: bool = False


def core_groups(cores: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Divide cores into at most `count` disjoint groups of neighbours, none empty; sizes differ by one at most."""
    ordered = sorted(set(cores))
    count = max(1, min(count, len(ordered)))
    bounds = [len(ordered) * at // count for at in range(count + 1)]
    return tuple(tuple(ordered[a:b]) for a, b in pairwise(bounds))


def next_start(room: Room, running: Sequence[Place], waiting: Iterable[Need]) -> tuple[int, Place] | None:
    """Choose the first waiting trial for which there is room now, and its place; None: wait.

    Args:
        room: of this sweep.
        running: places taken.
        waiting: what each waiting trial needs, in order; read only as far as needed, since a plan takes time.
    """
    if len(running) >= room.limit or any(place.is_whole for place in running):
        return None
    for at, need in enumerate(waiting):
        place = _on_cores(room, running) if room.machine is None else _on_devices(room, room.machine, running, need)
        if place is not None:
            return at, place
        if room.machine is None:
            return None  # cores are alike: no other trial would fit either
    return None


def _on_cores(room: Room, running: Sequence[Place]) -> Place | None:
    if room.elsewhere:
        return ELSEWHERE
    if not room.core_groups:
        return None if running else WHOLE
    taken = {place.cores for place in running}
    return next((Place(cores=group) for group in room.core_groups if group not in taken), None)


def _on_devices(room: Room, machine: Topology, running: Sequence[Place], need: Need) -> Place | None:
    """The plan's own devices if they are free, else as many equal ones that lie close together."""
    wanted = need.devices
    taken = {name for place in running for name in place.devices}
    known = {device.id: device for device in machine.devices}
    if not wanted or not known.keys() >= set(wanted) or len(wanted) == len(known):
        return None if running else WHOLE
    used = need.host_bytes + sum(place.host_bytes for place in running)
    if running and room.host_bytes is not None and used > room.host_bytes:
        return None
    group = wanted
    if taken.intersection(wanted):
        kinds = {_kind(known[name]) for name in wanted}
        if len(kinds) > 1:
            return None  # a plan for unequal devices is for these alone
        free = [device for device in machine.devices if device.id not in taken and _kind(device) in kinds]
        group = _closest(len(wanted), free, machine)
    return Place(devices=group, host_bytes=need.host_bytes) if group else None


def _kind(device: Device) -> tuple[str, int | None]:
    return device.name, device.memory_bytes


def _closest(count: int, free: Sequence[Device], machine: Topology) -> tuple[str, ...]:
    """So many free devices of one group, the groups from the closest kind on (none: not so many are free).

    What a group keeps free serves a larger trial, so of several groups the fullest comes first.
    """
    island = {name: at for at, names in enumerate(machine.islands) for name in names}
    levels = (
        lambda device: (island.get(device.id), device.numa),
        lambda device: island.get(device.id),
        lambda device: (device.host, device.numa),
        lambda _device: None,
    )
    for level in levels:
        groups: dict[object, list[str]] = {}
        for device in free:
            groups.setdefault(level(device), []).append(device.id)
        enough = [names for names in groups.values() if len(names) >= count]
        if enough:
            return tuple(min(enough, key=len)[:count])
    return ()
