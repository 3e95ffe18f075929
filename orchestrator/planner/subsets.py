"""Parts of a machine that a run may use: all of it, one island, one socket, one kind, half, one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.calibration_file import Calibration
from orchestrator.config import Backend, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.planner.cpu_ranks import cpu_world, fed
from orchestrator.planner.groups import Near, alike_hosts, groups_of, has_nvlink, near_of
from orchestrator.planner.picks import fastest_groups, nearest
from orchestrator.planner.ranks import is_even
from orchestrator.planner.rates import bottleneck, cores_of, link_rates
from orchestrator.planner.sizes import kinds_of_hosts, selections, taken
from orchestrator.planner.wires import measured_links, wires_of
from orchestrator.planner.world import World, device_classes
from topology.model import Device, DeviceKind, Host, Topology

_MOST_THREADS = 8
_MOST_LEVELS = 3


def choose_worlds(
    config: RunConfig, topology: Topology, calibration: Calibration | None = None, counts: tuple[int, ...] = ()
) -> tuple[World, ...]:
    """Return the worlds to choose among, the largest first.

    Where the user gives a number of devices, all have that number: on few hosts or many, of one kind or mixed. On
    CPUs there is one. Parts that no estimate could tell apart appear once. Links that a calibration has measured count
    at what was measured. `counts` are the ranks of each host, where the user says so: then there is one world.

    Raises:
        UserError: more devices, hosts or ranks were asked for than there are.
    """
    counts = counts if config.devices in {0, sum(counts)} else ()
    hosts = topology.hosts[: len(counts)] or _hosts(config, topology)
    gpus = [tuple(device for device in host.devices if device.kind is DeviceKind.gpu) for host in hosts]
    if not all(gpus):
        wires = wires_of(topology, measured_links(calibration))
        return (replace(cpu_world(config, wires, hosts, counts), calibration=calibration),)
    near = near_of(topology, measured_links(calibration))
    if counts:
        return (replace(_asked_world(config, near, hosts, gpus, counts), calibration=calibration),)
    if config.devices or config.launch.backend is Backend.local:
        sized = {_signature(world): world for world in reversed(_sized_worlds(config, near, hosts, gpus))}
        return tuple(replace(world, calibration=calibration) for world in reversed(sized.values()))
    full = _full_world(config, near, hosts, gpus)
    full = replace(full, reasons=(*_drawn_units(config, hosts), *full.reasons))
    worlds = {_signature(full): full}
    for part in _parts(near, hosts, gpus):
        if part.size <= config.batch.global_:
            worlds.setdefault(_signature(part), part)
    found = (replace(world, calibration=calibration) for world in worlds.values())
    return tuple(sorted(found, key=lambda world: -world.size))


def _hosts(config: RunConfig, topology: Topology) -> tuple[Host, ...]:
    """The hosts that may take part; a drawn unit of several hosts counts as one of `nodes`."""
    if config.topology.preset:
        hosts = topology.hosts
    elif config.nodes > len(topology.hosts):
        raise _error("nodes", f"{config.nodes} hosts asked for, {len(topology.hosts)} described", "Lower nodes")
    else:
        hosts = topology.hosts[: config.nodes]
    return hosts


def _drawn_units(config: RunConfig, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Say how many hosts `nodes` of a drawn machine of several hosts are."""
    unit = len(hosts) // config.nodes
    if config.nodes == 1 or unit == 1 or not config.topology.preset:
        return ()
    what = f"topology={config.topology.preset} is a machine of {unit} hosts, which counts as one node"
    return (f"nodes={config.nodes}: {what}, so there are {len(hosts)} hosts.",)


def _asked_world(
    config: RunConfig, near: Near, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]], counts: tuple[int, ...]
) -> World:
    counts, reasons, warnings = fed(config, counts)
    devices = taken(near, hosts, gpus, dict(enumerate(counts))).devices
    world = _gpu_world(near, hosts[: len(counts)], devices, "the GPUs asked for")
    return replace(world, reasons=reasons, warnings=(*warnings, *world.warnings))


