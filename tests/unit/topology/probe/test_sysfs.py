from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topology.probe.sysfs import parse_cpu_list, read_host
from topology.units import GIB, MIB

Tree = Callable[[dict[str, str]], Path]

CPU = """processor\t: {0}
model name\t: Test CPU @ 2.50GHz
cpu MHz\t\t: {1}
physical id\t: {2}
siblings\t: 4
cpu cores\t: 2
flags\t\t: fpu avx2 fma
"""
BASE = {
    "proc/sys/kernel/hostname": "box\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-15\n",
    "proc/cpuinfo": "\n".join(CPU.format(cpu, 800 + cpu * 100, cpu // 4) for cpu in range(8)),
    "proc/meminfo": f"MemTotal: {64 * MIB} kB\nMemFree: 1 kB\nMemAvailable: {60 * MIB} kB\nHugePages: 0\n",
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
}
STAT = "anon 1\ninactive_file {0}\n"


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,5", (0, 1, 2, 5)), ("3", (3,)), ("", ()), ("0-1,4-5\n", (0, 1, 4, 5))]
)
def test_cpu_lists_parse(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_a_plain_host(tree: Tree) -> None:
    host = read_host(tree(BASE))
    assert host.name.value == "box"
    # The mask names 16 CPUs, of which 8 are there.
    assert host.cpus.value == tuple(range(8))
    assert (host.memory_total_bytes.value, host.memory_available_bytes.value) == (64 * GIB, 60 * GIB)
    assert host.cpu_name.value == "Test CPU @ 2.50GHz"
    assert host.cpu_flags.value == ("fpu", "avx2", "fma")
    assert host.clock_hz.value == 1.5e9
    assert (host.sockets.value, host.threads_per_core.value) == (2, 2)
    assert [(node.node, node.cpus.value) for node in host.numa_nodes] == [(0, (0, 1, 2, 3)), (1, (4, 5, 6, 7))]
    assert {host.cpu_quota_cores.error, host.memory_limit_bytes.error} == {"UNLIMITED"}


def test_an_empty_root_gives_error_codes_only(tmp_path: Path) -> None:
    host = read_host(tmp_path, ("0000:18:00.0",))
    assert host.name.error == host.cpus.error == host.memory_total_bytes.error == host.cpu_name.error == "ENOENT"
    assert host.clock_hz.error == "ENOENT"
    assert host.pci_functions[0].numa.error == "ENOENT"
    assert (host.nics, host.numa_nodes) == ((), ())


def test_garbage_is_malformed_not_an_exception(tree: Tree) -> None:
    host = read_host(tree(BASE | {"proc/cpuinfo": "no\n", "proc/meminfo": "MemTotal: many kB\n"}))
    assert host.cpu_name.error == host.sockets.error == host.memory_total_bytes.error == "MALFORMED"


def test_the_base_clock_is_preferred_to_the_present_one(tree: Tree) -> None:
    path = "sys/devices/system/cpu/cpu0/cpufreq/base_frequency"
    host = read_host(tree(BASE | {path: "2500000\n"}))
    assert host.clock_hz.value == 2.5e9
    assert host.clock_hz.source == f"/{path}"


def v2(path: str, files: dict[str, str]) -> dict[str, str]:
    return {f"sys/fs/cgroup{path}/{name}": text for name, text in files.items()}


def test_limits_of_cgroup_v2_come_from_the_tightest_level(tree: Tree) -> None:
    own = {"memory.max": f"{8 * GIB}\n", "memory.current": f"{3 * GIB}\n", "memory.stat": STAT.format(GIB)}
    above = {"memory.max": "max\n", "memory.current": "1\n", "cpu.max": "150000 100000\n"}
    files = BASE | v2("/a/b", {**own, "cpu.max": "max 100000\n"}) | v2("/a", above) | v2("", {"cgroup.controllers": ""})
    host = read_host(tree(files | {"proc/self/cgroup": "0::/a/b\n"}))
    assert host.cpu_quota_cores.value == 1.5
    assert host.memory_limit_bytes.value == 8 * GIB
    # 8 GiB less the 2 GiB that are not droppable page cache.
    assert host.memory_headroom_bytes.value == 6 * GIB


def test_headroom_and_limit_may_come_from_different_levels(tree: Tree) -> None:
    own = {"memory.max": f"{4 * GIB}\n", "memory.current": "0\n"}
    above = {"memory.max": f"{8 * GIB}\n", "memory.current": f"{7 * GIB}\n"}
    host = read_host(tree(BASE | v2("/a/b", own) | v2("/a", above) | {"proc/self/cgroup": "0::/a/b\n"}))
    assert (host.memory_limit_bytes.value, host.memory_headroom_bytes.value) == (4 * GIB, GIB)


@pytest.mark.parametrize("cpu_names", ["cpu", "cpu,cpuacct"])
def test_limits_of_cgroup_v1(tree: Tree, cpu_names: str) -> None:
    memory, cpu = "sys/fs/cgroup/memory/job", f"sys/fs/cgroup/{cpu_names}/job"
    files = {
        "proc/self/cgroup": f"9:memory:/job\n4:{cpu_names}:/job\n0::/\n",
        f"{memory}/memory.limit_in_bytes": f"{16 * GIB}\n",
        f"{memory}/memory.usage_in_bytes": f"{10 * GIB}\n",
        f"{memory}/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{cpu}/cpu.cfs_quota_us": "200000\n",
        f"{cpu}/cpu.cfs_period_us": "100000\n",
        f"sys/fs/cgroup/{cpu_names}/cpu.cfs_quota_us": "-1\n",
    }
    host = read_host(tree(BASE | files))
    assert host.cpu_quota_cores.value == 2
    assert (host.memory_limit_bytes.value, host.memory_headroom_bytes.value) == (16 * GIB, 8 * GIB)


def test_a_container_sees_its_limit_at_the_mount(tree: Tree) -> None:
    # Without a cgroup namespace the path is the host's, which does not exist under the container's mount.
    files = {
        "proc/self/cgroup": "9:memory:/docker/abc\n4:cpu:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    host = read_host(tree(BASE | files))
    assert (host.memory_limit_bytes.value, host.cpu_quota_cores.value) == (2 * GIB, 0.5)


def nic(tree: Tree, name: str, files: dict[str, str], device: str | None) -> Any:
    """One interface whose `device` link leads to a made-up PCI function."""
    base = {f"sys/class/net/{name}/{key}": text for key, text in files.items()}
    root = tree(BASE | base | {"sys/class/net/lo/type": "772\n"})
    if device is not None:
        target = root / "sys/devices" / device
        target.mkdir(parents=True)
        (root / f"sys/class/net/{name}/device").symlink_to(target)
    return root


def test_interfaces_have_rate_node_and_address(tree: Tree) -> None:
    root = nic(tree, "eth0", {"speed": "25000\n", "type": "1\n"}, "pci0000:00/0000:3b:00.0")
    (root / "sys/devices/pci0000:00/0000:3b:00.0/numa_node").write_text("1\n")
    (found,) = read_host(root).nics
    assert (found.name, found.kind, found.bytes_per_second.value) == ("eth0", "ethernet", 25e9 / 8)
    assert (found.numa.value, found.pci.value) == (1, "0000:3b:00.0")


def test_a_virtio_interface_has_its_parents_address_and_no_speed(tree: Tree) -> None:
    (found,) = read_host(nic(tree, "eth0", {"speed": "-1\n"}, "pci0000:00/0000:00:03.0/virtio2")).nics
    assert (found.bytes_per_second.error, found.pci.value) == ("UNKNOWN_SPEED", "0000:00:03.0")


@pytest.mark.parametrize(("kind", "device"), [("1", None), ("32", "pci0000:00/0000:3b:00.0")])
def test_virtual_and_ipoib_interfaces_are_left_out(tree: Tree, kind: str, device: str | None) -> None:
    assert read_host(nic(tree, "x0", {"type": kind, "speed": "1000"}, device)).nics == ()


def test_infiniband_ports_are_nics(tree: Tree) -> None:
    ports = {
        "mlx5_0/ports/1": ("4: ACTIVE", "InfiniBand"),
        "mlx5_0/ports/2": ("1: DOWN", "InfiniBand"),
        "mlx5_1/ports/1": ("4: ACTIVE", "Ethernet"),
    }
    files = {
        f"sys/class/infiniband/{port}/{key}": text
        for port, (state, layer) in ports.items()
        for key, text in {"state": state, "link_layer": layer, "rate": "200 Gb/sec (4X HDR)\n"}.items()
    }
    nics = read_host(tree(BASE | files)).nics
    assert [(n.name, n.kind, n.bytes_per_second.value) for n in nics] == [
        ("mlx5_0", "infiniband", 25e9),
        ("mlx5_0:2", "infiniband", None),
        ("mlx5_1", "roce", 25e9),
    ]
    assert nics[1].bytes_per_second.error == "PORT_DOWN"


def test_the_node_of_a_gpu_is_read_from_its_function(tree: Tree) -> None:
    files = {f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node": node for bus, node in (("18", "1"), ("19", "-1"))}
    host = read_host(tree(BASE | files), ("0000:18:00.0", "0000:19:00.0"))
    assert [function.numa.value for function in host.pci_functions] == [1, None]
    assert host.pci_functions[1].numa.error == "NO_NODE"
