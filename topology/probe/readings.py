"""Raw readings of one machine, each a value or an error code: what probing records and assembly replays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from topology.errors import TopologyError
from topology.reading import Reading

READINGS_SCHEMA: Final = "trainmaster.readings/1"

V = TypeVar("V")
Cpus = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NicReadings:
    """One network interface or RDMA port. `kind`: ethernet, infiniband or roce."""

    name: str
    kind: str
    bytes_per_second: Reading[float]
    numa: Reading[int]
    pci: Reading[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaReadings:
    """One NUMA node and its logical CPUs."""

    node: int
    cpus: Reading[Cpus]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciReadings:
    """The NUMA node of one PCI function."""

    address: str
    numa: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReadings:
    """What the kernel says about this host and about what this process may use of it.

    `memory_headroom_bytes` is what the control groups still allow, page cache that can be dropped included.
    """

    name: Reading[str]
    cpus: Reading[Cpus]
    cpu_quota_cores: Reading[float]
    memory_total_bytes: Reading[int]
    memory_available_bytes: Reading[int]
    memory_limit_bytes: Reading[int]
    memory_headroom_bytes: Reading[int]
    cpu_name: Reading[str]
    cpu_flags: Reading[tuple[str, ...]]
    clock_hz: Reading[float]
    sockets: Reading[int]
    threads_per_core: Reading[int]
    numa_nodes: tuple[NumaReadings, ...] = ()
    nics: tuple[NicReadings, ...] = ()
    pci_functions: tuple[PciReadings, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkReadings:
    """One NVLink port of a GPU, in NVML's codes (state 1: active; remote type 0: GPU, 2: switch)."""

    link: int
    state: Reading[int]
    version: Reading[int]
    remote_pci: Reading[str]
    remote_type: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """One GPU. `numa` is NVML's own node id, which only coherent platforms have."""

    index: int
    uuid: Reading[str]
    name: Reading[str]
    pci: Reading[str]
    memory_total_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    compute_capability: Reading[tuple[int, int]]
    numa: Reading[int]
    cpus: Reading[Cpus]
    nvlinks: tuple[NvlinkReadings, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorReadings:
    """NVML's topology level of two GPUs, by their NVML indices."""

    a_index: int
    b_index: int
    level: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReadings:
    """All GPUs the driver shows, hidden ones included: `visible_devices` is applied when assembling.

    `unavailable` is one line saying why there is nothing, or None. The two last are the texts of
    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None where unset.
    """

    driver_version: Reading[str]
    gpus: tuple[GpuReadings, ...] = ()
    ancestors: tuple[AncestorReadings, ...] = ()
    unavailable: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReadings:
    """Everything read of one machine."""

    host: HostReadings
    nvml: NvmlReadings


_PARTS: Final[dict[str, type[Any]]] = {
    "host": HostReadings,
    "nvml": NvmlReadings,
    "numa_nodes": NumaReadings,
    "nics": NicReadings,
    "pci_functions": PciReadings,
    "gpus": GpuReadings,
    "ancestors": AncestorReadings,
    "nvlinks": NvlinkReadings,
}

# What a field, or the value of its reading, may hold, by the text of its annotation.
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "str | None": (str, type(None)),
    "Cpus": (tuple,),
    "tuple[str, ...]": (tuple,),
    "tuple[int, int]": (tuple,),
}


def readings_to_json(readings: MachineReadings) -> dict[str, Any]:
    """Turn readings into plain dicts and lists; `readings_from_json` gives back equal readings."""
    return {"schema": READINGS_SCHEMA, **_plain(readings)}


def readings_from_json(data: object) -> MachineReadings:
    """Read what `readings_to_json` wrote.

    Raises:
        TopologyError: if it is anything else, with the path of the first fault.

    """
    asked, remedy = "recorded readings in JSON", "record them again on the machine itself"
    if not isinstance(data, dict) or data.get("schema") != READINGS_SCHEMA:
        raise TopologyError(asked=asked, found=f"no schema {READINGS_SCHEMA!r}", remedy=remedy)
    try:
        return _build(MachineReadings, {key: value for key, value in data.items() if key != "schema"}, "$")
    except (TypeError, TopologyError) as error:
        raise TopologyError(asked=asked, found=str(error), remedy=remedy) from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part of the readings, to any part of JSON
    if isinstance(value, Reading):
        kept = {"value": _plain(value.value)} if value.error is None else {"error": value.error}
        return kept | {"source": value.source}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return value


def _build(kind: type[V], data: Any, path: str) -> V:  # noqa: ANN401 - any part of JSON
    if not isinstance(data, dict):
        message = f"{path}: {data!r} is no object"
        raise TypeError(message)
    parts = {key: _value(key, value, f"{path}.{key}") for key, value in data.items()}
    for key, value in parts.items():
        _check(kind.__annotations__.get(key, ""), value, f"{path}.{key}")
    try:
        return kind(**parts)
    except TypeError as error:
        # A missing or unknown key: Python's message names it, the path says where.
        message = f"{path}: {error}"
        raise TypeError(message) from error


def _check(annotation: str, value: object, path: str) -> None:
    is_reading = annotation.startswith("Reading[")
    types = _TYPES.get(annotation.removeprefix("Reading[").removesuffix("]") if is_reading else annotation)
    if is_reading and isinstance(value, Reading):
        if value.error is not None:
            return
        value = value.value
    elif is_reading:
        types = (Reading,)
    if types is not None and not isinstance(value, types):
        message = f"{path}: {value!r} does not fit {annotation}"
        raise TypeError(message)


def _value(key: str, value: Any, path: str) -> Any:  # noqa: ANN401 - any part of JSON, to any part of the readings
    if key in _PARTS:
        part = _PARTS[key]
        if isinstance(value, list):
            return tuple(_build(part, item, f"{path}[{at}]") for at, item in enumerate(value))
        return _build(part, value, path)
    if isinstance(value, dict) and isinstance(value.get("source"), str):
        plain = value.get("value")
        frozen = tuple(plain) if isinstance(plain, list) else plain
        return Reading(source=value["source"], value=frozen, error=value.get("error"))
    return value