def _sized_worlds(
    config: RunConfig, near: Near, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]]
) -> tuple[World, ...]:
    """The ways to take as many devices as the user asked for; the best one is for the search to find."""
    is_local = config.launch.backend is Backend.local
    if is_local:  # it starts its rank here
        hosts, gpus = hosts[:1], gpus[:1]
    count = config.devices or 1
    reasons: tuple[str, ...] = ("launch=local starts one rank",) if is_local else ()
    if is_local and count > 1:
        found = f"launch=local starts one rank, {count} are planned"
        raise _error("launch", found, "Use launch=torchrun or devices=1")
    if count > config.batch.global_:
        found = f"{config.batch.global_} rows cannot feed {count} ranks"
        raise _error("batch.global", found, f"Use batch.global={count} or fewer devices")
    chosen = tuple(selections(near, hosts, gpus, count))
    if not chosen:
        raise _no_such_size(count, hosts, gpus)
    reasons += _drawn_units(config, hosts)
    label = "all GPUs" if count == sum(map(len, gpus)) else "the GPUs asked for"
    worlds = []
    for one in chosen:
        named = one.label if len(chosen) > 1 else label
        world = _gpu_world(near, tuple(hosts[at] for at in one.hosts), one.devices, named)
        worlds.append(replace(world, reasons=reasons))
    return tuple(worlds)


def _no_such_size(count: int, hosts: Sequence[Host], gpus: Sequence[Sequence[Device]]) -> UserError:
    kinds = Counter((len(devices), devices[0].name) for devices in gpus)
    there = ", ".join(
        f"{found} found ({name})"
        if len(hosts) == 1
        else f"{found} ({name}) on {'one host' if n == 1 else f'{n} hosts'}"
        for (found, name), n in kinds.items()
    )
    most = sum(map(len, gpus))
    return _error("devices", f"{count} GPUs asked for, {there}", f"Use {most} or fewer, or 0 for all")


def _full_world(config: RunConfig, near: Near, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]]) -> World:
    found = tuple(len(devices) for devices in gpus)
    counts, reasons, warnings = fed(config, found)
    chosen = taken(near, hosts, gpus, dict(enumerate(counts))).devices
    label = "all GPUs" if counts == found[: len(counts)] else "the GPUs asked for"
    world = _gpu_world(near, hosts[: len(counts)], chosen, label)
    return replace(world, reasons=reasons, warnings=(*warnings, *world.warnings))


