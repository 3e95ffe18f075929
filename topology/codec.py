"""JSON of a topology, and the fingerprint of its hardware shape.

The JSON is stable: keys are added, never renamed. What a reader may leave out has a default here, so a file
written by hand needs no more than ids, names, memory, links and pairs.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from topology.errors import TopologyError
from topology.fingerprint import fingerprint
from topology.json_reader import Reader, shown
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SCHEMA", "fingerprint", "from_json", "to_json"]

SCHEMA: Final = "trainmaster.topology/1"
_MAX_PROBLEMS: Final = 20
_MAX_HOSTS: Final = 4096
_MAX_PARTS: Final = 1024  # devices or NICs of one host
_MAX_WARNINGS: Final = 20_000


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
    reader = Reader()
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = f"schema {shown(data.get('schema'))}" if isinstance(data, dict) else f"a JSON {type(data).__name__}"
        raise _malformed((f"$: {found}, not {SCHEMA!r}",))
    too_many = tuple(_too_many(data))
    if too_many:
        raise _malformed(too_many)
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


def _too_many(data: dict[str, Any]) -> Iterator[str]:
    # What no machine has is refused before it is built.
    hosts = data.get("hosts")
    limits: list[tuple[str, object, int]] = [("hosts", hosts, _MAX_HOSTS)]
    limits.append(("warnings", data.get("warnings"), _MAX_WARNINGS))
    for at, host in enumerate(hosts[:_MAX_HOSTS] if isinstance(hosts, list) else ()):
        parts = host if isinstance(host, dict) else {}
        limits += [(f"hosts[{at}].{key}", parts.get(key), _MAX_PARTS) for key in ("devices", "nics")]
    for path, items, limit in limits:
        if isinstance(items, list) and len(items) > limit:
            yield f"$.{path}: {len(items)} entries, more than {limit}"


def _host_json(host: Host) -> dict[str, Any]:
    devices, nics = [_plain(device) for device in host.devices], [_plain(nic) for nic in host.nics]
    return _plain(host) | {"devices": devices, "nics": nics}


def _plain(value: Device | Host | Link | Nic | Pair | Pcie | Switch) -> dict[str, Any]:
    out = {name: getattr(value, name) for name in value.__slots__}
    if isinstance(value, (Link, Pair, Nic)):
        return out  # the many, and plain already
    for key, part in out.items():
        if isinstance(part, DeviceKind | SwitchKind):
            out[key] = part.value
        elif isinstance(part, Pcie):
            out[key] = _plain(part)
        elif isinstance(part, tuple):
            out[key] = list(part)
    return out


def _host_value(reader: Reader, data: dict[str, Any], path: str) -> Host:
    name = reader.get(data, path, "name", str, "host0")

    def device_value(reader: Reader, item: dict[str, Any], where: str) -> Device:
        return _device_value(reader, item, where, name)

    return Host(
        name=name,
        memory_bytes=reader.get(data, path, "memory_bytes", int, None),
        cores=reader.get(data, path, "cores", int, None),
        devices=reader.each(data, path, "devices", device_value, required=True),
        available_memory_bytes=reader.get(data, path, "available_memory_bytes", int, None),
        memory_limit_bytes=reader.get(data, path, "memory_limit_bytes", int, None),
        sockets=reader.get(data, path, "sockets", int, None),
        threads_per_core=reader.get(data, path, "threads_per_core", int, 1),
        nics=reader.each(data, path, "nics", _nic_value),
        cpu_name=reader.get(data, path, "cpu_name", str, None),
        clock_hz=reader.get(data, path, "clock_hz", float, None),
        is_virtual=reader.get(data, path, "is_virtual", bool, None),
    )


def _device_value(reader: Reader, data: dict[str, Any], path: str, host: str) -> Device:
    capability = tuple(reader.items(data, path, "compute_capability"))
    if capability and [type(part) for part in capability] != [int, int]:
        reader.problems.append(f"{path}.compute_capability: {list(capability)!r} is no [major, minor]")
    return Device(
        id=reader.get(data, path, "id", str),
        host=reader.get(data, path, "host", str, host),
        kind=reader.choice(data, path, DeviceKind, "gpu"),
        name=reader.get(data, path, "name", str),
        memory_bytes=reader.get(data, path, "memory_bytes", int, None),
        numa=reader.get(data, path, "numa", int, None),
        pci=reader.get(data, path, "pci", str, None),
        uuid=reader.get(data, path, "uuid", str, None),
        index=reader.get(data, path, "index", int, None),
        compute_capability=(capability[0], capability[-1]) if capability else None,
        cores=reader.get(data, path, "cores", int, 0),
        features=reader.strings(data, path, "features"),
        free_memory_bytes=reader.get(data, path, "free_memory_bytes", int, None),
        pcie=reader.part(data, path, "pcie", _pcie_value),
        power_limit_watts=reader.get(data, path, "power_limit_watts", float, None),
        mig=reader.get(data, path, "mig", bool, None),
        parent=reader.get(data, path, "parent", str, None),
        fabric=reader.get(data, path, "fabric", str, None),
        cpus=reader.get(data, path, "cpus", str, None),
        unread=reader.strings(data, path, "unread"),
    )


def _pcie_value(reader: Reader, data: dict[str, Any], path: str) -> Pcie:
    return Pcie(**{item.name: reader.get(data, path, item.name, int, None) for item in fields(Pcie)})


def _nic_value(reader: Reader, data: dict[str, Any], path: str) -> Nic:
    return Nic(
        id=reader.get(data, path, "id", str),
        name=reader.get(data, path, "name", str),
        kind=reader.get(data, path, "kind", str, "ethernet"),
        bytes_per_second=reader.get(data, path, "bytes_per_second", float, None),
        numa=reader.get(data, path, "numa", int, None),
        pci=reader.get(data, path, "pci", str, None),
    )


def _switch_value(reader: Reader, data: dict[str, Any], path: str) -> Switch:
    kind = reader.choice(data, path, SwitchKind, "nvswitch")
    return Switch(
        id=reader.get(data, path, "id", str),
        kind=kind,
        host=reader.get(data, path, "host", str, None),
        name=reader.get(data, path, "name", str, None),
        numa=reader.get(data, path, "numa", int, None),
    )


def _link_value(reader: Reader, data: dict[str, Any], path: str) -> Link:
    return Link(
        a=reader.get(data, path, "a", str),
        b=reader.get(data, path, "b", str),
        kind=reader.get(data, path, "kind", str),
        source=reader.get(data, path, "source", str, "file"),
        bytes_per_second=reader.get(data, path, "bytes_per_second", float, None),
        assumed_bytes_per_second=reader.get(data, path, "assumed_bytes_per_second", float, None),
    )


def _pair_value(reader: Reader, data: dict[str, Any], path: str) -> Pair:
    parts = {key: reader.get(data, path, key, str) for key in ("a", "b", "kind")}
    return Pair(**parts)


def _malformed(problems: tuple[str, ...]) -> TopologyError:
    more = len(problems) - _MAX_PROBLEMS
    problems = problems[:_MAX_PROBLEMS] + ((f"and {more} more",) if more > 0 else ())
    remedy = "correct these entries, or write the file anew with `trainmaster probe save=FILE`"
    return TopologyError(asked="a topology in JSON", problems=problems, remedy=remedy)
