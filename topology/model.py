"""Frozen values for a machine: valid when they exist, unknown (None) where nothing was read.

Units are in the names. Ids are unique strings over the whole topology: a GPU is its UUID, a CPU slot is
`HOST/cpuN`, a NIC is `HOST/NAME`; an index is only ever shown, never a key.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from topology.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable

T_co = TypeVar("T_co", covariant=True)

PAIR_KIND: Final = re.compile(r"NV[1-9]\d*|PIX|PXB|PHB|NODE|SYS")
_PCI: Final = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


class DeviceKind(Enum):
    """What a rank can run on."""

    gpu = "gpu"
    cpu = "cpu"


class SwitchKind(Enum):
    """What joins more than two ends: a node of its own, so that shared capacity can be counted."""

    nvswitch = "nvswitch"
    pcie = "pcie"
    socket = "socket"
    network = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[T_co]):
    """One reading: a value, or the code of the error that came instead, with where it was read.

    A limit that is not set reads as the code `UNLIMITED`.
    """

    source: str
    value: T_co | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        """Exactly one of value and error."""
        both = "a value and an error" if self.value is not None else "neither a value nor an error"
        _check(f"a reading of {self.source}", ((self.value is None) == (self.error is None), both))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or without one a CPU slot of `cores` cores. Memory in bytes; `pci` as sysfs writes it."""

    id: str
    host: str
    kind: DeviceKind
    name: str
    memory_bytes: int
    numa: int | None = None
    pci: str | None = None
    uuid: str | None = None
    index: int | None = None
    compute_capability: tuple[int, int] | None = None
    cores: int = 0
    features: tuple[str, ...] = ()
    free_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Reject values no device can have."""
        is_cpu = self.kind is DeviceKind.cpu
        _check(
            f"a device {self.id!r}",
            (not self.id, "an empty id"),
            (not self.host, "an empty host name"),
            (self.memory_bytes < 0, f"memory_bytes {self.memory_bytes} below 0"),
            (_negative(self.free_memory_bytes), f"free_memory_bytes {self.free_memory_bytes} below 0"),
            (_negative(self.numa), f"numa {self.numa} below 0"),
            (_negative(self.index), f"index {self.index} below 0"),
            (is_cpu != (self.cores > 0), f"{self.cores} cores on a {self.kind.value} device"),
            (self.pci is not None and self.pci != normal_pci(self.pci), f"pci {self.pci!r} not like 0000:18:00.0"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network port; the rate is per direction. Two with one `pci` are one port (RoCE and its interface)."""

    id: str
    name: str
    kind: str
    bytes_per_second: float | None = None
    numa: int | None = None
    pci: str | None = None

    def __post_init__(self) -> None:
        """Reject values no NIC can have."""
        _check(
            f"a NIC {self.id!r}",
            (not self.id, "an empty id"),
            (_negative(self.bytes_per_second), f"bytes_per_second {self.bytes_per_second} below 0"),
            (_negative(self.numa), f"numa {self.numa} below 0"),
            (self.pci is not None and self.pci != normal_pci(self.pci), f"pci {self.pci!r} not like 0000:18:00.0"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A node without compute: an NVSwitch fabric, a PCIe switch, a socket or a network switch."""

    id: str
    kind: SwitchKind
    host: str | None = None

    def __post_init__(self) -> None:
        """Reject a switch without an id."""
        _check(f"a switch {self.id!r}", (not self.id, "an empty id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One full-duplex link (or bundle, such as NV12) between two ids; the rate is per direction."""

    a: str
    b: str
    kind: str
    source: str
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        """Two ends, and a rate that is unknown or not negative."""
        _check(
            f"a link {self.a} - {self.b}",
            (self.a == self.b, "the same id at both ends"),
            (not self.kind, "an empty kind"),
            (_negative(self.bytes_per_second), f"bytes_per_second {self.bytes_per_second} below 0"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How two devices of one host reach each other, as nvidia-smi prints it."""

    a: str
    b: str
    kind: str

    def __post_init__(self) -> None:
        """Two ends, and one of nvidia-smi's labels."""
        _check(
            f"a pair {self.a} - {self.b}",
            (self.a == self.b, "the same id at both ends"),
            (not PAIR_KIND.fullmatch(self.kind), f"kind {self.kind!r}, not NV#, PIX, PXB, PHB, NODE or SYS"),
        )

    @property
    def is_nvlink(self) -> bool:
        """Whether the two are joined by NVLink, directly or through NVSwitch."""
        return self.kind.startswith("NV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One operating system. `memory_bytes` and `cores` are what this process may use.

    `memory_limit_bytes` is the control-group limit when one lies below the installed memory (`memory_bytes`
    then equals it); `clock_hz` and `available_memory_bytes` move from reading to reading.
    """

    name: str
    memory_bytes: int
    cores: int
    devices: tuple[Device, ...]
    available_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    sockets: int = 1
    threads_per_core: int = 1
    nics: tuple[Nic, ...] = ()
    cpu_name: str | None = None
    clock_hz: float | None = None

    def __post_init__(self) -> None:
        """Reject values no host can have, and devices that name another host."""
        strangers = ", ".join(device.id for device in self.devices if device.host != self.name)
        _check(
            f"a host {self.name!r}",
            (not self.name, "an empty name"),
            (self.memory_bytes < 0, f"memory_bytes {self.memory_bytes} below 0"),
            (_negative(self.available_memory_bytes), f"available memory {self.available_memory_bytes} below 0"),
            (_negative(self.memory_limit_bytes), f"memory limit {self.memory_limit_bytes} below 0"),
            (self.cores < 0, f"{self.cores} cores"),
            (self.sockets < 1, f"{self.sockets} sockets"),
            (self.threads_per_core < 1, f"{self.threads_per_core} threads per core"),
            (_negative(self.clock_hz), f"clock_hz {self.clock_hz} below 0"),
            (bool(strangers), f"devices of another host: {strangers}"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts, what joins their parts, and what could not be read."""

    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()
    pairs: tuple[Pair, ...] = ()
    switches: tuple[Switch, ...] = ()
    warnings: tuple[str, ...] = ()
    source: str = "unknown"

    def __post_init__(self) -> None:
        """Ids are unique, links join known ids, pairs join devices of one host once."""
        ids = [*(d.id for d in self.devices), *(n.id for n in self.nics), *(s.id for s in self.switches)]
        known = set(ids)
        host_of = {device.id: device.host for device in self.devices}
        unlinked = [end for link in self.links for end in (link.a, link.b) if end not in known]
        unpaired = [end for pair in self.pairs for end in (pair.a, pair.b) if end not in host_of]
        crossing = [f"{p.a} - {p.b}" for p in self.pairs if host_of.get(p.a) != host_of.get(p.b)]
        doubles = _doubles(frozenset((pair.a, pair.b)) for pair in self.pairs)
        _check(
            "a topology",
            (not self.hosts, "no host"),
            *((True, f"the id {name!r} more than once") for name in _doubles(ids)),
            *((True, f"the host name {name!r} more than once") for name in _doubles(h.name for h in self.hosts)),
            *((True, f"a link to the unknown id {end!r}") for end in dict.fromkeys(unlinked)),
            *((True, f"a pair over the unknown id {end!r}") for end in dict.fromkeys(unpaired)),
            *((not unpaired, f"a pair between two hosts: {text}") for text in crossing),
            *((True, f"two pairs over {' - '.join(sorted(ends))}") for ends in doubles),
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, host by host."""
        return tuple(device for host in self.hosts for device in host.devices)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The devices that are GPUs."""
        return tuple(device for device in self.devices if device.kind is DeviceKind.gpu)

    @property
    def nics(self) -> tuple[Nic, ...]:
        """All NICs, host by host."""
        return tuple(nic for host in self.hosts for nic in host.nics)

    @property
    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Device ids grouped by NVLink (connected parts), in device order; a lone device is its own island."""
        leader = {device.id: device.id for device in self.devices}
        for pair in self.pairs:
            if pair.is_nvlink:
                kept, gone = leader[pair.a], leader[pair.b]
                leader = {key: kept if value == gone else value for key, value in leader.items()}
        groups: dict[str, list[str]] = {}
        for name, first in leader.items():
            groups.setdefault(first, []).append(name)
        return tuple(tuple(group) for group in groups.values())


def normal_pci(text: str) -> str | None:
    """Write a PCI address as sysfs does (`0000:18:00.0`), from NVML's and nvidia-smi's forms; None if it is none."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function or '0'}".lower()


def _negative(value: float | None) -> bool:
    # NaN and infinity are no quantities either, and JSON cannot carry them.
    return value is not None and not 0 <= value < math.inf


def _doubles(values: Iterable[T_co]) -> list[T_co]:
    return [value for value, count in Counter(values).items() if count > 1]


def _check(what: str, *rules: tuple[bool, str]) -> None:
    # Each rule is (is it broken, what was found); all broken rules are told at once.
    problems = tuple(found for broken, found in rules if broken)
    if problems:
        raise TopologyError(asked=what, problems=problems, remedy="correct the value where it is made")
