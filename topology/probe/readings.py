"""Raw readings of one machine, each a value or an error code: what probing records and assembly replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from topology.errors import TopologyError
from topology.probe.gpu_readings import (
    AncestorReadings,
    GpuReadings,
    MigReadings,
    NvlinkReadings,
    NvmlReadings,
    P2pReadings,
)
from topology.probe.host_readings import NOT_READ, Cpus, HostReadings, NicReadings, NumaReadings, PciReadings
from topology.probe.readings_codec import decode, encode

__all__ = [
    "LIMITS",
    "NOT_READ",
    "READINGS_SCHEMA",
    "AncestorReadings",
    "Cpus",
    "GpuReadings",
    "HostReadings",
    "MachineReadings",
    "MigReadings",
    "NicReadings",
    "NumaReadings",
    "NvlinkReadings",
    "NvmlReadings",
    "P2pReadings",
    "PciReadings",
    "readings_from_json",
    "readings_to_json",
]

READINGS_SCHEMA: Final = "trainmaster.readings/1"
_MAX_PROBLEMS: Final = 20
# More than any machine has, and few enough that assembling, which looks at every pair, stays fast.
LIMITS: Final = {
    "gpus": 256,
    "nvlinks": 64,
    "mig_devices": 16,
    "nics": 512,
    "numa_nodes": 1024,
    "pci_functions": 4096,
    "above": 64,
    "cpus": 8192,  # CONFIG_NR_CPUS of the largest kernels
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReadings:
    """Everything read of one machine."""

    host: HostReadings
    nvml: NvmlReadings


def readings_to_json(readings: MachineReadings) -> dict[str, Any]:
    """Turn readings into plain dicts and lists; `readings_from_json` gives back equal readings."""
    return {"schema": READINGS_SCHEMA, **encode(readings)}


def readings_from_json(data: object) -> MachineReadings:
    """Read what `readings_to_json` wrote, now or before some of the readings existed.

    Raises:
        TopologyError: if it is anything else, with every fault and its path.

    """
    asked, remedy = "recorded readings in JSON", "record them again on the machine itself"
    if not isinstance(data, dict) or data.get("schema") != READINGS_SCHEMA:
        raise TopologyError(asked=asked, found=f"no schema {READINGS_SCHEMA!r}", remedy=remedy)
    rest = {key: value for key, value in data.items() if key != "schema"}
    readings, problems = decode(MachineReadings, rest, LIMITS)
    if readings is None:
        more = len(problems) - _MAX_PROBLEMS
        told = (*problems[:_MAX_PROBLEMS], *((f"and {more} more",) if more > 0 else ()))
        raise TopologyError(asked=asked, problems=told, remedy=remedy)
    return readings
