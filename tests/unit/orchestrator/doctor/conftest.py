"""Hand-made evidence of a healthy machine, so that every test says only what is special about its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.doctor.evidence import (
    BridgeEvidence,
    ContainerEvidence,
    FabricManagerEvidence,
    GpuEvidence,
    HealthEvidence,
    LimitEvidence,
    LoadEvidence,
    MachineEvidence,
    NicEvidence,
    NvlinkEvidence,
    PackageEvidence,
    PairEvidence,
    PcieEvidence,
    PciEvidence,
)
from topology.reading import Reading
from topology.units import GIB


def ok(value: Any) -> Reading[Any]:
    return Reading(source="made up", value=value)


def bad(code: str = "NOT_SUPPORTED") -> Reading[Any]:
    return Reading(source="made up", error=code)


def make_pcie(**changes: Any) -> PcieEvidence:
    pcie = PcieEvidence(card_generation=ok(4), card_width=ok(16), slot_generation=ok(4), slot_width=ok(16))
    return replace(pcie, **changes)


def make_health(**changes: Any) -> HealthEvidence:
    health = HealthEvidence(
        event_reasons=ok(0),
        remap_pending=ok(0),
        remap_failed=ok(0),
        retired_pending=bad(),
        ecc_now=ok(1),
        ecc_pending=ok(1),
    )
    return replace(health, **changes)


def make_nvlink(*states: int, fabric: Reading[int] | None = None) -> NvlinkEvidence:
    return NvlinkEvidence(ports=tuple(ok(state) for state in states), fabric_state=fabric or bad())


def make_gpu(number: int = 0, **changes: Any) -> GpuEvidence:
    gpu = GpuEvidence(
        id=f"GPU-{number}",
        name="NVIDIA A100-PCIE-40GB",
        pci=f"0000:{0x10 + number:02x}:00.0",
        is_visible=True,
        capability=ok((8, 0)),
        memory_free_bytes=ok(39 * GIB),
        numa=ok(0),
        cpus=ok((0, 1, 2, 3)),
        bridges=ok((f"0000:0{number}:01.0", "0000:00:01.0")),
        pcie=make_pcie(),
        nvlink=make_nvlink(),
        health=make_health(),
    )
    return replace(gpu, **changes)


def make_machine(
    *gpus: GpuEvidence, p2p: int = 0, level: int = 10, is_linked: bool | None = False, **changes: Any
) -> MachineEvidence:
    pairs = tuple(
        PairEvidence(a=a.id, b=b.id, level=ok(level), p2p=ok(p2p), is_linked=is_linked)
        for at, a in enumerate(gpus)
        for b in gpus[at + 1 :]
    )
    machine = MachineEvidence(
        driver=ok("580.95.05"),
        unavailable=None if gpus else "no NVIDIA driver: libnvidia-ml.so.1 not found",
        visible_devices=None,
        gpus=gpus,
        pairs=pairs,
        cpus=ok((0, 1, 2, 3)),
        memory_limit_bytes=bad("UNLIMITED"),
        memory_headroom_bytes=bad("UNLIMITED"),
        is_virtual=ok(value=False),
    )
    return replace(machine, **changes)


def make_limits(**changes: Any) -> LimitEvidence:
    limits = LimitEvidence(
        shm_total_bytes=ok(64 * GIB),
        shm_free_bytes=ok(60 * GIB),
        memlock_bytes=bad("UNLIMITED"),
        open_files=ok(65536),
        open_files_hard=ok(1_048_576),
        pids=bad("UNLIMITED"),
    )
    return replace(limits, **changes)


def make_container(**changes: Any) -> ContainerEvidence:
    container = ContainerEvidence(
        bus_gpus=ok(()), driver_gpus=bad("ENOENT"), device_files=ok(()), rdma_files=bad("ENOENT"), rdma_devices=ok(())
    )
    return replace(container, **changes)


def make_packages(**changes: Any) -> PackageEvidence:
    """`versions` as a dict is laid over a stack that works."""
    stack = {
        "torch": "2.13.0",
        "transformers": "5.24.0",
        "trl": "1.16.0",
        "peft": "0.21.2",
        "accelerate": "1.15.0",
        "bitsandbytes": "0.50.2",
        "deepspeed": "0.19.8",
        "numpy": "2.3.0",
        "nvidia-nccl-cu13": "2.31.2",
    }
    versions = {**stack, **changes.pop("versions", {})}
    packages = PackageEvidence(
        versions=tuple((name, version) for name, version in versions.items() if version is not None),
        torch_cuda=ok("13.0"),
        bnb_cuda=ok(("12.8", "13.0")),
    )
    return replace(packages, **changes)


def make_load(
    number: int = 0, generation: int = 4, width: int = 16, rate: float = 26e9, **changes: Any
) -> LoadEvidence:
    load = LoadEvidence(
        gpu=f"GPU-{number}",
        bytes_per_second=rate,
        generations=(1, generation, generation, generation),
        widths=(width,) * 4,
        event_reasons=(0,) * 4,
        archs=("sm_80", "sm_90"),
    )
    return replace(load, **changes)


def make_pci(*controls: tuple[str, Reading[int]], iommu: str = "identity", gpus: int = 2) -> PciEvidence:
    return PciEvidence(
        bridges=tuple(BridgeEvidence(address=address, acs_control=control) for address, control in controls),
        iommu_types=tuple((f"0000:{0x10 + number:02x}:00.0", ok(iommu)) for number in range(gpus)),
        has_iommu=ok(value=True),
    )


def make_manager(**changes: Any) -> FabricManagerEvidence:
    manager = FabricManagerEvidence(running=ok(value=True), version=bad("NOT_INSTALLED"), switches=ok(()))
    return replace(manager, **changes)


def make_nic(name: str, numa: int | None, kind: str = "infiniband") -> NicEvidence:
    return NicEvidence(name=name, kind=kind, numa=bad("NO_NODE") if numa is None else ok(numa))


class Made:
    """The builders, as one fixture: test directories are no packages to import from."""

    ok = staticmethod(ok)
    bad = staticmethod(bad)
    pcie = staticmethod(make_pcie)
    health = staticmethod(make_health)
    nvlink = staticmethod(make_nvlink)
    gpu = staticmethod(make_gpu)
    machine = staticmethod(make_machine)
    limits = staticmethod(make_limits)
    container = staticmethod(make_container)
    packages = staticmethod(make_packages)
    load = staticmethod(make_load)
    pci = staticmethod(make_pci)
    manager = staticmethod(make_manager)
    nic = staticmethod(make_nic)

    @staticmethod
    def found(findings: Any) -> list[tuple[str, str]]:
        """Check and severity of each finding, what passed left out."""
        return [(item.check, item.severity.value) for item in findings if item.severity.value != "ok"]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """Write a made-up root directory; parents are made as needed."""

    def write(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write
