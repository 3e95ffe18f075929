"""The devices that take part, in rank order, and the classes of ranks that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.calibration_file import Calibration
from orchestrator.estimate.setting import Machine
from orchestrator.planner.groups import Group
from orchestrator.planner.latency import gather_latency_seconds, reduce_latency_seconds
from orchestrator.planner.ranks import host_of_rank, hosts_of_ranks, is_even
from orchestrator.planner.rates import at_speed, cores_of, host_share_bytes, machine_of
from orchestrator.planner.routes import Routes
from orchestrator.planner.setbacks import Ceiling
from topology.model import Device, DeviceKind, Host


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks' devices in rank order, host by host.

    Attributes:
        hosts: in the order of the ranks.
        devices: one per rank (CPU slots may repeat).
        threads_per_process: CPU threads of a rank; the fewest of one where hosts differ.
        uneven_ranks: of each host, where they differ; empty elsewhere (`ranks_per_host` tells both).
        uneven_threads: of a rank of each host, where these differ for that; empty elsewhere.
        link_rates: bytes per second of all-reduce and all-gather between the ranks.
        routes: how these were reckoned; None where they are from labels, or measured on CPUs.
        groups: ranks that faster links join, for a second copy of the base; the smallest first.
        nvlink: NVLink joins the devices of each host.
        one_fabric: NVLink joins them across hosts, too.
        label: which part of the machine this is.
        reasons: why it is no larger.
        warnings: what the user should know of it.
        calibration: what was measured on such devices; None for tables.
        budgets_bytes: device memory that each rank may fill; empty for what planning rules allow.
        weights: of the ranks' parts of layers that stream; empty for as equal as can be.
        speeds: of each rank, by what the description says; empty for as described.
        ceilings: of predicted memory, where a plan has run out of it.
    """

    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    threads_per_process: int
    link_rates: tuple[float, float]
    routes: Routes | None = None
    groups: tuple[Group, ...] = ()
    nvlink: bool = False
    one_fabric: bool = False
    label: str = "all devices"
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    calibration: Calibration | None = None
    budgets_bytes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    speeds: tuple[float, ...] = ()
    uneven_ranks: tuple[int, ...] = ()
    uneven_threads: tuple[int, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def processes_per_node(self) -> int:
        """Ranks of each host, or the most of one."""
        return max(self.uneven_ranks) if self.uneven_ranks else self.size // len(self.hosts)

    @property
    def ranks_per_host(self) -> tuple[int, ...]:
        """Ranks of each host, in their order."""
        return self.uneven_ranks or (self.size // len(self.hosts),) * len(self.hosts)

    @property
    def is_even(self) -> bool:
        """Whether all hosts have equally many ranks."""
        return not self.uneven_ranks or is_even(self.uneven_ranks)

    @property
    def is_gpu(self) -> bool:
        """Whether the ranks compute on GPUs."""
        return self.devices[0].kind is DeviceKind.gpu

    def cores_per_rank(self, rank: int) -> float:
        """Cores a CPU rank can count on: below one when the ranks of a host outnumber them."""
        if not self.uneven_ranks:
            return min(float(self.threads_per_process), cores_of(self.hosts[0]) / self.processes_per_node)
        at = host_of_rank(self.uneven_ranks, rank)
        threads = self.uneven_threads[at] if self.uneven_threads else self.threads_per_process
        return min(float(threads), cores_of(self.hosts[at]) / self.uneven_ranks[at])

    def ranks_beside(self, rank: int) -> int:
        """Ranks of the host that `rank` runs on, with itself."""
        return (
            self.uneven_ranks[host_of_rank(self.uneven_ranks, rank)] if self.uneven_ranks else self.processes_per_node
        )

    def host_of(self, rank: int) -> Host:
        """Host that `rank` runs on."""
        return self.hosts[
            host_of_rank(self.uneven_ranks, rank) if self.uneven_ranks else rank // self.processes_per_node
        ]

    def host_bytes_per_rank(self, rank: int) -> int:
        """Host memory that a rank may take: what is available now, shared evenly."""
        return host_share_bytes(self.host_of(rank), self.ranks_beside(rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks with the same device, host and rows: what holds for the first of them holds for all.

    Attributes:
        rank: the first of them.
        count: how many they are.
        rows: of each, per optimizer step.
        machine: what each can expect.
        host_bytes: host memory that each may take.
        device_name: for messages.
        budget_bytes: device memory that each may fill, where the user limits it.
        weight: of their parts of layers that stream.
        ceilings: of predicted memory, where a plan has run out of it.
    """

    rank: int
    count: int
    rows: int
    machine: Machine
    host_bytes: int
    device_name: str
    budget_bytes: int | None = None
    weight: float = 1.0
    ceilings: tuple[Ceiling, ...] = ()


def device_classes(world: World) -> tuple[int, ...]:
    """Number each rank's kind of device and host, in order of appearance; O(ranks)."""
    kinds: dict[object, int] = {}
    counts = world.ranks_per_host
    hosts = [(_host_key(host), count) for host, count in zip(world.hosts, counts, strict=True)]
    return tuple(
        kinds.setdefault((_device_key(device), hosts[at], *_wishes(world, rank)), len(kinds))
        for rank, (device, at) in enumerate(zip(world.devices, hosts_of_ranks(counts), strict=True))
    )


def machines(world: World, precision: str) -> tuple[Machine, ...]:
    """What each class of `device_classes` can expect."""
    return tuple(
        _with_latency(
            world,
            at_speed(
                machine_of(
                    world.devices[rank],
                    world.host_of(rank),
                    precision,
                    cores=world.cores_per_rank(rank),
                    link_rates=world.link_rates,
                    calibration=world.calibration,
                ),
                world.speeds[rank] if world.speeds else 1.0,
            ),
        )
        for rank in _firsts(device_classes(world))
    )


def _with_latency(world: World, machine: Machine) -> Machine:
    """Give GPU ranks the latencies of their number; what was measured on CPU ranks stays."""
    if not world.is_gpu or world.size == 1:
        return machine
    hosts = 1 if world.one_fabric else len(world.hosts)
    most = world.size if world.one_fabric else world.processes_per_node
    reduce = reduce_latency_seconds(world.size, hosts, nvlink=world.nvlink, most=most)
    return replace(
        machine,
        # Estimates count an all-reduce's latency once a rank, there and back.
        link_alpha_seconds=reduce / (2 * (world.size - 1)),
        gather_alpha_seconds=gather_latency_seconds(world.size, hosts, nvlink=world.nvlink),
    )


def rank_classes(
    world: World, kinds: Sequence[int], found: Sequence[Machine], rows: Sequence[int]
) -> tuple[RankClass, ...]:
    """Put ranks of equal kind and rows together, in order of their first rank.

    Args:
        world: the ranks.
        kinds: of each rank (`device_classes`).
        found: of each kind (`machines`).
        rows: of each rank.
    """
    counts: dict[tuple[int, int], list[int]] = {}
    for rank, key in enumerate(zip(kinds, rows, strict=True)):
        counts.setdefault(key, [rank, 0])[1] += 1
    return tuple(
        RankClass(
            rank=rank,
            count=count,
            rows=share,
            machine=found[kind],
            host_bytes=world.host_bytes_per_rank(rank),
            device_name=world.devices[rank].name,
            budget_bytes=world.budgets_bytes[rank] if world.budgets_bytes else None,
            weight=world.weights[rank] if world.weights else 1.0,
            ceilings=tuple(one for one in world.ceilings if one.device_name == world.devices[rank].name),
        )
        for (kind, share), (rank, count) in counts.items()
    )


def _firsts(kinds: Sequence[int]) -> list[int]:
    first: dict[int, int] = {}
    for rank, kind in enumerate(kinds):
        first.setdefault(kind, rank)
    return list(first.values())


def _wishes(world: World, rank: int) -> tuple[float, ...]:
    """What the user said of a rank."""
    lists = (world.budgets_bytes, world.weights, world.speeds)
    return tuple(value for given in lists for value in given[rank : rank + 1])


def _device_key(device: Device) -> object:
    return device.name, device.memory_bytes, device.compute_capability, device.cores


def _host_key(host: Host) -> object:
    return host.memory_bytes, host.available_memory_bytes, host.cores, host.clock_hz, host.threads_per_core
