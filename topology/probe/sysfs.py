"""Raw readings of this host from /proc and /sys, under a root that tests replace by a made-up tree."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from topology.checks import normal_pci
from topology.probe.cgroup import ReadingAbsentError, cpu_quota_cores, memory_headroom_bytes, memory_limit_bytes
from topology.probe.readings import HostReadings, NicReadings, NumaReadings, PciReadings
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

P = ParamSpec("P")
V = TypeVar("V")
W = TypeVar("W")

_KIB: Final = 1024
_MEGABIT_BYTES: Final = 125_000
_IPOIB: Final = "32"
_NODES: Final = "sys/devices/system/node"


def read_host(root: Path, pci_addresses: tuple[str, ...] = ()) -> HostReadings:
    """Read this host; each reading is a value or an error code, and nothing is raised.

    `pci_addresses` are functions whose NUMA node is wanted too (the GPUs').
    """
    cpuinfo = attempt("/proc/cpuinfo", _cpuinfo, root)
    meminfo = attempt("/proc/meminfo", _meminfo, root)
    return HostReadings(
        name=attempt("/proc/sys/kernel/hostname", _text, root / "proc/sys/kernel/hostname"),
        cpus=attempt("/proc/self/status, cpu/online", _usable_cpus, root),
        cpu_quota_cores=attempt("cgroup cpu quota", cpu_quota_cores, root),
        memory_total_bytes=_then(meminfo, lambda lines: lines["MemTotal"]),
        memory_available_bytes=_then(meminfo, lambda lines: lines["MemAvailable"]),
        memory_limit_bytes=attempt("cgroup memory limit", memory_limit_bytes, root),
        memory_headroom_bytes=attempt("cgroup memory use", memory_headroom_bytes, root),
        cpu_name=_then(cpuinfo, lambda blocks: blocks[0]["model name"]),
        cpu_flags=_then(cpuinfo, lambda blocks: tuple((blocks[0].get("flags") or blocks[0]["Features"]).split())),
        clock_hz=_clock(root, cpuinfo),
        sockets=_then(cpuinfo, lambda blocks: len({block["physical id"] for block in blocks})),
        threads_per_core=_then(cpuinfo, _threads_per_core),
        numa_nodes=_numa_nodes(root),
        nics=(*_ethernet(root), *_infiniband(root)),
        pci_functions=tuple(
            PciReadings(address=address, numa=_numa_of(root, root / "sys/bus/pci/devices" / address))
            for address in pci_addresses
        ),
    )


def attempt(source: str, read: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> Reading[V]:
    """Call `read` with the rest; turn what it raises into an error code (`ENOENT`, `MALFORMED`, `UNLIMITED`)."""
    try:
        return Reading(source=source, value=read(*args, **kwargs))
    except ReadingAbsentError as absent:
        return Reading(source=source, error=absent.code)
    except OSError as error:
        return Reading(source=source, error=errno.errorcode.get(error.errno or 0, "OSERROR"))
    except (ValueError, LookupError):
        return Reading(source=source, error="MALFORMED")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list form: `0-3,8` is 0, 1, 2, 3, 8."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def _then(reading: Reading[V], pick: Callable[[V], W]) -> Reading[W]:
    if reading.value is None:
        return Reading(source=reading.source, error=reading.error)
    return attempt(reading.source, pick, reading.value)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _integer(path: Path) -> int:
    return int(_text(path))


def _cpu_list(path: Path) -> tuple[int, ...]:
    return parse_cpu_list(_text(path))


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in _text(root / "proc/cpuinfo").split("\n\n")
    ]
    # ARM ends with a block about the board, which is no processor.
    processors = [block for block in blocks if "processor" in block]
    if not processors:
        raise ValueError
    return processors


def _meminfo(root: Path) -> dict[str, int]:
    rows = (line.partition(":") for line in _text(root / "proc/meminfo").splitlines())
    return {key: int(value.split()[0]) * _KIB for key, _, value in rows if value.strip().endswith("kB")}


def _usable_cpus(root: Path) -> tuple[int, ...]:
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", _text(root / "proc/self/status"), re.MULTILINE)
    allowed = parse_cpu_list(match[1] if match else "")
    # The mask may name CPUs that could be plugged in but are not there.
    online = attempt("cpu/online", _cpu_list, root / "sys/devices/system/cpu/online").value
    usable = tuple(cpu for cpu in allowed if online is None or cpu in online)
    if not usable:
        raise ReadingAbsentError(code="NO_CPU_ALLOWED")
    return usable


def _threads_per_core(blocks: list[dict[str, str]]) -> int:
    threads, cores = int(blocks[0]["siblings"]), int(blocks[0]["cpu cores"])
    return max(1, threads // max(1, cores))


def _clock(root: Path, cpuinfo: Reading[list[dict[str, str]]]) -> Reading[float]:
    # The base clock is a property of the chip; `cpu MHz` moves with load, so its maximum is taken.
    path = "sys/devices/system/cpu/cpu0/cpufreq/base_frequency"
    base = attempt(f"/{path}", lambda: float(_text(root / path)) * 1e3)
    if base.error is None:
        return base
    return _then(cpuinfo, lambda blocks: max(float(block["cpu MHz"]) for block in blocks) * 1e6)


def _numa_nodes(root: Path) -> tuple[NumaReadings, ...]:
    nodes = attempt("node", _cpu_list, root / _NODES / "online").value or ()
    return tuple(
        NumaReadings(
            node=node,
            cpus=attempt(f"/{_NODES}/node{node}/cpulist", _cpu_list, root / _NODES / f"node{node}/cpulist"),
        )
        for node in nodes
    )


def _ethernet(root: Path) -> list[NicReadings]:
    base = root / "sys/class/net"
    found = attempt("net", lambda: sorted(path.name for path in base.iterdir())).value or []
    nics = []
    for name in found:
        path = base / name
        # Loopback, bridges and container ends have no device behind them; IPoIB is listed as infiniband.
        is_ipoib = attempt("type", _text, path / "type").value == _IPOIB
        if (path / "device").exists() and not is_ipoib:
            rate = attempt(f"/sys/class/net/{name}/speed", _ethernet_rate, path)
            nics.append(_nic(root, path / "device", name, "ethernet", rate))
    return nics


def _ethernet_rate(path: Path) -> float:
    speed = int(_text(path / "speed"))
    if speed <= 0:
        raise ReadingAbsentError(code="UNKNOWN_SPEED")
    return float(speed * _MEGABIT_BYTES)


def _infiniband(root: Path) -> list[NicReadings]:
    base = root / "sys/class/infiniband"
    ports = attempt("infiniband", lambda: sorted(base.glob("*/ports/*"))).value or []
    nics = []
    for port in ports:
        device, number = port.parent.parent, port.name
        # NCCL_IB_HCA writes ports beyond the first as NAME:PORT.
        name = device.name if number == "1" else f"{device.name}:{number}"
        layer = attempt("link_layer", _text, port / "link_layer").value
        rate = attempt(f"/sys/class/infiniband/{device.name}/ports/{number}/rate", _infiniband_rate, port)
        nics.append(_nic(root, device / "device", name, "roce" if layer == "Ethernet" else "infiniband", rate))
    return nics


def _infiniband_rate(port: Path) -> float:
    # "4: ACTIVE" and "200 Gb/sec (4X HDR)".
    if "ACTIVE" not in _text(port / "state"):
        raise ReadingAbsentError(code="PORT_DOWN")
    return float(_text(port / "rate").split()[0]) * 1e9 / 8


def _nic(root: Path, device: Path, name: str, kind: str, rate: Reading[float]) -> NicReadings:
    pci = attempt(f"{name}/device", _pci_of, device)
    return NicReadings(name=name, kind=kind, bytes_per_second=rate, numa=_numa_of(root, device), pci=pci)


def _pci_of(device: Path) -> str:
    # Behind virtio or USB the PCI function is an ancestor of the device: the nearest one counts.
    for part in reversed(device.resolve().parts):
        address = normal_pci(part) if ":" in part and "." in part else None
        if address:
            return address
    raise ReadingAbsentError(code="NO_PCI")


def _numa_of(root: Path, device: Path) -> Reading[int]:
    path = device / "numa_node"
    source = f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)
    node = attempt(source, _integer, path)
    # The kernel writes -1 where the firmware does not say.
    return Reading(source=source, error="NO_NODE") if node.value is not None and node.value < 0 else node