def _parts(near: Near, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]]) -> Iterator[World]:
    """Yield smaller worlds: fewer hosts, and of one host fewer devices."""
    kinds = kinds_of_hosts(gpus)
    levels = sorted({len(devices) for devices in gpus})
    for least in levels[1:][:_MOST_LEVELS]:  # without the smallest hosts
        large = {at: len(devices) for at, devices in enumerate(gpus) if len(devices) >= least}
        part = taken(near, hosts, gpus, large)
        yield _gpu_world(near, tuple(hosts[at] for at in large), part.devices, part.label)
    groups = [("all GPUs", list(range(len(hosts))))]
    if len(levels) > 1:  # equally many of each: copies of the base may lie in groups that are alike
        groups = [(f"{levels[0]} GPU{'s' if levels[0] > 1 else ''} of each of {len(hosts)} hosts", groups[0][1])]
    names = [gpus[same[0]][0].name for same in kinds.values()]
    for name, same in zip(names, kinds.values(), strict=True) if len(kinds) > 1 else ():
        own = name if names.count(name) == 1 else f"{len(gpus[same[0]])} x {name}"
        groups.append((f"the host{'s' if len(same) > 1 else ''} with {own}", same))
    groups += [(f"{len(same) // 2} of {len(hosts)} hosts", same[: len(same) // 2]) for same in kinds.values()]
    groups += [("one host", same[:1]) for same in kinds.values()]
    for label, chosen in groups:
        if chosen:
            count = min(len(gpus[at]) for at in chosen)
            yield _gpu_world(near, tuple(hosts[at] for at in chosen), [gpus[at][:count] for at in chosen], label)
    for same in kinds.values():
        host, devices = hosts[same[0]], gpus[same[0]]
        for label, some in _device_parts(near, host.name, devices):
            yield _gpu_world(near, (host,), [some], label)


def _device_parts(near: Near, host: str, devices: tuple[Device, ...]) -> Iterator[tuple[str, tuple[Device, ...]]]:
    """Yield parts of one host: an island, a socket, each kind of device, half of them, the fastest one."""
    pairs = near.pairs[host]
    for name in dict.fromkeys(device.name for device in devices):
        yield "one GPU", (next(device for device in devices if device.name == name),)
    for name in dict.fromkeys(device.name for device in devices):
        yield f"the {name}", tuple(device for device in devices if device.name == name)
    island = max(fastest_groups(devices, pairs), key=len)
    yield "one island", tuple(device for device in devices if device.id in island)
    sockets = {device.numa for device in devices}
    first = min(sockets, key=lambda numa: (-sum(d.numa == numa for d in devices), numa is None, numa or 0))
    yield "one socket", tuple(device for device in devices if device.numa == first)
    if len(devices) > 1:
        yield "half of the GPUs", nearest(near, host, devices, len(devices) // 2)


def _gpu_world(near: Near, hosts: tuple[Host, ...], gpus: Sequence[Sequence[Device]], label: str) -> World:
    devices = tuple(device for some in gpus for device in some)
    warnings: tuple[str, ...] = ()
    if len({device.name for device in devices}) > 1:
        warnings = ("The GPUs differ: rows are shared in proportion to their speed where that shortens a step",)
    counts = tuple(len(some) for some in gpus)
    threads = _threads(hosts, counts)
    pairs = [near.pairs[host.name] for host in hosts]
    alike = alike_hosts(gpus, pairs)
    # NVLink that joins hosts takes the place of their network.
    one_fabric = len(hosts) > 1 and near.is_one_fabric(devices)
    routes = near.wires.routes(gpus, one_fabric=one_fabric)
    if routes is None:
        most = max(counts)
        inside = min(bottleneck(some, own) for some, own in alike if len(some) > 1 or most == 1)
        rates = link_rates(hosts[:1] if one_fabric else hosts, most, inside)
    else:
        rates = routes.reduce.bytes_per_second, routes.gather.bytes_per_second
    return World(
        hosts=hosts,
        devices=devices,
        threads_per_process=min(threads),
        uneven_ranks=() if is_even(counts) else counts,
        uneven_threads=() if is_even(threads) else threads,
        link_rates=rates,
        routes=routes,
        groups=groups_of(gpus, pairs, near),
        nvlink=all(has_nvlink(some, own) for some, own in alike),
        one_fabric=one_fabric,
        label=label,
        warnings=warnings,
    )


def _threads(hosts: Sequence[Host], counts: Sequence[int]) -> tuple[int, ...]:
    """CPU threads of a rank of each host: one feeds the GPU's kernels, a few more serve the loader."""
    cores = [cores_of(host) for host in hosts]
    if is_even(counts):  # what every host has
        cores = [min(cores)] * len(hosts)
    return tuple(max(1, min(_MOST_THREADS, own // count)) for own, count in zip(cores, counts, strict=True))


def _signature(world: World) -> object:
    """What an estimate can see of a world."""
    kinds = device_classes(world)
    firsts = {kind: world.devices[rank] for rank, kind in reversed(list(enumerate(kinds)))}
    names = tuple((firsts[kind].name, firsts[kind].memory_bytes, kinds.count(kind)) for kind in sorted(firsts))
    return world.ranks_per_host, names, world.link_rates, world.groups, world.threads_per_process


def _error(where: str, found: str, remedy: str) -> UserError:
    return UserError(Problem(where=where, found=found, remedy=remedy))
