"""What was seen of a run at one moment: frozen values that detectors judge and files keep.

A value that could not be read is None, never zero: cards refuse single counters, and CPUs have none of them. Counters
are as the driver tells them, growing since it was loaded; detectors look at their differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """A step of one rank.

    Attributes:
        time: wall clock when the step ended, seconds since the epoch.
        step: optimizer steps done.
        step_seconds: of this step, without evaluation and saving.
        busy_seconds: of it, without the waits for other ranks; None where they are not timed.
        communication_seconds: waits for gradients that nothing hid.
        prefetch_seconds: waits for streamed layers.
        tokens: of this rank in this step.
        rows: of this rank in this step.
        loss: of this rank; of all ranks where only that is known. NaN is kept.
        grad_norm: of all adapters.
        device_bytes: allocated on the device now; on CPU ranks, tensors that are known.
        device_peak_bytes: highest since the start.
        reserved_bytes: of the allocator.
        host_bytes: resident memory of the process, without files that are only mapped.
        live_bytes: by term of the estimate (`adapter`, `optimizer`, `base_shard`, ...), where it is known.
    """

    time: float
    rank: int
    host: int
    step: int
    step_seconds: float
    busy_seconds: float | None = None
    communication_seconds: float | None = None
    prefetch_seconds: float | None = None
    tokens: float | None = None
    rows: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    device_bytes: int | None = None
    device_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None
    live_bytes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that the driver reported.

    Attributes:
        time: wall clock when it was seen.
        device: UUID or PCI address; empty where it is not known.
        number: of NVIDIA's list.
        words: what the kernel log says after it, where it was read there.
    """

    time: float
    number: int
    device: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """A GPU at one moment.

    Attributes:
        device: its id in the topology of the plan (UUID where there is none).
        pcie_*: of its slot as it runs now; `max_*` what device and slot could do.
        throttle_reasons: bits as NVML defines them (0xE8 are faults).
        throttle_ns: accumulated nanoseconds of each kind, by name (`sw_power_cap`, `sw_thermal`, `hw_thermal`,
            `hw_power_brake`, `sync_boost`).
        dram_utilisation, sm_utilisation: shares of the last interval from 0 to 1 (NVML GPM), where the driver has it.
        utilisation: NVML's own share of time with a kernel running, from 0 to 1.
        nvlink_errors: sum over links and kinds.
        recovery_action: NVML field 230.
        lost: the driver no longer reaches it.
    """

    time: float
    device: str
    host: int
    memory_used_bytes: int | None = None
    utilisation: float | None = None
    sm_utilisation: float | None = None
    dram_utilisation: float | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    throttle_reasons: int | None = None
    throttle_ns: tuple[tuple[str, int], ...] = ()
    pcie_generation: int | None = None
    pcie_width: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    recovery_action: int | None = None
    lost: bool = False
    xids: tuple[Xid, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """A host at one moment; byte counters of the network grow since its start.

    Attributes:
        memory_available_bytes: that processes of this control group may still take.
        network: for each port its name, bytes sent and bytes received.
    """

    time: float
    host: int
    memory_used_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpu_utilisation: float | None = None
    network: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatReading:
    """Where a rank stood when its beat was read; see `orchestrator.monitor.beat`.

    Attributes:
        phase: `starting`, `loading`, `evaluating`, `training`, `saving` or `finishing`.
        step, micro: optimizer steps done, and micro-steps since.
        count: of beats; progress is that it changes.
        is_stopped: the kernel says that the process is stopped.
    """

    rank: int
    phase: str
    step: int = 0
    micro: int = 0
    count: int = 0
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReading:
    """A timed copy between host and device, made to see what a PCIe link really carries.

    Attributes:
        device: as in `DeviceReading`.
        bytes_per_second: of the fastest of some copies.
        pcie_replays: that the counter grew by meanwhile.
    """

    time: float
    device: str
    host: int
    bytes_per_second: float
    pcie_replays: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading:
    """What a link carried while it had enough to do.

    Attributes:
        link: its name in the plan (`host0-host1`, a device and its switch, ...).
        step: optimizer steps done; None outside of training.
    """

    time: float
    link: str
    bytes_per_second: float
    step: int | None = None
