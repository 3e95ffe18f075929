"""Which devices take part, in which order, and what a rank can expect of its device and links."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Backend, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Machine
from topology.hardware import Peak, cpu_peak, peak
from topology.hardware import Precision as PeakPrecision
from topology.model import Device, DeviceKind, Host, Topology

_CPU_RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks' devices in rank order, on equally filled hosts."""

    topology: Topology
    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    threads_per_process: int
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def processes_per_node(self) -> int:
        """Ranks of each host."""
        return self.size // len(self.hosts)

    @property
    def is_gpu(self) -> bool:
        """Whether the ranks compute on GPUs."""
        return self.devices[0].kind is DeviceKind.gpu

    @property
    def cores_per_rank(self) -> float:
        """Cores a CPU rank can count on: below one when ranks outnumber them."""
        return min(float(self.threads_per_process), cores_of(self.hosts[0]) / self.processes_per_node)

    def host_of(self, rank: int) -> Host:
        """Host that `rank` runs on."""
        return self.hosts[rank // self.processes_per_node]

    def host_bytes_per_rank(self, rank: int) -> int:
        """Host memory that a rank may take: what is available now, shared evenly."""
        host = self.host_of(rank)
        available = host.available_memory_bytes
        return (memory_of(host) if available is None else available) // self.processes_per_node


def memory_of(part: Device | Host) -> int:
    """Memory in bytes of a device or host.

    Raises:
        UserError: the description of the machine does not tell it.
    """
    if part.memory_bytes is None:
        where = part.id if isinstance(part, Device) else part.name
        raise _user_error("topology", f"the memory of {where} is not told", "Plan with a file of `probe save=FILE`")
    return part.memory_bytes


def cores_of(host: Host) -> int:
    """Cores of a host; where they are not told, one a device, which no host has less of."""
    return host.cores or max(1, len(host.devices))


def choose_world(config: RunConfig, topology: Topology) -> World:
    """Pick the devices that take part.

    Raises:
        UserError: more devices, hosts or ranks were asked for than there are.
    """
    if config.nodes > len(topology.hosts):
        raise _user_error("nodes", f"{config.nodes} hosts asked for, {len(topology.hosts)} described", "Lower nodes")
    hosts = topology.hosts[: config.nodes]
    if config.devices % len(hosts):
        raise _user_error("devices", f"{config.devices} on {len(hosts)} hosts", "Give a multiple of nodes")
    gpus = [tuple(d for d in host.devices if d.kind is DeviceKind.gpu) for host in hosts]
    return _gpu_world(config, topology, hosts, gpus) if all(gpus) else _cpu_world(config, topology, hosts)


def _gpu_world(config: RunConfig, topology: Topology, hosts: tuple[Host, ...], gpus: list[tuple[Device, ...]]) -> World:
    found = min(len(devices) for devices in gpus)
    wanted = config.devices // len(hosts) or found
    if wanted > found:
        raise _user_error(
            "devices",
            f"{config.devices} GPUs asked for, {found} found on each host ({gpus[0][0].name})",
            f"Use devices={found * len(hosts)}, or 0 for all",
        )
    ranks, reasons, warnings = _limit(config, wanted * len(hosts), len(hosts))
    per_host = ranks // len(hosts)
    chosen = tuple(device for devices in gpus for device in devices[:per_host])
    if len({device.name for device in chosen}) > 1:
        warnings += ("The GPUs differ: rows are shared in proportion to their peak rates",)
    # A GPU rank feeds kernels from one thread; a few more serve the loader.
    threads = max(1, min(8, min(cores_of(host) for host in hosts) // per_host))
    return World(
        topology=topology, hosts=hosts, devices=chosen, threads_per_process=threads, reasons=reasons, warnings=warnings
    )


def _cpu_world(config: RunConfig, topology: Topology, hosts: tuple[Host, ...]) -> World:
    cores = min(cores_of(host) for host in hosts)
    slots = [host.devices for host in hosts]
    if not all(slots):
        raise _user_error("topology", "a host without devices", "Probe the host again")
    per_host = config.devices // len(hosts) or max(1, min(cores, _CPU_RANKS))
    ranks, reasons, warnings = _limit(config, per_host * len(hosts), len(hosts))
    per_host = ranks // len(hosts)
    if per_host > cores:
        warnings += (f"{per_host} ranks share {cores} cores of {hosts[0].name}: each step takes longer",)
    chosen = tuple(devices[rank % len(devices)] for devices in slots for rank in range(per_host))
    reasons += ("No GPU was found, so the ranks compute on CPU cores",)
    threads = max(1, cores // per_host)
    return World(
        topology=topology, hosts=hosts, devices=chosen, threads_per_process=threads, reasons=reasons, warnings=warnings
    )


def _limit(config: RunConfig, ranks: int, hosts: int) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Ranks that the launcher can start and the batch can feed, with reasons and warnings."""
    if config.launch.backend is Backend.local and ranks > 1:
        if config.devices > 1:
            raise _user_error(
                "launch", f"launch=local starts one rank, {ranks} are planned", "Use launch=torchrun or devices=1"
            )
        return 1, ("launch=local starts one rank",), ()
    if ranks <= config.batch.global_:
        return ranks, (), ()
    fed = max(1, config.batch.global_ // hosts) * hosts
    if config.devices or fed > config.batch.global_:
        raise _user_error(
            "batch.global",
            f"{config.batch.global_} rows cannot feed {ranks} ranks",
            f"Use batch.global={ranks} or fewer devices",
        )
    return fed, (), (f"batch.global={config.batch.global_} feeds only {fed} of {ranks} devices",)


def machine_of(world: World, rank: int, precision: str) -> Machine:
    """What `rank` can expect, for arithmetic in `precision`."""
    device, host = world.devices[rank], world.host_of(rank)
    known = _peak(device, host)
    flops, memory_rate = _rates(world, device, known, precision)
    alpha = c.NCCL_ALPHA_SECONDS if world.is_gpu else c.GLOO_ALPHA_SECONDS
    reduce_rate, gather_rate = _link_rates(world)
    return Machine(
        is_gpu=world.is_gpu,
        memory_bytes=memory_of(device),
        flops_per_second=flops,
        memory_bytes_per_second=memory_rate,
        cores=1.0 if world.is_gpu else world.cores_per_rank,
        link_bytes_per_second=reduce_rate,
        gather_bytes_per_second=gather_rate,
        link_alpha_seconds=alpha.value,
        h2d_bytes_per_second=c.H2D_BYTES.value,
        known=known is not None,
    )


def _peak(device: Device, host: Host) -> Peak | None:
    if device.kind is DeviceKind.gpu:
        return peak(device.name, device.memory_bytes)
    return cpu_peak(device, host.clock_hz, host.threads_per_core)


def _rates(world: World, device: Device, known: Peak | None, precision: str) -> tuple[float, float]:
    """FLOP/s and memory bytes/s of one rank."""
    if known is None:
        if world.is_gpu:
            return c.FALLBACK_FLOPS_GPU.value, c.FALLBACK_BYTES_GPU.value
        return c.FALLBACK_FLOPS_CORE.value * world.cores_per_rank, c.FALLBACK_BYTES_CORE.value * world.cores_per_rank
    rates = known.flops_per_second
    # A device without a unit for the precision computes it at the fp32 rate, at best.
    flops = rates.get(PeakPrecision(precision)) or rates.get(PeakPrecision.fp32) or c.FALLBACK_FLOPS_GPU.value
    if world.is_gpu:
        return flops, known.memory_bytes_per_second
    # Threads of one rank wait for each other at every small product.
    extra = max(0.0, world.cores_per_rank - 1) * c.EXTRA_THREAD_GAIN_CPU.value
    share = (min(1.0, world.cores_per_rank) + extra) / device.cores
    return flops * share, known.memory_bytes_per_second * share


def _link_rates(world: World) -> tuple[float, float]:
    """All-reduce and all-gather bytes per second over the slowest link between the ranks."""
    if not world.is_gpu:
        return c.GLOO_ALL_REDUCE_BYTES.value, c.GLOO_ALL_GATHER_BYTES.value
    efficiency = c.LINK_EFFICIENCY.value
    ids = {device.id for device in world.devices}
    kinds = [pair.kind for pair in world.topology.pairs if pair.a in ids and pair.b in ids]
    rates = [_pair_rate(kind) for kind in kinds] or [_pair_rate("SYS")]
    if len(world.hosts) > 1:
        nics = [nic.bytes_per_second for host in world.hosts for nic in host.nics if nic.bytes_per_second]
        rates.append(min(nics, default=c.NETWORK_BYTES.value))
    slowest = min(rates) * efficiency
    return slowest, slowest


def _pair_rate(kind: str) -> float:
    lanes = int(kind[2:]) if kind.startswith("NV") else 1
    return dict(c.PAIR_BYTES)["NV" if kind.startswith("NV") else kind] * lanes


def _user_error(where: str, found: str, remedy: str) -> UserError:
    return UserError(Problem(where=where, found=found, remedy=remedy))
