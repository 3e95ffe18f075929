"""What the checks judge: small frozen values, each reading a value or the code of what came instead.

The checks know nothing of NVML or sysfs; `adapt` and the `read_*` modules fill these in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from topology.reading import Reading

# Bounds of what a PCIe link can be, with room for generations to come.
MOST_GENERATION: Final = 15
MOST_LANES: Final = 32


def unknown(source: str, code: str) -> Reading[int]:
    """A reading that was not taken, for a field that has no other default."""
    return Reading(source=source, error=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieEvidence:
    """The PCIe link of one GPU. Speeds as generation (3: 8 GT/s), widths in lanes.

    `card_*` is what the card can do, `slot_*` what the port above it can do.
    """

    card_generation: Reading[int]
    card_width: Reading[int]
    slot_generation: Reading[int]
    slot_width: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkEvidence:
    """The NVLink ports of one GPU: NVML's state of each (1: active), and the fabric's state (3: completed)."""

    ports: tuple[Reading[int], ...] = ()
    fabric_state: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvidence:
    """Clocks and memory of one GPU. `event_reasons` is NVML's bit mask; the flags are 0 or 1."""

    event_reasons: Reading[int]
    remap_pending: Reading[int]
    remap_failed: Reading[int]
    retired_pending: Reading[int]
    ecc_now: Reading[int]
    ecc_pending: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One GPU; `id` is its UUID, else its PCI address.

    `numa` is the node of its slot, `bridges` are the PCI addresses of the ports above it, nearest first. `lost` says
    how it was found that it does not answer any more, or is None. `mig`: it is cut into MIG devices; `slices` are the
    UUIDs of those that CUDA may use. `memory_fault` says what is impossible about its memory readings, or is None.
    """

    id: str
    name: str
    pci: str | None
    is_visible: bool
    capability: Reading[tuple[int, int]]
    memory_free_bytes: Reading[int]
    numa: Reading[int]
    cpus: Reading[tuple[int, ...]]
    bridges: Reading[tuple[str, ...]]
    lost: str | None = None
    mig: bool = False
    slices: tuple[str, ...] = ()
    memory_fault: str | None = None
    pcie: PcieEvidence
    nvlink: NvlinkEvidence
    health: HealthEvidence

    @property
    def label(self) -> str:
        """How a finding names it: name and address, never an index."""
        return f"{self.name} {self.pci or self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """Two GPUs, by id: NVML's level of their common ancestor and its P2P status for reads (0: OK).

    `is_linked`: whether NVLink joins them, directly or over NVSwitches; None where the far ends are unknown.
    """

    a: str
    b: str
    level: Reading[int]
    p2p: Reading[int]
    is_linked: bool | None = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NicEvidence:
    """One network port; `kind` is ethernet, infiniband or roce."""

    name: str
    kind: str
    numa: Reading[int]

    @property
    def is_rdma(self) -> bool:
        """Whether collectives can use it without the CPU."""
        return self.kind in {"infiniband", "roce"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEvidence:
    """The machine as the checks see it. `unavailable` says why NVML shows nothing, or is None.

    `visibility` is what is worth telling about CUDA_VISIBLE_DEVICES.
    """

    driver: Reading[str]
    unavailable: str | None
    visible_devices: str | None
    visibility: tuple[str, ...] = ()
    gpus: tuple[GpuEvidence, ...] = ()
    pairs: tuple[PairEvidence, ...] = ()
    nics: tuple[NicEvidence, ...] = ()
    cpus: Reading[tuple[int, ...]]
    memory_limit_bytes: Reading[int]
    memory_headroom_bytes: Reading[int]
    is_virtual: Reading[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeEvidence:
    """One PCI port above a GPU, and its ACS control register."""

    address: str
    acs_control: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciEvidence:
    """What peer-to-peer traffic meets on its way.

    `iommu_types` maps a GPU's PCI address to the type of its IOMMU group (`identity`, `DMA`, `DMA-FQ`).
    """

    bridges: tuple[BridgeEvidence, ...] = ()
    iommu_types: tuple[tuple[str, Reading[str]], ...] = ()
    has_iommu: Reading[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """Limits of this process. The error code UNLIMITED stands for no limit. Sizes in bytes, the others counts."""

    shm_total_bytes: Reading[int]
    shm_free_bytes: Reading[int]
    memlock_bytes: Reading[int]
    open_files: Reading[int]
    open_files_hard: Reading[int]
    pids: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEvidence:
    """What there is of GPUs and NICs for the kernel, and what of it has a device file here.

    `marks` are the signs of a container. PCI addresses for `bus_gpus` and `driver_gpus`, paths for the files.
    """

    marks: tuple[str, ...] = ()
    bus_gpus: Reading[tuple[str, ...]]
    driver_gpus: Reading[tuple[str, ...]]
    device_files: Reading[tuple[str, ...]]
    rdma_files: Reading[tuple[str, ...]]
    rdma_devices: Reading[tuple[str, ...]]
    visible: str | None = None
    is_wsl: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricManagerEvidence:
    """The fabric manager and the NVSwitches on the PCI bus. `version` is the installed program's."""

    running: Reading[bool]
    version: Reading[str]
    switches: Reading[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageEvidence:
    """Installed packages, without importing any.

    `requirements` are (package, requirement line). `bnb_cuda` are the CUDA versions bitsandbytes ships a library
    for. `torch_cuda` is what torch was built for; the error code CPU_BUILD means it has no CUDA.
    """

    versions: tuple[tuple[str, str], ...] = ()
    requirements: tuple[tuple[str, str], ...] = ()
    torch_cuda: Reading[str]
    bnb_cuda: Reading[tuple[str, ...]]
    bnb_override: str | None = None
    machine: str = "x86_64"


class NoLoad(StrEnum):
    """Why there is no measurement of a GPU."""

    SWITCHED_OFF = "switched off"  # by load=false
    HIDDEN = "hidden"  # by CUDA_VISIBLE_DEVICES
    LOST = "lost"
    UNNAMED = "unnamed"  # CUDA can be told to use a GPU by its UUID only
    UNCUT = "uncut"  # MIG is on, and there is no MIG device
    NO_TORCH = "no torch"  # or one without CUDA
    BUSY = "busy"  # its memory, or the whole GPU, belongs to others now
    NOT_TRIED = "not tried"  # after a failure that would come again
    TORCH_FAILED = "torch failed"  # while it was imported
    CUDA_FAILED = "cuda failed"  # while it was started
    COPY_FAILED = "copy failed"
    LATE = "late"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEvidence:
    """What was seen of one GPU while data was copied to it.

    `bytes_per_second` is host to device from pinned memory. The tuples hold the samples taken during the copy.
    `archs` are the chips torch was built for (`sm_90`). `failure` says why there is nothing, `kind` of what sort that
    is; both are None where there is a measurement.
    """

    gpu: str
    bytes_per_second: float | None = None
    generations: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    event_reasons: tuple[int, ...] = ()
    archs: tuple[str, ...] = ()
    failure: str | None = None
    kind: NoLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything one examination looks at."""

    machine: MachineEvidence
    limits: LimitEvidence
    container: ContainerEvidence
    packages: PackageEvidence
    pci: PciEvidence
    fabric_manager: FabricManagerEvidence
    loads: tuple[LoadEvidence, ...] = field(default=())
