"""Reading a made-up root directory, and the real one of this machine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.doctor.read_limits import AbsentError, attempt, read_container, read_limits
from orchestrator.doctor.read_packages import read_packages
from orchestrator.doctor.read_pci import acs_control, read_fabric_manager, read_pci
from topology.reading import Reading

Tree = Callable[[dict[str, str | bytes]], Path]
NO_GPUS: Reading[tuple[str, ...]] = Reading(source="bus", value=())


def config(*capabilities: tuple[int, int]) -> bytes:
    """Configuration space with extended capabilities (id, control) chained from 0x100 on."""
    space = bytearray(4096)
    for number, (identity, control) in enumerate(capabilities):
        at = 0x100 + 16 * number
        after = at + 16 if number + 1 < len(capabilities) else 0
        struct.pack_into("<I", space, at, identity | 1 << 16 | after << 20)
        struct.pack_into("<HH", space, at + 4, 0x5F, control)
    return bytes(space)


def test_the_acs_register_is_found_in_the_chain() -> None:
    assert acs_control(config((0x0001, 0), (0x000D, 0x1D), (0x0019, 0))) == 0x1D


@pytest.mark.parametrize(
    ("space", "code"),
    [
        (b"\0" * 64, "NEEDS_ROOT"),
        (b"\0" * 256, "NO_EXTENDED_CONFIG"),
        (config((0x0001, 0)), "NO_ACS"),
        (b"\xff" * 4096, "NO_ACS"),
    ],
)
def test_without_the_register_the_reason_is_told(space: bytes, code: str) -> None:
    with pytest.raises(AbsentError) as absent:
        acs_control(space)
    assert absent.value.code == code


@given(st.binary(min_size=0, max_size=64), st.lists(st.integers(0, 4095), max_size=8))
def test_broken_configuration_spaces_end(start: bytes, links: list[int]) -> None:
    space = bytearray(4096)
    space[0x100 : 0x100 + len(start)] = start
    for number, link in enumerate(links):
        struct.pack_into("<I", space, 0x100 + 4 * number, 0x0002 | link << 20)
    reading = attempt("config", lambda: acs_control(bytes(space)))
    assert reading.error in {None, "NO_ACS"}


def test_ports_groups_and_switches(tree: Tree) -> None:
    devices = "sys/bus/pci/devices"
    root = tree(
        {
            f"{devices}/0000:01:00.0/config": config((0x000D, 0x0C)),
            f"{devices}/0000:10:00.0/iommu_group/type": "DMA-FQ\n",
            f"{devices}/0000:05:00.0/vendor": "0x10de\n",
            f"{devices}/0000:05:00.0/class": "0x068000\n",
            f"{devices}/0000:06:00.0/vendor": "0x8086\n",
            f"{devices}/0000:06:00.0/class": "0x068000\n",
            "sys/class/iommu/dmar0/x": "",
            "proc/7/comm": "nv-fabricmanage\n",
            "proc/meminfo": "",
        }
    )
    pci = read_pci(root, ["0000:10:00.0", "0000:11:00.0"], ["0000:01:00.0", "0000:01:00.0", "0000:02:00.0"])
    assert [(port.address, port.acs_control.value, port.acs_control.error) for port in pci.bridges] == [
        ("0000:01:00.0", 0x0C, None),
        ("0000:02:00.0", None, "ENOENT"),
    ]
    assert [(kind.value, kind.error) for _, kind in pci.iommu_types] == [("DMA-FQ", None), (None, "ENOENT")]
    assert pci.has_iommu.value is True
    manager = read_fabric_manager(root, wanted=False)
    assert (manager.running.value, manager.switches.value) == (True, ("0000:05:00.0",))
    assert manager.version.error == "NOT_ASKED"


def test_an_empty_root_gives_codes_and_no_exception(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    assert (limits.shm_total_bytes.error, limits.shm_free_bytes.error) == ("ENOENT", "ENOENT")
    container = read_container(tmp_path, {}, NO_GPUS)
    assert (container.marks, container.driver_gpus.error, container.device_files.error) == ((), "ENOENT", "ENOENT")
    assert read_pci(tmp_path, (), ()).has_iommu.error == "ENOENT"
    manager = read_fabric_manager(tmp_path, wanted=False)
    assert (manager.running.error, manager.switches.error) == ("ENOENT", "ENOENT")


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/job/step\n", {"job/pids.max": "900\n", "job/step/pids.max": "max\n"}, 900),
        ("0::/job\n", {"job/pids.max": "900\n", "pids.max": "100\n"}, 100),
        ("5:pids:/job\n0::/\n", {"pids/job/pids.max": "77\n"}, 77),
    ],
)
def test_the_tightest_group_holds(tree: Tree, groups: str, files: dict[str, str], limit: int) -> None:
    paths: dict[str, str | bytes] = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    found = read_limits(tree({"proc/self/cgroup": groups, **paths})).pids
    assert found.value is not None
    assert found.value <= limit


def test_a_container_is_known_by_its_marks(tree: Tree) -> None:
    root = tree(
        {
            ".dockerenv": "",
            "proc/self/cgroup": "0::/kubepods/pod1\n",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            "dev/null": "",
            "dev/infiniband/uverbs0": "",
            "proc/driver/nvidia/gpus/0000:10:00.0/information": "",
            "sys/class/infiniband/mlx5_0/node_type": "",
        }
    )
    found = read_container(root, {"NVIDIA_VISIBLE_DEVICES": "all", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, NO_GPUS)
    assert found.marks == ("/.dockerenv", "control group of kubepods", "KUBERNETES_SERVICE_HOST is set")
    assert found.device_files.value == ("/dev/nvidia0", "/dev/nvidiactl")
    assert found.driver_gpus.value == ("0000:10:00.0",)
    assert (found.rdma_files.value, found.rdma_devices.value) == (("uverbs0",), ("mlx5_0",))
    assert (found.visible, found.is_wsl) == ("all", False)


def test_the_installed_stack_is_read_without_importing_it() -> None:
    packages = read_packages({"BNB_CUDA_VERSION": "126"})
    versions = dict(packages.versions)
    assert {"torch", "transformers", "peft", "bitsandbytes"} <= versions.keys()
    assert any(owner == "transformers" and line.startswith("tokenizers") for owner, line in packages.requirements)
    assert packages.torch_cuda.error == "CPU_BUILD" or "." in str(packages.torch_cuda.value)
    assert packages.bnb_cuda.value
    assert all("." in version for version in packages.bnb_cuda.value)
    assert packages.bnb_override == "126"
