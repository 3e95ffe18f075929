"""What a rank can expect of its device and of the links to the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.calibration_file import Calibration
from orchestrator.errors import Problem, UserError
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Machine
from orchestrator.planner.measured import thread_share, with_calibration
from topology.grouping import connected
from topology.hardware import Peak, cpu_peak, peak
from topology.hardware import Precision as PeakPrecision
from topology.model import Device, DeviceKind, Host, Pair

CPU_LINK_RATES: Final = (c.GLOO_ALL_REDUCE_BYTES.value, c.GLOO_ALL_GATHER_BYTES.value)


def memory_of(part: Device | Host) -> int:
    """Memory in bytes of a device or host.

    Raises:
        UserError: the description of the machine does not tell it.
    """
    if part.memory_bytes is None:
        where = part.id if isinstance(part, Device) else part.name
        remedy = "Plan with a file of `probe save=FILE`"
        raise UserError(Problem(where="topology", found=f"the memory of {where} is not told", remedy=remedy))
    return part.memory_bytes


def cores_of(host: Host) -> int:
    """Cores of a host; where they are not told, one a device, which no host has less of."""
    return host.cores or max(1, len(host.devices))


def host_share_bytes(host: Host, ranks: int) -> int:
    """Host memory that each of `ranks` may take: what is available now, shared evenly."""
    available = host.available_memory_bytes
    return (memory_of(host) if available is None else available) // ranks


def at_speed(machine: Machine, speed: float) -> Machine:
    """The machine where all that it computes takes 1/`speed` of the time; its links stay."""
    if speed == 1:
        return machine
    measured = machine.measured
    if measured is not None:
        memory, passes = measured.memory_bytes_per_second, measured.elementwise_bytes_per_second
        measured = replace(
            measured,
            products=tuple((width, rate * speed) for width, rate in measured.products),
            unpacked=tuple((width, rate * speed) for width, rate in measured.unpacked),
            memory_bytes_per_second=None if memory is None else memory * speed,
            elementwise_bytes_per_second=None if passes is None else passes * speed,
        )
    return replace(
        machine,
        flops_per_second=machine.flops_per_second * speed,
        memory_bytes_per_second=machine.memory_bytes_per_second * speed,
        cores=machine.cores if machine.is_gpu else machine.cores * speed,
        measured=measured,
    )


def machine_of(
    device: Device,
    host: Host,
    precision: str,
    *,
    cores: float,
    link_rates: tuple[float, float],
    calibration: Calibration | None = None,
) -> Machine:
    """What a rank on `device` can expect, for arithmetic in `precision`.

    Args:
        device: of the rank.
        host: of the device.
        precision: of the passes.
        cores: that a CPU rank can count on.
        link_rates: of all-reduce and all-gather, in bytes per second.
        calibration: what was measured, for this kind of device or another.
    """
    is_gpu = device.kind is DeviceKind.gpu
    known = peak(device.name, device.memory_bytes) if is_gpu else cpu_peak(device, host.clock_hz, host.threads_per_core)
    flops, memory_rate = _rates(device, known, precision, cores)
    alpha = c.NCCL_ALPHA_SECONDS if is_gpu else c.GLOO_ALPHA_SECONDS
    reduce_rate, gather_rate = link_rates
    machine = Machine(
        is_gpu=is_gpu,
        memory_bytes=memory_of(device),
        flops_per_second=flops,
        memory_bytes_per_second=memory_rate,
        cores=1.0 if is_gpu else cores,
        link_bytes_per_second=reduce_rate,
        gather_bytes_per_second=gather_rate,
        link_alpha_seconds=alpha.value,
        h2d_bytes_per_second=c.H2D_BYTES.value,
        known=known is not None,
        device_name=device.name,
    )
    return with_calibration(machine, calibration, precision)


def _rates(device: Device, known: Peak | None, precision: str, cores: float) -> tuple[float, float]:
    """FLOP/s and memory bytes/s of one rank."""
    is_gpu = device.kind is DeviceKind.gpu
    if known is None:
        if is_gpu:
            return c.FALLBACK_FLOPS_GPU.value, c.FALLBACK_BYTES_GPU.value
        return c.FALLBACK_FLOPS_CORE.value * cores, c.FALLBACK_BYTES_CORE.value * cores
    rates = known.flops_per_second
    # A device without a unit for the precision computes it at the fp32 rate, at best.
    flops = rates.get(PeakPrecision(precision)) or rates.get(PeakPrecision.fp32) or c.FALLBACK_FLOPS_GPU.value
    if is_gpu:
        return flops, known.memory_bytes_per_second
    share = thread_share(cores) / device.cores
    return flops * share, known.memory_bytes_per_second * share


def link_rates(hosts: Sequence[Host], per_host: int, inside: float) -> tuple[float, float]:
    """All-reduce and all-gather bytes per second of GPUs over the slowest link that a ring needs.

    Args:
        hosts: that take part.
        per_host: devices of each.
        inside: bytes per second of the slowest link needed within a host.
    """
    rates = [inside] if per_host > 1 or len(hosts) == 1 else []
    if len(hosts) > 1:
        rates.append(min(_network_rate(host) for host in hosts))
    slowest = min(rates) * c.LINK_EFFICIENCY.value
    return slowest, slowest


def bottleneck(devices: Sequence[Device], pairs: Iterable[Pair]) -> float:
    """Slowest link of the best way to join devices of one host, in bytes per second.

    A ring chooses its links, so a slow pair matters only where nothing faster leads around it.
    """
    ids = {device.id for device in devices}
    inside = [(pair.a, pair.b, pair_rate(pair.kind)) for pair in pairs if pair.a in ids and pair.b in ids]
    for least in sorted({rate for _, _, rate in inside}, reverse=True):
        if len(connected(ids, [(a, b) for a, b, rate in inside if rate >= least])) == 1:
            return least
    return pair_rate("SYS")


def pair_rate(kind: str) -> float:
    """Bytes per second of a pair by nvidia-smi's label."""
    lanes = int(kind[2:]) if kind.startswith("NV") else 1
    return dict(c.PAIR_BYTES)["NV" if kind.startswith("NV") else kind] * lanes


def _network_rate(host: Host) -> float:
    """Bytes per second out of a host: rings run over all of its fastest ports at once."""
    rates = [nic.bytes_per_second for nic in host.nics if nic.bytes_per_second]
    fastest = max(rates, default=c.NETWORK_BYTES.value)
    return fastest * max(1, rates.count(fastest))
