"""JSON of a topology, and the fingerprint of its hardware shape.

The JSON is stable: keys are added, never renamed. What a reader may leave out has a default here, so a file
written by hand needs no more than ids, names, memory, links and pairs.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Switch, SwitchKind, Topology
from topology.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA: Final = "trainmaster.topology/1"

V = TypeVar("V")
K = TypeVar("K", DeviceKind, SwitchKind)
_REQUIRED: Final = object()


def to_json(topology: Topology) -> dict[str, Any]:
    """Turn a topology into plain dicts, lists and numbers; `from_json` gives back an equal topology."""
    return {
        "schema": SCHEMA,
        "fingerprint": fingerprint(topology),
        "source": topology.source,
        "hosts": [_host_json(host) for host in topology.hosts],
        "switches": [_plain(switch) for switch in topology.switches],
        "links": [_plain(link) for link in topology.links],
        "pairs": [_plain(pair) for pair in topology.pairs],
        "warnings": list(topology.warnings),
    }


def from_json(data: object) -> Topology:
    """Read what `to_json` wrote. The stored fingerprint is not trusted: it is computed anew when written.

    Raises:
        TopologyError: with every fault and its path, all at once.

    """
    reader = _Reader()
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = f"schema {data.get('schema')!r}" if isinstance(data, dict) else f"a JSON {type(data).__name__}"
        raise _malformed((f"$: {found}, not {SCHEMA!r}",))
    topology = reader.build(
        "$",
        lambda: Topology(
            hosts=reader.each(data, "$", "hosts", _host_value, required=True),
            switches=reader.each(data, "$", "switches", _switch_value),
            links=reader.each(data, "$", "links", _link_value),
            pairs=reader.each(data, "$", "pairs", _pair_value),
            warnings=reader.strings(data, "$", "warnings"),
            source=reader.get(data, "$", "source", str, "file"),
        ),
    )
    if reader.problems or topology is None:
        raise _malformed(tuple(reader.problems))
    return topology


def fingerprint(topology: Topology) -> str:
    """SHA-256 of the hardware shape: what a stored calibration may be keyed by.

    Left out, since they move while the hardware stays: names of hosts and parts, UUIDs, PCI addresses, free
    memory, clocks, warnings and sources. Memory counts in whole GiB, since drivers and kernels reserve
    a different few MiB from version to version.
    """
    # Imported here: the two cost a start-up more than reading the whole host does.
    import hashlib
    import json

    label: dict[str, str] = {switch.id: f"s{rank}" for rank, switch in enumerate(topology.switches)}
    for rank, host in enumerate(topology.hosts):
        label |= {device.id: f"h{rank}d{at}" for at, device in enumerate(host.devices)}
        label |= {nic.id: f"h{rank}n{at}" for at, nic in enumerate(host.nics)}
    shape = {
        "hosts": [_host_shape(host) for host in topology.hosts],
        "switches": [switch.kind.value for switch in topology.switches],
        "links": sorted(
            [*sorted((label[link.a], label[link.b])), link.kind, str(link.bytes_per_second)] for link in topology.links
        ),
        "pairs": sorted([*sorted((label[pair.a], label[pair.b])), pair.kind] for pair in topology.pairs),
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def _host_shape(host: Host) -> list[object]:
    devices = [
        [d.kind.value, d.name, _whole_gib(d.memory_bytes), d.numa, d.compute_capability, d.cores, d.features]
        for d in host.devices
    ]
    nics = [[nic.kind, nic.bytes_per_second, nic.numa] for nic in host.nics]
    cpu = [host.cores, host.sockets, host.threads_per_core, host.cpu_name]
    return [_whole_gib(host.memory_bytes), *cpu, devices, nics]


def _whole_gib(size_bytes: int) -> int:
    return round(size_bytes / GIB)


def _host_json(host: Host) -> dict[str, Any]:
    devices, nics = [_plain(device) for device in host.devices], [_plain(nic) for nic in host.nics]
    return _plain(host) | {"devices": devices, "nics": nics}


def _plain(value: Device | Host | Link | Nic | Pair | Switch) -> dict[str, Any]:
    out = {item.name: getattr(value, item.name) for item in fields(value)}
    for key, part in out.items():
        if isinstance(part, DeviceKind | SwitchKind):
            out[key] = part.value
        elif isinstance(part, tuple):
            out[key] = list(part)
    return out


class _Reader:
    """Collects every fault with its path while values are built."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def get(
        self,
        data: dict[str, Any],
        path: str,
        key: str,
        kind: type[V],
        default: object = _REQUIRED,
    ) -> Any:  # noqa: ANN401 - a V, or the default
        """One scalar; None stands for an optional one that is absent, and for one that is wrong."""
        value = data.get(key)
        if value is None:
            if default is _REQUIRED:
                self.problems.append(f"{path}.{key}: missing, a {kind.__name__} is needed")
                return kind()
            return default
        good = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if good and not isinstance(value, bool):
            return value
        self.problems.append(f"{path}.{key}: {value!r} is no {kind.__name__}")
        return kind() if default is _REQUIRED else default

    def choice(self, data: dict[str, Any], path: str, kind: type[K], default: str) -> K:
        """One member of an enum by its value, under the key `kind`."""
        name = self.get(data, path, "kind", str, default)
        names = [member.value for member in kind]
        if name not in names:
            self.problems.append(f"{path}.kind: {name!r} is none of {', '.join(names)}")
            name = default
        return kind(name)

    def items(self, data: dict[str, Any], path: str, key: str, *, required: bool = False) -> list[Any]:
        """Return a list, empty where it is absent or wrong."""
        value = data.get(key)
        if isinstance(value, list):
            return value
        if value is not None or required:
            self.problems.append(f"{path}.{key}: {'missing' if value is None else repr(value)}, a list is needed")
        return []

    def strings(self, data: dict[str, Any], path: str, key: str) -> tuple[str, ...]:
        """Return a list of strings as a tuple."""
        values = self.items(data, path, key)
        wrong = [(at, value) for at, value in enumerate(values) if not isinstance(value, str)]
        self.problems += [f"{path}.{key}[{at}]: {value!r} is no str" for at, value in wrong]
        return tuple(value for value in values if isinstance(value, str))

    def each(
        self,
        data: dict[str, Any],
        path: str,
        key: str,
        value_of: Callable[[_Reader, dict[str, Any], str], V],
        *,
        required: bool = False,
    ) -> tuple[V, ...]:
        """Return a list of objects, each built by `value_of`; those that fail are told and left out."""
        built: list[V] = []
        for at, item in enumerate(self.items(data, path, key, required=required)):
            where = f"{path}.{key}[{at}]"
            if not isinstance(item, dict):
                self.problems.append(f"{where}: {item!r} is no object")
                continue
            before = len(self.problems)
            value = self.build(where, lambda item=item, where=where: value_of(self, item, where))  # type: ignore[misc]
            if value is not None and len(self.problems) == before:
                built.append(value)
        return tuple(built)

    def build(self, path: str, make: Callable[[], V]) -> V | None:
        """Call `make`, and turn a rejected value into faults, unless it was rejected for faults told before."""
        before = len(self.problems)
        try:
            return make()
        except TopologyError as error:
            if len(self.problems) == before:
                self.problems.extend(f"{path}: {problem}" for problem in error.problems)
            return None


