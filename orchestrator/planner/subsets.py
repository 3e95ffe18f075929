"""Parts of a machine that a run may use: all of it, one island, one socket, one kind, half, one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.calibration_file import Calibration
from orchestrator.config import Backend, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.planner.groups import Near, alike_hosts, groups_of, has_nvlink, near_of
from orchestrator.planner.picks import fastest_groups, nearest
from orchestrator.planner.rates import CPU_LINK_RATES, bottleneck, cores_of, link_rates
from orchestrator.planner.sizes import kinds_of_hosts, selections, sizes_of
from orchestrator.planner.wires import Wires, measured_links, wires_of
from orchestrator.planner.world import World, device_classes
from topology.model import Device, DeviceKind, Host, Topology

_CPU_RANKS = 2
_MOST_THREADS = 8
_MOST_SIZES = 24  # a message lists


def choose_worlds(config: RunConfig, topology: Topology, calibration: Calibration | None = None) -> tuple[World, ...]:
    """Return the worlds to choose among, the largest first.

    Where the user gives a number of devices, all have that number: on few hosts or many, of one kind or mixed. On
    CPUs there is one. Parts that no estimate could tell apart appear once. Links that a calibration has measured count
    at what was measured.

    Raises:
        UserError: more devices, hosts or ranks were asked for than there are.
    """
    hosts = _hosts(config, topology)
    gpus = [tuple(device for device in host.devices if device.kind is DeviceKind.gpu) for host in hosts]
    if not all(gpus):
        wires = wires_of(topology, measured_links(calibration))
        return (replace(_cpu_world(config, wires, hosts), calibration=calibration),)
    near = near_of(topology, measured_links(calibration))
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
    sizes = sizes_of(gpus)
    near = {max(x for x in sizes if x < count), *(x for x in sizes[::-1] if x > count)}
    pick = " or ".join(str(x) for x in sorted(near, key=lambda x: abs(x - count))[:2])
    why = "" if count > max(sizes) or len(hosts) == 1 else "; hosts take equally many ranks each"
    shown = ", ".join(map(str, sizes)) if len(sizes) <= _MOST_SIZES else f"up to {max(sizes)}"
    return _error("devices", f"{count} GPUs asked for, {there}{why}", f"Use {pick} (of {shown}), or 0 for all")


def _full_world(config: RunConfig, near: Near, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]]) -> World:
    found = min(len(devices) for devices in gpus)
    num_hosts, per_host, reasons, warnings = _limit(config, len(hosts), found)
    chosen = [
        nearest(near, host.name, devices, per_host) for host, devices in zip(hosts[:num_hosts], gpus, strict=False)
    ]
    world = _gpu_world(near, hosts[:num_hosts], chosen, "all GPUs" if per_host == found else "the GPUs asked for")
    return replace(world, reasons=reasons, warnings=(*warnings, *world.warnings))


def _parts(near: Near, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]]) -> Iterator[World]:
    """Yield smaller worlds: fewer hosts, and of one host fewer devices."""
    kinds = kinds_of_hosts(gpus)
    groups = [("all GPUs", list(range(len(hosts))))]
    hosts_of_kind = [(f"the host{'s' if len(x) > 1 else ''} with {gpus[x[0]][0].name}", x) for x in kinds.values()]
    groups += hosts_of_kind if len(kinds) > 1 else []
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
    # A GPU rank feeds kernels from one thread; a few more serve the loader.
    threads = max(1, min(_MOST_THREADS, min(cores_of(host) for host in hosts) // len(gpus[0])))
    pairs = [near.pairs[host.name] for host in hosts]
    alike = alike_hosts(gpus, pairs)
    # NVLink that joins hosts takes the place of their network.
    one_fabric = len(hosts) > 1 and near.is_one_fabric(devices)
    routes = near.wires.routes(gpus, one_fabric=one_fabric)
    if routes is None:
        inside = min(bottleneck(some, own) for some, own in alike)
        rates = link_rates(hosts[:1] if one_fabric else hosts, len(gpus[0]), inside)
    else:
        rates = routes.reduce.bytes_per_second, routes.gather.bytes_per_second
    return World(
        hosts=hosts,
        devices=devices,
        threads_per_process=threads,
        link_rates=rates,
        routes=routes,
        groups=groups_of(gpus, pairs, near),
        nvlink=all(has_nvlink(some, own) for some, own in alike),
        one_fabric=one_fabric,
        label=label,
        warnings=warnings,
    )


def _cpu_world(config: RunConfig, wires: Wires, hosts: tuple[Host, ...]) -> World:
    """The one world of CPU ranks: these check a run, so no smaller part is weighed against it."""
    cores = min(cores_of(host) for host in hosts)
    slots = [host.devices for host in hosts]
    if not all(slots):
        raise _error("topology", "a host without devices", "Probe the host again")
    if config.devices % len(hosts):
        found = f"{config.devices} ranks asked for on {len(hosts)} hosts, which take equally many each"
        raise _error("devices", found, f"Give a multiple of {len(hosts)}")
    wanted = config.devices // len(hosts) or max(1, min(cores, _CPU_RANKS))
    num_hosts, per_host, reasons, warnings = _limit(config, len(hosts), wanted)
    if per_host > cores:
        warnings += (f"{per_host} ranks share {cores} cores of {hosts[0].name}: each step takes longer",)
    chosen = tuple(devices[rank % len(devices)] for devices in slots[:num_hosts] for rank in range(per_host))
    return World(
        hosts=hosts[:num_hosts],
        devices=chosen,
        threads_per_process=max(1, cores // per_host),
        link_rates=_cpu_rates(wires, slots[:num_hosts]),
        label="the CPU",
        reasons=(*reasons, "No GPU was found, so the ranks compute on CPU cores"),
        warnings=warnings,
    )


def _cpu_rates(wires: Wires, slots: Sequence[Sequence[Device]]) -> tuple[float, float]:
    """What gloo was measured to reach on one host; over several no more than their network carries."""
    routes = wires.routes([devices[:1] for devices in slots]) if len(slots) > 1 else None
    if routes is None:
        return CPU_LINK_RATES
    reduce, gather = CPU_LINK_RATES
    network = routes.gather.bytes_per_second
    return min(reduce, network), min(gather, network)


def _limit(config: RunConfig, hosts: int, per_host: int) -> tuple[int, int, tuple[str, ...], tuple[str, ...]]:
    """Hosts, and ranks of each, that the launcher can start and the batch can feed; with reasons and warnings."""
    ranks, rows = hosts * per_host, config.batch.global_
    if config.launch.backend is Backend.local and ranks > 1:
        if config.devices > 1:
            raise _error(
                "launch", f"launch=local starts one rank, {ranks} are planned", "Use launch=torchrun or devices=1"
            )
        return 1, 1, ("launch=local starts one rank",), ()
    if ranks <= rows:
        return hosts, per_host, (), ()
    if config.devices:
        remedy = f"Use batch.global={ranks} or fewer devices"
        raise _error("batch.global", f"{rows} rows cannot feed {ranks} ranks", remedy)
    fed_hosts = min(hosts, max(1, rows // per_host))
    fed = min(per_host, rows // fed_hosts)
    return fed_hosts, fed, (), (f"batch.global={rows} feeds only {fed_hosts * fed} of {ranks} devices",)


def _signature(world: World) -> object:
    """What an estimate can see of a world."""
    kinds = device_classes(world)
    firsts = {kind: world.devices[rank] for rank, kind in reversed(list(enumerate(kinds)))}
    names = tuple((firsts[kind].name, firsts[kind].memory_bytes, kinds.count(kind)) for kind in sorted(firsts))
    return len(world.hosts), names, world.link_rates, world.groups, world.threads_per_process


def _error(where: str, found: str, remedy: str) -> UserError:
    return UserError(Problem(where=where, found=found, remedy=remedy))
