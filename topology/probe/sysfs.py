"""Raw readings of this host from /proc and /sys, under a root that tests replace by a made-up tree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.probe.cgroup import cpu_quota_cores, memory_headroom_bytes, memory_limit_bytes
from topology.probe.cpu_names import cpu_name
from topology.probe.host_readings import MAX_NODE, HostReadings, NumaReadings
from topology.probe.kernel_files import attempt, read_text, read_word, then
from topology.probe.kernel_values import ReadingAbsentError, positive, whole
from topology.probe.nics import read_nics
from topology.probe.pci import nvidia_functions, read_functions
from topology.reading import Reading

if TYPE_CHECKING:
    from pathlib import Path

_KIB: Final = 1024
_DMI: Final = "sys/class/dmi/id"
_DEVICE_TREE_MODEL: Final = "proc/device-tree/model"
_NODES: Final = "sys/devices/system/node"
_MAX_CPU: Final = 8191  # of the largest kernels
_MAX_DIGITS: Final = 2**64
_MAX_KIB: Final = 2**50
_MAX_THREADS: Final = 16  # of one core: twice what the widest has
_MAX_HZ: Final = 1e11
_MAX_FLAGS: Final = 4096


def read_host(root: Path, pci_addresses: tuple[str, ...] = ()) -> HostReadings:
    """Read this host; each reading is a value or an error code, and nothing is raised.

    `pci_addresses` are functions whose place is wanted too (the GPUs'); NVIDIA GPUs on the bus and NICs are found.
    """
    cpuinfo = attempt("/proc/cpuinfo", _cpuinfo, root)
    meminfo = attempt("/proc/meminfo", _meminfo, root)
    nics = read_nics(root)
    nic_addresses = (nic.pci.value for nic in nics if nic.pci.value is not None)
    return HostReadings(
        name=attempt("/proc/sys/kernel/hostname", read_word, root / "proc/sys/kernel/hostname"),
        cpus=attempt("/proc/self/status, cpu/online", _usable_cpus, root),
        cpu_quota_cores=attempt("cgroup cpu quota", cpu_quota_cores, root),
        memory_total_bytes=then(meminfo, lambda lines: _bytes(lines["MemTotal"], least=1)),
        memory_available_bytes=then(meminfo, lambda lines: _bytes(lines["MemAvailable"], least=0)),
        memory_limit_bytes=attempt("cgroup memory limit", memory_limit_bytes, root),
        memory_headroom_bytes=attempt("cgroup memory use", memory_headroom_bytes, root),
        cpu_name=then(cpuinfo, lambda blocks: cpu_name(blocks[0])),
        cpu_flags=then(cpuinfo, lambda blocks: _flags(blocks[0])),
        clock_hz=_clock(root, cpuinfo),
        sockets=then(cpuinfo, lambda blocks: len({block["physical id"] for block in blocks})),
        threads_per_core=then(cpuinfo, _threads_per_core),
        numa_nodes=_numa_nodes(root),
        nics=nics,
        pci_functions=read_functions(root, (*pci_addresses, *nvidia_functions(root), *nic_addresses)),
        system_vendor=attempt(f"/{_DMI}/sys_vendor", read_word, root / _DMI / "sys_vendor"),
        product_name=_product_name(root),
        hypervisor=attempt("/sys/hypervisor/type", read_word, root / "sys/hypervisor/type"),
    )


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list form: `0-3,8` is 0, 1, 2, 3, 8; what is beyond the largest kernels is left out.

    Raises:
        ValueError: if it is no such list.

    """
    cpus: set[int] = set()
    parts = [part for part in text.strip().split(",") if part]
    if len(parts) > _MAX_CPU:
        raise ValueError
    for part in parts:
        start, _, end = part.partition("-")
        first = whole(start, most=_MAX_DIGITS)
        cpus.update(range(first, min(whole(end or start, least=first, most=_MAX_DIGITS), _MAX_CPU) + 1))
    return tuple(sorted(cpus))


def _cpu_list(path: Path) -> tuple[int, ...]:
    return parse_cpu_list(read_text(path))


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in read_text(root / "proc/cpuinfo").split("\n\n")
    ]
    # ARM ends with a block about the board, which is no processor.
    processors = [block for block in blocks if "processor" in block]
    if not processors:
        raise ValueError
    return processors


def _meminfo(root: Path) -> dict[str, str]:
    rows = (line.partition(":") for line in read_text(root / "proc/meminfo").splitlines())
    return {key: value for key, _, value in rows if value.strip().endswith("kB")}


def _bytes(text: str, *, least: int) -> int:
    return whole(text.split(maxsplit=1)[0], least=least, most=_MAX_KIB) * _KIB


def _flags(block: dict[str, str]) -> tuple[str, ...]:
    flags = tuple((block.get("flags") or block["Features"]).split())
    if len(flags) > _MAX_FLAGS:
        raise ValueError
    return flags


def _usable_cpus(root: Path) -> tuple[int, ...]:
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", read_text(root / "proc/self/status"), re.MULTILINE)
    allowed = parse_cpu_list(match[1] if match else "")
    # The mask may name CPUs that could be plugged in but are not there.
    online = attempt("cpu/online", _cpu_list, root / "sys/devices/system/cpu/online").value
    usable = allowed if online is None else tuple(sorted(set(allowed).intersection(online)))
    if not usable:
        raise ReadingAbsentError(code="NO_CPU_ALLOWED")
    return usable


def _threads_per_core(blocks: list[dict[str, str]]) -> int:
    threads, cores = (whole(blocks[0][key], most=_MAX_CPU + 1) for key in ("siblings", "cpu cores"))
    per_core = max(1, threads // max(1, cores))
    if per_core > _MAX_THREADS:
        raise ValueError
    return per_core


def _clock(root: Path, cpuinfo: Reading[list[dict[str, str]]]) -> Reading[float]:
    # The base clock is a property of the chip; `cpu MHz` moves with load, so its maximum is taken.
    path = "sys/devices/system/cpu/cpu0/cpufreq/base_frequency"
    base = attempt(f"/{path}", lambda: positive(read_text(root / path), most=_MAX_HZ / 1e3) * 1e3)
    if base.error is None:
        return base
    return then(cpuinfo, lambda blocks: max(positive(block["cpu MHz"], most=_MAX_HZ / 1e6) for block in blocks) * 1e6)


def _product_name(root: Path) -> Reading[str]:
    # ARM boards without this firmware have a device tree instead.
    named = attempt(f"/{_DMI}/product_name", read_word, root / _DMI / "product_name")
    board = attempt(f"/{_DEVICE_TREE_MODEL}", lambda: read_word(root / _DEVICE_TREE_MODEL).strip("\0"))
    return board if named.value is None and board.value is not None else named


def _numa_nodes(root: Path) -> tuple[NumaReadings, ...]:
    nodes = attempt("node", _cpu_list, root / _NODES / "online").value or ()
    return tuple(
        NumaReadings(
            node=node,
            cpus=attempt(f"/{_NODES}/node{node}/cpulist", _cpu_list, root / _NODES / f"node{node}/cpulist"),
        )
        for node in nodes
        if node <= MAX_NODE
    )