def _host_value(reader: _Reader, data: dict[str, Any], path: str) -> Host:
    name = reader.get(data, path, "name", str, "host0")

    def device_value(reader: _Reader, item: dict[str, Any], where: str) -> Device:
        return _device_value(reader, item, where, name)

    return Host(
        name=name,
        memory_bytes=reader.get(data, path, "memory_bytes", int, 0),
        cores=reader.get(data, path, "cores", int, 0),
        devices=reader.each(data, path, "devices", device_value, required=True),
        available_memory_bytes=reader.get(data, path, "available_memory_bytes", int, None),
        memory_limit_bytes=reader.get(data, path, "memory_limit_bytes", int, None),
        sockets=reader.get(data, path, "sockets", int, 1),
        threads_per_core=reader.get(data, path, "threads_per_core", int, 1),
        nics=reader.each(data, path, "nics", _nic_value),
        cpu_name=reader.get(data, path, "cpu_name", str, None),
        clock_hz=reader.get(data, path, "clock_hz", float, None),
    )


def _device_value(reader: _Reader, data: dict[str, Any], path: str, host: str) -> Device:
    capability = tuple(reader.items(data, path, "compute_capability"))
    if capability and [type(part) for part in capability] != [int, int]:
        reader.problems.append(f"{path}.compute_capability: {list(capability)!r} is no [major, minor]")
    return Device(
        id=reader.get(data, path, "id", str),
        host=reader.get(data, path, "host", str, host),
        kind=reader.choice(data, path, DeviceKind, "gpu"),
        name=reader.get(data, path, "name", str),
        memory_bytes=reader.get(data, path, "memory_bytes", int),
        numa=reader.get(data, path, "numa", int, None),
        pci=reader.get(data, path, "pci", str, None),
        uuid=reader.get(data, path, "uuid", str, None),
        index=reader.get(data, path, "index", int, None),
        compute_capability=(capability[0], capability[-1]) if capability else None,
        cores=reader.get(data, path, "cores", int, 0),
        features=reader.strings(data, path, "features"),
        free_memory_bytes=reader.get(data, path, "free_memory_bytes", int, None),
    )


def _nic_value(reader: _Reader, data: dict[str, Any], path: str) -> Nic:
    return Nic(
        id=reader.get(data, path, "id", str),
        name=reader.get(data, path, "name", str),
        kind=reader.get(data, path, "kind", str, "ethernet"),
        bytes_per_second=reader.get(data, path, "bytes_per_second", float, None),
        numa=reader.get(data, path, "numa", int, None),
        pci=reader.get(data, path, "pci", str, None),
    )


def _switch_value(reader: _Reader, data: dict[str, Any], path: str) -> Switch:
    kind = reader.choice(data, path, SwitchKind, "nvswitch")
    return Switch(id=reader.get(data, path, "id", str), kind=kind, host=reader.get(data, path, "host", str, None))


def _link_value(reader: _Reader, data: dict[str, Any], path: str) -> Link:
    return Link(
        a=reader.get(data, path, "a", str),
        b=reader.get(data, path, "b", str),
        kind=reader.get(data, path, "kind", str),
        source=reader.get(data, path, "source", str, "file"),
        bytes_per_second=reader.get(data, path, "bytes_per_second", float, None),
    )


def _pair_value(reader: _Reader, data: dict[str, Any], path: str) -> Pair:
    parts = {key: reader.get(data, path, key, str) for key in ("a", "b", "kind")}
    return Pair(**parts)


def _malformed(problems: tuple[str, ...]) -> TopologyError:
    remedy = "correct these entries, or write the file anew with `trainmaster probe save=FILE`"
    return TopologyError(asked="a topology in JSON", problems=problems, remedy=remedy)
