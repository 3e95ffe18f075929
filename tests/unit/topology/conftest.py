"""Hand-made readings, so that every test says only what is special about its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from topology.probe.readings import (
    AncestorReadings,
    GpuReadings,
    HostReadings,
    MachineReadings,
    MigReadings,
    NumaReadings,
    NvlinkReadings,
    NvmlReadings,
)
from topology.reading import Reading
from topology.units import GIB


def ok(value: Any) -> Reading[Any]:
    return Reading(source="made up", value=value)


def bad(code: str) -> Reading[Any]:
    return Reading(source="made up", error=code)


def make_host(**changes: Any) -> HostReadings:
    host = HostReadings(
        name=ok("box"),
        cpus=ok((0, 1, 2, 3)),
        cpu_quota_cores=bad("UNLIMITED"),
        memory_total_bytes=ok(64 * GIB),
        memory_available_bytes=ok(60 * GIB),
        memory_limit_bytes=bad("UNLIMITED"),
        memory_headroom_bytes=bad("UNLIMITED"),
        cpu_name=ok("Test CPU"),
        cpu_flags=ok(("fpu", "avx2", "fma")),
        clock_hz=ok(3e9),
        sockets=ok(1),
        threads_per_core=ok(1),
        numa_nodes=(NumaReadings(node=0, cpus=ok((0, 1))), NumaReadings(node=1, cpus=ok((2, 3)))),
    )
    return replace(host, **changes)


def make_link(link: int, remote: str, *, to_switch: bool = False, version: int = 4, **changes: Any) -> NvlinkReadings:
    kind = 2 if to_switch else 0
    made = NvlinkReadings(link=link, state=ok(1), version=ok(version), remote_pci=ok(remote), remote_type=ok(kind))
    return replace(made, **changes)


def make_gpu(index: int, **changes: Any) -> GpuReadings:
    gpu = GpuReadings(
        index=index,
        uuid=ok(f"GPU-{index}aaaaaaa-0000-0000-0000-000000000000"),
        name=ok("NVIDIA A100-SXM4-80GB"),
        pci=ok(pci(index)),
        memory_total_bytes=ok(80 * GIB),
        memory_free_bytes=ok(79 * GIB),
        compute_capability=ok((8, 0)),
        numa=bad("NOT_SUPPORTED"),
        cpus=ok((2, 3)),
    )
    return replace(gpu, **changes)


def make_mig(slot: int, **changes: Any) -> MigReadings:
    made = MigReadings(
        slot=slot,
        uuid=ok(f"MIG-{slot}aaaaaaa-0000-0000-0000-000000000000"),
        name=ok("NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        memory_total_bytes=ok(10 * GIB),
        memory_free_bytes=ok(9 * GIB),
        gpu_instance=ok(slot + 1),
        compute_instance=ok(0),
        num_multiprocessors=ok(14),
    )
    return replace(made, **changes)


def pci(index: int) -> str:
    return f"0000:{0x10 + index:02x}:00.0"


def make_nvml(*gpus: GpuReadings, level: int = 40, **changes: Any) -> NvmlReadings:
    ancestors = tuple(
        AncestorReadings(a_index=a.index, b_index=b.index, level=ok(level))
        for b in gpus
        for a in gpus
        if a.index < b.index
    )
    return replace(NvmlReadings(driver_version=ok("570.1"), gpus=gpus, ancestors=ancestors), **changes)


def make_machine(nvml: NvmlReadings, **host: Any) -> MachineReadings:
    return MachineReadings(host=make_host(**host), nvml=nvml)


class Made:
    """The builders, as one fixture: test directories are no packages to import from."""

    ok = staticmethod(ok)
    bad = staticmethod(bad)
    host = staticmethod(make_host)
    link = staticmethod(make_link)
    gpu = staticmethod(make_gpu)
    mig = staticmethod(make_mig)
    nvml = staticmethod(make_nvml)
    machine = staticmethod(make_machine)
    pci = staticmethod(pci)


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def tree(tmp_path: Any) -> Callable[[dict[str, str]], Any]:
    """Write a made-up root directory; parents are made as needed."""

    def write(files: dict[str, str]) -> Any:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
