"""Device readings of a GPU that fails, for the monitor of a run: what NVML would say, second by second.

Numbers of XIDs, bits and fields are NVML's own; a reading is one that the monitor could have taken.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.config import Fault
from orchestrator.monitor.readings import DeviceReading, Xid
from orchestrator.monitor.store import line_of

FILE: Final = "faults/readings.jsonl"  # the monitor of a run that has a fault follows it
_HEALTHY: Final = 5  # readings before the fault
_FAULTY: Final = 120
_HW_THERMAL: Final = 0x40
_SW_THERMAL: Final = 0x20
_THROTTLED_NS: Final = 800_000_000  # of each second
_DRAIN_AND_RESET: Final = 4  # NVML field 230
_XIDS: Final[dict[Fault, tuple[tuple[int, str], ...]]] = {
    Fault.xid_79: ((79, "GPU has fallen off the bus."),),
    Fault.xid_94: ((94, "Contained ECC error"),),
    Fault.xid_48_63: ((48, "Double bit ECC error"), (63, "Row remapper: new row marked for remapping")),
    Fault.xid_154: ((154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"),),
}


def readings_of(fault: Fault, device: str, host: int, now: float) -> tuple[DeviceReading, ...]:
    """Return readings of a device, one a second: healthy ones before `now`, then those of the fault.

    Args:
        fault: one whose readings are played.
        device: as the monitor knows it: its id in the plan, or its number on its host as `#0`.
        host: number of its host.
        now: wall clock of the fault, seconds since the epoch.
    """
    healthy = _healthy(device, host)
    before = [replace(healthy, time=now - back) for back in range(_HEALTHY, 0, -1)]
    after = [_failing(fault, replace(healthy, time=now + after), after + 1) for after in range(_FAULTY)]
    return (*before, *after)


def _healthy(device: str, host: int) -> DeviceReading:
    return DeviceReading(
        time=0.0,
        device=device,
        host=host,
        memory_used_bytes=60 << 30,
        utilisation=1.0,
        sm_clock_mhz=1980,
        max_sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        temperature_celsius=62,
        power_watts=640.0,
        power_limit_watts=700.0,
        throttle_reasons=0,
        throttle_ns=(
            ("sw_thermal", 0),
            ("hw_thermal", 0),
            ("hw_power_brake", 0),
            ("sw_power_cap", 0),
            ("sync_boost", 0),
        ),
        pcie_generation=5,
        pcie_width=16,
        max_pcie_generation=5,
        max_pcie_width=16,
        pcie_tx_bytes_per_second=2.0e10,
        pcie_rx_bytes_per_second=2.0e10,
        pcie_replays=0,
        nvlink_errors=0,
        ecc_corrected=0,
        ecc_uncorrected=0,
        recovery_action=0,
    )


def _failing(fault: Fault, healthy: DeviceReading, second: int) -> DeviceReading:
    """The reading in that second of a fault, from 1."""
    if fault is Fault.thermal:
        grown = tuple((name, second * _THROTTLED_NS * (name == "hw_thermal")) for name, _ in healthy.throttle_ns)
        return replace(
            healthy,
            temperature_celsius=93,
            sm_clock_mhz=705,
            power_watts=210.0,
            throttle_reasons=_HW_THERMAL | _SW_THERMAL,
            throttle_ns=grown,
        )
    if fault is Fault.pcie_gen2:
        return replace(
            healthy,
            pcie_generation=2,
            pcie_tx_bytes_per_second=6.5e9,
            pcie_rx_bytes_per_second=6.5e9,
            pcie_replays=40 * second,
        )
    xids = _XIDS.get(fault, ())
    seen = xids[second - 1 : second]
    reading = replace(
        healthy,
        xids=tuple(Xid(time=healthy.time, number=number, device=healthy.device, words=words) for number, words in seen),
    )
    if fault is Fault.xid_79:
        return replace(reading, lost=True, utilisation=None, sm_clock_mhz=None, temperature_celsius=None)
    if fault is Fault.xid_48_63:
        return replace(reading, ecc_uncorrected=1)
    return replace(reading, recovery_action=_DRAIN_AND_RESET) if fault is Fault.xid_154 else reading


def append(run_dir: Path, readings: tuple[DeviceReading, ...]) -> None:
    """Add readings to the file that the monitor follows, and bring them to the disk."""
    path = run_dir / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(line_of(reading) for reading in readings))
        file.flush()
        os.fsync(file.fileno())


def play(run_dir: Path, fault: Fault, device: str, host: int) -> None:
    """Let a fault of a device begin now."""
    append(run_dir, readings_of(fault, device, host, time.time()))
