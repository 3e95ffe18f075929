"""A GPU at one moment through NVML: every value by a call of its own that may fail by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orchestrator.monitor.readings import DeviceReading
from topology.probe.nvml_calls import Caller, part
from topology.reading import Reading

_LOST: Final = "GPU_IS_LOST"
_REASONS: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_TX, _RX = 0, 1  # NVML_PCIE_UTIL_TX_BYTES, _RX_BYTES
_CORRECTED, _UNCORRECTED = 0, 1  # NVML_MEMORY_ERROR_TYPE_*
_VOLATILE: Final = 0  # since the driver was loaded
_KIB: Final = 1024
_MIB: Final = 2**20
_MAX: Final = 2**62  # a driver in a bad way fills in all ones without an error

# NVML_FI_DEV_CLOCKS_EVENT_REASON_*: nanoseconds since the driver was loaded
THROTTLE_FIELDS: Final = {
    74: "sw_power_cap",
    76: "sync_boost",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "hw_power_brake",
}
_REPLAYS: Final = 94  # NVML_FI_DEV_PCIE_REPLAY_COUNTER
_RECOVERY: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_LINKS: Final = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_LINK_TOTALS: Final = (38, 45, 52, 59, 160)  # flit CRC, data CRC, replay, recovery, ECC: over all links, to Ampere
_LINK_ERRORS: Final = (161, 162, 163)  # replay, recovery, CRC of one link (the scope), from Hopper on
_MAX_LINKS: Final = 32
_LINK_ROUNDS: Final = 5  # dozens of counters that hardly ever move: read every so many rounds
_VALUES: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# NVML_GPM_METRIC_*: percent, and MiB per second
_SM_UTIL, _DRAM_UTIL, _PCIE_TX, _PCIE_RX = 2, 10, 20, 21
_GPM_METRICS: Final = (_SM_UTIL, _DRAM_UTIL, _PCIE_TX, _PCIE_RX)
_GPM_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device of this run: its id in the topology of the plan, the driver's name of it, its PCI address."""

    device: str
    uuid: str = ""
    pci: str = ""


