"""Raw readings of this host from /proc and /sys, under a root that tests replace by a made-up tree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.probe.cgroup import ReadingAbsentError, cpu_quota_cores, memory_headroom_bytes, memory_limit_bytes
from topology.probe.host_readings import HostReadings, NumaReadings
from topology.probe.kernel_files import attempt, read_text, read_word, then
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


def read_host(root: Path, pci_addresses: tuple[str, ...] = ()) -> HostReadings:
    """Read this host; each reading is a value or an error code, and nothing is raised.

    `pci_addresses` are functions whose place is wanted too (the GPUs'); NVIDIA GPUs on the bus and NICs are found.
    """
    cpuinfo = attempt("/proc/cpuinfo", _cpuinfo, root)
    meminfo = attempt("/proc/meminfo", _meminfo, root)
    nics = read_nics(root)
    nic_addresses = (nic.pci.value for nic in nics if nic.pci.value is not None)
    return HostReadings(
        name=attempt("/proc/sys/kernel/hostname", read_text, root / "proc/sys/kernel/hostname"),
        cpus=attempt("/proc/self/status, cpu/online", _usable_cpus, root),
        cpu_quota_cores=attempt("cgroup cpu quota", cpu_quota_cores, root),
        memory_total_bytes=then(meminfo, lambda lines: lines["MemTotal"]),
        memory_available_bytes=then(meminfo, lambda lines: lines["MemAvailable"]),
        memory_limit_bytes=attempt("cgroup memory limit", memory_limit_bytes, root),
        memory_headroom_bytes=attempt("cgroup memory use", memory_headroom_bytes, root),
        cpu_name=then(cpuinfo, lambda blocks: blocks[0]["model name"]),
        cpu_flags=then(cpuinfo, lambda blocks: tuple((blocks[0].get("flags") or blocks[0]["Features"]).split())),
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
    """Parse the kernel's list form: `0-3,8` is 0, 1, 2, 3, 8."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), min(int(last or first), _MAX_CPU) + 1))
    return tuple(cpus)


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


def _meminfo(root: Path) -> dict[str, int]:
    rows = (line.partition(":") for line in read_text(root / "proc/meminfo").splitlines())
    return {key: int(value.split()[0]) * _KIB for key, _, value in rows if value.strip().endswith("kB")}


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
    threads, cores = int(blocks[0]["siblings"]), int(blocks[0]["cpu cores"])
    return max(1, threads // max(1, cores))


def _clock(root: Path, cpuinfo: Reading[list[dict[str, str]]]) -> Reading[float]:
    # The base clock is a property of the chip; `cpu MHz` moves with load, so its maximum is taken.
    path = "sys/devices/system/cpu/cpu0/cpufreq/base_frequency"
    base = attempt(f"/{path}", lambda: float(read_text(root / path)) * 1e3)
    if base.error is None:
        return base
    return then(cpuinfo, lambda blocks: max(float(block["cpu MHz"]) for block in blocks) * 1e6)


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
    )
