"""Whatever the files of /proc and /sys hold: nothing is raised, and no number is one that no machine has."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from re import sub
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.codec import from_json, to_json
from topology.model import Topology
from topology.probe import assemble, readings_from_json, readings_to_json
from topology.probe.readings import HostReadings, MachineReadings, NvmlReadings
from topology.probe.sysfs import read_host
from topology.reading import Reading

Tree = Callable[[dict[str, str]], Path]

WAY: Final = "sys/devices/pci0000:16/0000:16:00.0/0000:17:00.0"
NIC: Final = "sys/class/infiniband/mlx5_0"
CPU: Final = (
    "processor: {0}\nmodel name: A\nflags: fpu avx2\ncpu MHz: 2000.0\nphysical id: 0\nsiblings: 2\ncpu cores: 2"
)
FILES: Final = {
    "proc/sys/kernel/hostname": "box",
    "proc/self/status": "Cpus_allowed_list:\t0-1\n",
    "proc/cpuinfo": "\n\n".join(CPU.format(cpu) for cpu in range(2)),
    "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n",
    "proc/self/cgroup": "5:memory:/a\n4:cpu:/a\n0::/a\n",
    "sys/fs/cgroup/unified/a/cpu.max": "150000 100000",
    "sys/fs/cgroup/unified/a/memory.max": "8589934592",
    "sys/fs/cgroup/unified/a/memory.current": "1073741824",
    "sys/fs/cgroup/unified/a/memory.stat": "anon 5\ninactive_file 4096\n",
    "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000",
    "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "8589934592",
    "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1073741824",
    "sys/fs/cgroup/memory/a/memory.stat": "total_inactive_file 4096\n",
    "sys/devices/system/cpu/online": "0-1",
    "sys/devices/system/node/online": "0",
    "sys/devices/system/node/node0/cpulist": "0-1",
    "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "2500000",
    "sys/class/dmi/id/sys_vendor": "Vendor",
    "sys/class/dmi/id/product_name": "Product",
    "sys/hypervisor/type": "xen",
    "sys/class/net/eth0/speed": "25000",
    "sys/class/net/eth0/type": "1",
    "sys/class/net/eth0/operstate": "up",
    f"{NIC}/ports/1/rate": "200 Gb/sec (4X HDR)",
    f"{NIC}/ports/1/state": "4: ACTIVE",
    f"{NIC}/ports/1/link_layer": "InfiniBand",
    f"{WAY}/numa_node": "0",
    f"{WAY}/vendor": "0x10de",
    f"{WAY}/device": "0x2330",
    f"{WAY}/class": "0x030200",
    f"{WAY}/max_link_speed": "32.0 GT/s PCIe",
    f"{WAY}/max_link_width": "16",
    f"{WAY}/current_link_speed": "2.5 GT/s PCIe",
    f"{WAY}/current_link_width": "8",
}
LARGEST: Final = {
    "cpu_quota_cores": 2**20,
    "clock_hz": 1e11,
    "bytes_per_second": 1e14,
    "numa": 1023,
    "node": 1023,
    "cpus": 8191,
    "threads_per_core": 16,
    "max_speed_gt": 256,
    "speed_gt": 256,
    "max_width": 32,
    "width": 32,
}
ODD: Final = (
    *("inf", "-inf", "nan", "-5", "-1", "0", "4294967295", "18446744073709551615", "9" * 30, "9" * 400, "9" * 5000),
    *("1e400", "0x", "0xffffffffffffffff", "1_0", "\u0663", "1.5", "max", "", "\0", "a\0b", "\x1b[31m", "-", ",", ":"),
)


def no_driver() -> NvmlReadings:
    return NvmlReadings(driver_version=Reading(source="made up", error="NO_DRIVER"), unavailable="no NVIDIA driver")


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for link in ("sys/class/net/eth0/device", f"{NIC}/device", "sys/bus/pci/devices/0000:17:00.0"):
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(root / WAY)
    return root


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay(tmp_path_factory.mktemp("kernel"), FILES)


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Reading):
        yield from numbers(value.value, name)
    elif is_dataclass(value):
        for item in fields(value):
            yield from numbers(getattr(value, item.name), item.name)
    elif isinstance(value, tuple):
        for item in value:
            yield from numbers(item, name)
    elif isinstance(value, int | float):
        yield name, value


def check(host: HostReadings) -> Topology:
    for name, value in numbers(host):
        assert math.isfinite(value), name
        assert 0 <= value <= LARGEST.get(name, 2**60), name
    readings = MachineReadings(host=host, nvml=no_driver())
    assert readings_from_json(readings_to_json(readings)) == readings
    topology = assemble(readings)
    assert from_json(to_json(topology)) == topology
    return topology


def test_the_tree_of_these_tests_is_read(laid: Path) -> None:
    host = read_host(laid)
    errors = {item.name: getattr(getattr(host, item.name), "error", None) for item in fields(host)}
    assert {name for name, error in errors.items() if error} == set()
    assert host.cpu_quota_cores.value == 0.5
    assert (host.nics[0].bytes_per_second.value, host.nics[1].bytes_per_second.value) == (25e9 / 8, 25e9)
    assert host.pci_functions[0].max_width.value == 16
    check(host)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(sorted(FILES)),
        st.tuples(st.booleans(), st.sampled_from(ODD) | st.text(max_size=12) | st.integers().map(str)),
        min_size=1,
        max_size=3,
    )
)
def test_no_text_of_any_file_is_raised_or_believed_blindly(laid: Path, odd: dict[str, tuple[bool, str]]) -> None:
    for name, (is_whole, text) in odd.items():
        # Either all of the file, or each number in it.
        changed = text if is_whole else sub(r"\d+(\.\d+)?", lambda _, text=text: text, FILES[name])
        (laid / name).write_text(changed, encoding="utf-8", errors="surrogatepass")
    try:
        check(read_host(laid))
    finally:
        for name in odd:
            (laid / name).write_text(FILES[name])


CGROUP: Final = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"proc/self/cgroup": "0::/", f"{CGROUP}/cpu.max": "100000 0"}, "cpu_quota_cores"),
        ({"proc/self/cgroup": "0::/", f"{CGROUP}/cpu.max": "9" * 400 + " 1"}, "cpu_quota_cores"),
        (
            {
                "proc/self/cgroup": "4:cpu:/",
                f"{CGROUP}/cpu/cpu.cfs_quota_us": "50000",
                f"{CGROUP}/cpu/cpu.cfs_period_us": "0",
            },
            "cpu_quota_cores",
        ),
        ({"proc/meminfo": "MemTotal: -5 kB\n"}, "memory_total_bytes"),
        ({"proc/meminfo": f"MemTotal: {'9' * 24} kB\n"}, "memory_total_bytes"),
        ({"proc/cpuinfo": "processor: 0\ncpu MHz: inf\n"}, "clock_hz"),
        ({"sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "nan"}, "clock_hz"),
        ({"proc/cpuinfo": "processor: 0\nsiblings: 1000000\ncpu cores: 1\n"}, "threads_per_core"),
        ({"proc/self/status": "Cpus_allowed_list:\t5-3\n"}, "cpus"),
        ({"proc/sys/kernel/hostname": "x" * 5000}, "name"),
        ({"proc/sys/kernel/hostname": ""}, "name"),
    ],
)
def test_numbers_no_machine_has_are_error_codes(tree: Tree, files: dict[str, str], name: str) -> None:
    assert getattr(read_host(tree(files)), name).error in {"MALFORMED", "EMPTY", "ENOENT"}


@pytest.mark.parametrize(
    ("rate", "code"),
    [("inf", "MALFORMED"), ("nan", "MALFORMED"), ("-5", "MALFORMED"), ("1e400", "MALFORMED"), ("9" * 40, "MALFORMED")],
)
def test_rates_no_port_has_are_error_codes(tmp_path: Path, rate: str, code: str) -> None:
    lay(tmp_path, {**FILES, f"{NIC}/ports/1/rate": f"{rate} Gb/sec", "sys/class/net/eth0/speed": rate})
    assert [nic.bytes_per_second.error for nic in read_host(tmp_path).nics] == [code, code]


@pytest.mark.parametrize(
    ("speed", "numa", "codes"),
    [
        ("4294967295", "4294967295", ("UNKNOWN_SPEED", "NO_NODE")),
        ("-1", "-1", ("UNKNOWN_SPEED", "NO_NODE")),
        ("9" * 30, "9" * 20, ("MALFORMED", "MALFORMED")),
        ("fast", "here", ("MALFORMED", "MALFORMED")),
    ],
)
def test_minus_one_without_its_sign_is_unknown(tmp_path: Path, speed: str, numa: str, codes: tuple[str, str]) -> None:
    lay(tmp_path, {**FILES, "sys/class/net/eth0/speed": speed, f"{WAY}/numa_node": numa})
    nic = read_host(tmp_path).nics[0]
    assert (nic.bytes_per_second.error, nic.numa.error) == codes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_name_of_this_host_is_read() -> None:
    # Some kernels refuse to fill a buffer of some MiB with it.
    assert read_host(Path("/")).name.value == platform.node()


@pytest.mark.parametrize(
    ("implementer", "part", "name"),
    [
        ("0x41", "0xd4f", "Neoverse-V2"),
        ("0x41", "0xd0c", "Neoverse-N1"),
        ("0x41", "0xd49", "Neoverse-N2"),
        ("0x41", "0xd40", "Neoverse-V1"),
        ("0xc0", "0xac3", "Ampere-1"),
        ("0x99", "0x001", "aarch64 CPU"),
    ],
)
def test_arm_processors_are_named_by_their_numbers(tree: Tree, implementer: str, part: str, name: str) -> None:
    text = f"processor : 0\nFeatures : fp asimd\nCPU implementer : {implementer}\nCPU part : {part}\n"
    assert read_host(tree({"proc/cpuinfo": text})).cpu_name.value == name


def test_a_host_of_very_many_cores_is_saved_and_read_back(tree: Tree) -> None:
    lists = {"proc/self/status": "Cpus_allowed_list:\t0-2047\n", "sys/devices/system/cpu/online": "0-99999999999\n"}
    topology = check(read_host(tree({**lists, "proc/meminfo": "MemTotal: 1048576 kB\n"})))
    assert (topology.hosts[0].cores, len(topology.devices), topology.devices[0].memory_bytes) == (2048, 1024, 2**20)