class GpuMeter:
    """Reads one GPU. A MIG slice tells its own memory; the rest is of the GPU that it is cut from."""

    def __init__(self, call: Caller, target: Target, host: int) -> None:
        """Open the GPU, and read what does not change."""
        self._call, self._target, self._host = call, target, host
        self._lost = False
        self._rounds = 0
        self._nvlink_errors: int | None = None
        self.own = _open(call, target)
        parent = call.read("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self.own)
        self.whole = parent if target.uuid.startswith("MIG-") and parent.error is None else self.own
        self._max_clock = self._ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
        self._max_generation = self._ask("nvmlDeviceGetMaxPcieLinkGeneration")
        self._max_width = self._ask("nvmlDeviceGetMaxPcieLinkWidth")
        self._num_links = min(_fields(call, self.whole, [_LINKS]).get((_LINKS, 0), 0), _MAX_LINKS)
        self._gpm = Gpm(call, self.whole)

    def read(self, time: float) -> DeviceReading:
        """Read now; what the driver does not tell is None."""
        self._lost = self.own.error == _LOST
        memory = self._noted(part(self._call.read("nvmlDeviceGetMemoryInfo", self.own), lambda info: int(info.used)))
        rates = self._noted(self._call.read("nvmlDeviceGetUtilizationRates", self.whole, then=lambda found: found.gpu))
        fields = _fields(self._call, self.whole, [*THROTTLE_FIELDS, _REPLAYS, _RECOVERY])
        gpm = self._gpm.read()
        replays = self._ask("nvmlDeviceGetPcieReplayCounter")
        reading = DeviceReading(
            time=time,
            device=self._target.device,
            host=self._host,
            memory_used_bytes=memory,
            utilisation=None if rates is None else rates / 100,
            sm_utilisation=_scaled(gpm.get(_SM_UTIL), 0.01),
            dram_utilisation=_scaled(gpm.get(_DRAM_UTIL), 0.01),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            max_sm_clock_mhz=self._max_clock,
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", 0),
            power_watts=_scaled(self._ask("nvmlDeviceGetPowerUsage"), 0.001),
            power_limit_watts=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 0.001),
            throttle_reasons=self._noted(self._call.first(_REASONS, self.whole)),
            throttle_ns=tuple((name, fields[n, 0]) for n, name in THROTTLE_FIELDS.items() if (n, 0) in fields),
            pcie_generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
            max_pcie_generation=self._max_generation,
            max_pcie_width=self._max_width,
            pcie_tx_bytes_per_second=self._throughput(gpm.get(_PCIE_TX), _TX),
            pcie_rx_bytes_per_second=self._throughput(gpm.get(_PCIE_RX), _RX),
            pcie_replays=fields.get((_REPLAYS, 0)) if replays is None else replays,
            nvlink_errors=self._links(),
            ecc_corrected=self._ask("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
            ecc_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            recovery_action=fields.get((_RECOVERY, 0)),
        )
        return replace(reading, lost=self._lost)  # what any of the calls said

    def _ask(self, function: str, *arguments: int) -> int | None:
        return self._noted(self._call.read(function, self.whole, *arguments, then=int))

    def _noted(self, reading: Reading[Any]) -> int | None:
        """Return the number of a reading, and remember where it says that the GPU is gone."""
        self._lost = self._lost or reading.error == _LOST
        value = reading.value
        return int(value) if value is not None and 0 <= value < _MAX else None

    def _throughput(self, measured: float | None, way: int) -> float | None:
        """Bytes per second over the last interval, or of 20 ms where that is all the driver has."""
        if measured is not None:
            return measured * _MIB
        return _scaled(self._ask("nvmlDeviceGetPcieThroughput", way), _KIB)

    def _links(self) -> int | None:
        """Errors of all NVLink ports, of every kind."""
        if self._num_links and self._rounds % _LINK_ROUNDS == 0:
            totals = _fields(self._call, self.whole, _LINK_TOTALS)
            if not totals:
                each = [(number, link) for number in _LINK_ERRORS for link in range(self._num_links)]
                totals = _fields(self._call, self.whole, each)
            self._nvlink_errors = sum(totals.values()) if totals else None
        self._rounds += 1
        return self._nvlink_errors


class Gpm:
    """Shares of DRAM bandwidth and SMs between two samples, on GPUs and drivers that count them (Hopper on)."""

    def __init__(self, call: Caller, handle: Reading[Any]) -> None:
        """Take the first sample."""
        self._call, self._handle = call, handle
        support = call.read("nvmlGpmQueryDeviceSupport", handle, then=lambda found: bool(found.isSupportedDevice))
        self._samples: tuple[Reading[Any], Reading[Any]] | None = None
        if support.value:
            before, after = call.read("nvmlGpmSampleAlloc"), call.read("nvmlGpmSampleAlloc")
            if call.read("nvmlGpmSampleGet", handle, before).error is None and after.error is None:
                self._samples = (before, after)

    def read(self) -> Mapping[int, float]:
        """Return the metrics since the last call, by number; empty where there are none."""
        if self._samples is None:
            return {}
        before, after = self._samples
        if self._call.read("nvmlGpmSampleGet", self._handle, after).error is not None:
            return {}
        self._samples = (after, before)
        request = self._call.read("c_nvmlGpmMetricsGet_t").value
        if request is None:
            return {}
        request.version, request.numMetrics = _GPM_VERSION, len(_GPM_METRICS)
        request.sample1, request.sample2 = before.value, after.value
        for at, number in enumerate(_GPM_METRICS):
            request.metrics[at].metricId = number
        return self._call.read("nvmlGpmMetricsGet", request, then=_metrics).value or {}


def _metrics(found: Any) -> dict[int, float]:  # noqa: ANN401 - a ctypes structure of pynvml
    told = (found.metrics[at] for at in range(len(_GPM_METRICS)))
    return {int(one.metricId): float(one.value) for one in told if not one.nvmlReturn and 0 <= one.value < _MAX}


def _open(call: Caller, target: Target) -> Reading[Any]:
    """Find the GPU by its UUID, else by its PCI address; never by an index."""
    handle = call.read("nvmlDeviceGetHandleByUUID", target.uuid)
    if handle.error is not None and target.pci:
        by_address = call.read("nvmlDeviceGetHandleByPciBusId", target.pci)
        return by_address if by_address.error is None else handle
    return handle


def _fields(call: Caller, handle: Reading[Any], wanted: Iterable[int | tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Read fields, each (number, scope); those that fail are left out. One call for all, else one for each."""
    asked = list(wanted)
    found = call.read("nvmlDeviceGetFieldValues", handle, asked, then=_field_values)
    if found.error == "INVALID_ARGUMENT" and len(asked) > 1:
        singles = (call.read("nvmlDeviceGetFieldValues", handle, [one], then=_field_values) for one in asked)
        return {key: value for single in singles for key, value in (single.value or {}).items()}
    return found.value or {}


def _field_values(values: Any) -> dict[tuple[int, int], int]:  # noqa: ANN401 - a ctypes array of pynvml
    found: dict[tuple[int, int], int] = {}
    for one in values:
        name = _VALUES.get(int(one.valueType))
        value = None if one.nvmlReturn or name is None else getattr(one.value, name)
        if value is not None and 0 <= value < _MAX:
            found[int(one.fieldId), int(one.scopeId)] = int(value)
    return found


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
