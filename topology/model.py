"""Frozen values for a machine: valid when they exist, unknown (None) where nothing was read.

Units are in the names. Ids are unique strings over the whole topology: a GPU is its UUID, a CPU slot is
`HOST/cpuN`, a NIC is `HOST/NAME`; an index is only ever shown, never a key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topology.checks import check, doubles, is_no_pci, negative
from topology.grouping import connected

_PCIE_GENERATIONS: Final = range(1, 8)
_PCIE_WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
PAIR_KIND: Final = re.compile(r"NV[1-9]\d*|PIX|PXB|PHB|NODE|SYS")


class DeviceKind(Enum):
    """What a rank can run on."""

    gpu = "gpu"
    cpu = "cpu"


class SwitchKind(Enum):
    """What joins more than two ends: a node of its own, so that shared capacity can be counted.

    `bridge` is a PCIe host bridge (root complex) of a CPU; `socket` is a NUMA node: a CPU socket or a part of one;
    `network` is a switch between hosts.
    """

    nvswitch = "nvswitch"
    pcie = "pcie"
    bridge = "bridge"
    socket = "socket"
    network = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A PCIe link of a device: generation 1 to 7 and lanes. `generation` and `width` are those of the moment.

    The generation of the moment falls to 1 when the device idles: only the largest ones say what the link can do.
    `device_max_generation` is the card's own, whatever slot it sits in.
    """

    max_generation: int | None = None
    max_width: int | None = None
    generation: int | None = None
    width: int | None = None
    device_max_generation: int | None = None

    def __post_init__(self) -> None:
        """Reject generations and widths PCIe does not have."""
        generations = (self.max_generation, self.generation, self.device_max_generation)
        widths = (self.max_width, self.width)
        broken = (
            *(value is not None and value not in _PCIE_GENERATIONS for value in generations),
            *(value is not None and value not in _PCIE_WIDTHS for value in widths),
        )
        if True in broken:
            told = (*(f"generation {value}" for value in generations), *(f"{value} lanes" for value in widths))
            check("a PCIe link", *zip(broken, told, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or without one a CPU slot of `cores` cores. Memory in bytes (None: unknown); `pci` as sysfs writes it.

    `cpus` are the logical CPUs near it, as the kernel writes them (`0-15,32-47`); `parent` is the UUID of the GPU
    that a MIG slice is a part of (`index` is then that GPU's). `fabric` names the NVLink partition (cluster UUID and
    clique) that joins GPUs of several hosts. `unread` names what the driver would not tell (`nvlink`), so that it is
    not taken for absent.
    """

    id: str
    host: str
    kind: DeviceKind
    name: str
    memory_bytes: int | None
    numa: int | None = None
    pci: str | None = None
    uuid: str | None = None
    index: int | None = None
    compute_capability: tuple[int, int] | None = None
    cores: int = 0
    features: tuple[str, ...] = ()
    free_memory_bytes: int | None = None
    pcie: Pcie | None = None
    power_limit_watts: float | None = None
    mig: bool | None = None
    parent: str | None = None
    fabric: str | None = None
    cpus: str | None = None
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject values no device can have."""
        is_cpu = self.kind is DeviceKind.cpu
        broken = (
            not self.id,
            not self.host,
            negative(self.memory_bytes),
            negative(self.power_limit_watts),
            negative(self.free_memory_bytes),
            negative(self.numa),
            negative(self.index),
            is_cpu != (self.cores > 0),
            is_no_pci(self.pci),
        )
        # Messages are made only where something is broken: a cluster has some hundred thousand of these values.
        if True in broken:
            check(f"a device {self.id!r}", *zip(broken, self._faults(), strict=True))

    def _faults(self) -> tuple[str, ...]:
        return (
            "an empty id",
            "an empty host name",
            f"memory_bytes {self.memory_bytes} is not from 0 to 1e24",
            f"power_limit_watts {self.power_limit_watts} is not from 0 to 1e24",
            f"free_memory_bytes {self.free_memory_bytes} is not from 0 to 1e24",
            f"numa {self.numa} below 0",
            f"index {self.index} below 0",
            f"{self.cores} cores on a {self.kind.value} device",
            f"pci {self.pci!r} not like 0000:18:00.0",
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
        broken = (not self.id, negative(self.bytes_per_second), negative(self.numa), is_no_pci(self.pci))
        if True in broken:
            told = (
                "an empty id",
                f"bytes_per_second {self.bytes_per_second} is not from 0 to 1e24",
                f"numa {self.numa} below 0",
                f"pci {self.pci!r} not like 0000:18:00.0",
            )
            check(f"a NIC {self.id!r}", *zip(broken, told, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A node without compute. `name` is what it is sold as, where that is known; `numa` its NUMA node."""

    id: str
    kind: SwitchKind
    host: str | None = None
    name: str | None = None
    numa: int | None = None

    def __post_init__(self) -> None:
        """Reject a switch without an id."""
        if not self.id:
            check(f"a switch {self.id!r}", (True, "an empty id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One full-duplex link (or bundle, such as NV12) between two ids; the rate is per direction.

    Where the rate is not known, `assumed_bytes_per_second` is what to reckon with instead, and `source` says why.
    """

    a: str
    b: str
    kind: str
    source: str
    bytes_per_second: float | None = None
    assumed_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        """Two ends, and a rate that is unknown or not negative."""
        rate, assumed = self.bytes_per_second, self.assumed_bytes_per_second
        broken = (self.a == self.b, not self.kind, negative(rate), negative(assumed))
        if True in broken:
            told = (
                "the same id at both ends",
                "an empty kind",
                f"bytes_per_second {rate} is not from 0 to 1e24",
                f"assumed rate {assumed} is not from 0 to 1e24",
            )
            check(f"a link {self.a} - {self.b}", *zip(broken, told, strict=True))

    @property
    def capacity_bytes_per_second(self) -> float | None:
        """The rate, or what is assumed in its place."""
        return self.assumed_bytes_per_second if self.bytes_per_second is None else self.bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How two devices of one host reach each other, as nvidia-smi prints it."""

    a: str
    b: str
    kind: str

    def __post_init__(self) -> None:
        """Two ends, and one of nvidia-smi's labels."""
        broken = (self.a == self.b, PAIR_KIND.fullmatch(self.kind) is None)
        if True in broken:
            told = ("the same id at both ends", f"kind {self.kind!r}, not NV#, PIX, PXB, PHB, NODE or SYS")
            check(f"a pair {self.a} - {self.b}", *zip(broken, told, strict=True))

    @property
    def is_nvlink(self) -> bool:
        """Whether the two are joined by NVLink, directly or through NVSwitch."""
        return self.kind.startswith("NV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One operating system. `memory_bytes` and `cores` are what this process may use; None where unknown.

    `memory_limit_bytes` is the control-group limit when one lies below the installed memory (`memory_bytes`
    then equals it); `clock_hz` and `available_memory_bytes` move from reading to reading.
    """

    name: str
    memory_bytes: int | None
    cores: int | None
    devices: tuple[Device, ...]
    available_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    sockets: int | None = None
    threads_per_core: int = 1
    nics: tuple[Nic, ...] = ()
    cpu_name: str | None = None
    clock_hz: float | None = None
    is_virtual: bool | None = None

    def __post_init__(self) -> None:
        """Reject values no host can have, and devices that name another host."""
        strangers = ", ".join(device.id for device in self.devices if device.host != self.name)
        check(
            f"a host {self.name!r}",
            (not self.name, "an empty name"),
            (negative(self.memory_bytes), f"memory_bytes {self.memory_bytes} is not from 0 to 1e24"),
            (
                negative(self.available_memory_bytes),
                f"available memory {self.available_memory_bytes} is not from 0 to 1e24",
            ),
            (negative(self.memory_limit_bytes), f"memory limit {self.memory_limit_bytes} is not from 0 to 1e24"),
            (negative(self.cores), f"{self.cores} cores"),
            (self.sockets is not None and self.sockets < 1, f"{self.sockets} sockets"),
            (self.threads_per_core < 1, f"{self.threads_per_core} threads per core"),
            (negative(self.clock_hz), f"clock_hz {self.clock_hz} is not from 0 to 1e24"),
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
        devices = self.devices
        ids = [*(d.id for d in devices), *(n.id for n in self.nics), *(s.id for s in self.switches)]
        known = set(ids)
        host_of = {device.id: device.host for device in devices}
        unlinked = [end for link in self.links for end in (link.a, link.b) if end not in known]
        unpaired = [end for pair in self.pairs for end in (pair.a, pair.b) if end not in host_of]
        crossing = [f"{p.a} - {p.b}" for p in self.pairs if host_of.get(p.a) != host_of.get(p.b)]
        names = {host.name for host in self.hosts}
        homeless = [s.host for s in self.switches if s.host is not None and s.host not in names]
        twice = doubles((p.a, p.b) if p.a < p.b else (p.b, p.a) for p in self.pairs)
        check(
            "a topology",
            (not self.hosts, "no host"),
            *((True, f"the id {name!r} more than once") for name in doubles(ids)),
            *((True, f"the host name {name!r} more than once") for name in doubles(h.name for h in self.hosts)),
            *((True, f"a switch of the unknown host {name!r}") for name in dict.fromkeys(homeless)),
            *((True, f"a link to the unknown id {end!r}") for end in dict.fromkeys(unlinked)),
            *((True, f"a pair over the unknown id {end!r}") for end in dict.fromkeys(unpaired)),
            *((not unpaired, f"a pair between two hosts: {text}") for text in crossing),
            *((True, f"two pairs over {' - '.join(ends)}") for ends in twice),
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
        """Device ids grouped by NVLink (connected parts), in device order; a lone device is its own island.

        Pairs tell it within a host, and links to a common NVSwitch also between hosts.
        """
        own = {device.id for device in self.devices}
        joined = [(pair.a, pair.b) for pair in self.pairs if pair.is_nvlink]
        fabrics = {switch.id for switch in self.switches if switch.kind is SwitchKind.nvswitch and switch.host is None}
        first: dict[str, str] = {}
        for link in self.links if fabrics else ():
            switch, name = (link.a, link.b) if link.a in fabrics else (link.b, link.a)
            if switch in fabrics and name in own:
                joined.append((first.setdefault(switch, name), name))
        return connected([device.id for device in self.devices], joined)
