"""The world of CPU ranks, and how many ranks of a world the launcher can start and the batch can feed."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.config import Backend, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.planner.ranks import is_even
from orchestrator.planner.rates import CPU_LINK_RATES, cores_of
from orchestrator.planner.spreads import levelled
from orchestrator.planner.wires import Wires
from orchestrator.planner.world import World
from topology.model import Device, Host

_CPU_RANKS = 2


def cpu_world(config: RunConfig, wires: Wires, hosts: tuple[Host, ...], counts: tuple[int, ...] = ()) -> World:
    """The one world of CPU ranks: these check a run, so no smaller part is weighed against it.

    Args:
        config: how many ranks are asked for, by which launcher, for how many rows.
        wires: between the hosts.
        hosts: that may take part.
        counts: ranks of each, where the user says so; without, as nearly equal as can be.

    Raises:
        UserError: a host has no device, fewer ranks than hosts are asked for, or more than the rows feed.
    """
    if not all(host.devices for host in hosts):
        raise _error("topology", "a host without devices", "Probe the host again")
    counts, reasons, warnings = fed(config, counts or _asked_for(config, hosts))
    hosts = hosts[: len(counts)]
    slots = [host.devices for host in hosts]
    cores = [cores_of(host) for host in hosts]
    if is_even(counts):  # the least that all hosts have
        cores = [min(cores)] * len(hosts)
    shared = [
        f"{count} ranks share {own} cores of {host.name}: each step takes longer"
        for host, count, own in zip(hosts, counts, cores, strict=True)
        if count > own
    ]
    threads = [max(1, own // count) for own, count in zip(cores, counts, strict=True)]
    rates, note = _rates(wires, slots)
    return World(
        hosts=hosts,
        devices=tuple(own[at % len(own)] for own, count in zip(slots, counts, strict=True) for at in range(count)),
        threads_per_process=min(threads),
        uneven_ranks=() if is_even(counts) else counts,
        uneven_threads=() if is_even(threads) else tuple(threads),
        link_rates=rates,
        label="the CPU",
        reasons=(*reasons, "No GPU was found, so the ranks compute on CPU cores"),
        warnings=(*warnings, *(shared[:1] if is_even(counts) else shared), *note),
    )


def _asked_for(config: RunConfig, hosts: Sequence[Host]) -> tuple[int, ...]:
    """Ranks of each host: `devices` in all, or a few on each."""
    if not config.devices:
        return (max(1, min(_CPU_RANKS, *(cores_of(host) for host in hosts))),) * len(hosts)
    if config.devices < len(hosts):
        found = f"{config.devices} ranks asked for on {len(hosts)} hosts, each of which takes at least one"
        raise _error("devices", found, f"Use {len(hosts)} or more, or nodes={config.devices}")
    return levelled([config.devices] * len(hosts), config.devices)


def _rates(wires: Wires, slots: Sequence[Sequence[Device]]) -> tuple[tuple[float, float], tuple[str, ...]]:
    """What gloo was measured to reach on one host; over several no more than their network carries."""
    if len(slots) == 1:
        return CPU_LINK_RATES, ()
    routes = wires.routes([devices[:1] for devices in slots])
    if routes is None:
        return CPU_LINK_RATES, ("the network between the hosts is not known: it is taken to slow nobody",)
    reduce, gather = CPU_LINK_RATES
    network = routes.gather.bytes_per_second
    return (min(reduce, network), min(gather, network)), ()


def fed(config: RunConfig, counts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """Ranks of each host that the launcher can start and the batch can feed, with reasons and warnings.

    Raises:
        UserError: the ranks that are asked for are more than that.
    """
    ranks, rows = sum(counts), config.batch.global_
    if config.launch.backend is Backend.local and ranks > 1:
        if config.devices > 1:
            found = f"launch=local starts one rank, {ranks} are planned"
            raise _error("launch", found, "Use launch=torchrun or devices=1")
        return (1,), ("launch=local starts one rank",), ()
    if ranks <= rows:
        return counts, (), ()
    if config.devices:
        remedy = f"Use batch.global={ranks} or fewer devices"
        raise _error("batch.global", f"{rows} rows cannot feed {ranks} ranks", remedy)
    if is_even(counts):  # whole hosts first
        hosts = min(len(counts), max(1, rows // counts[0]))
        less = (min(counts[0], rows // hosts),) * hosts
    else:
        less = levelled(counts[:rows], rows)
    return less, (), (f"batch.global={rows} feeds only {sum(less)} of {ranks} devices",)


def _error(where: str, found: str, remedy: str) -> UserError:
    return UserError(Problem(where=where, found=found, remedy=remedy))
