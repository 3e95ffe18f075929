"""Raw readings of GPUs in NVML's codes and units, each a value or an error code."""

from __future__ import annotations

from dataclasses import dataclass

from topology.probe.host_readings import NOT_READ, Cpus
from topology.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkReadings:
    """One NVLink port of a GPU, in NVML's codes (state 1: active; remote type 0: GPU, 2: switch; p2p 1: supported)."""

    link: int
    state: Reading[int]
    version: Reading[int]
    remote_pci: Reading[str]
    remote_type: Reading[int]
    p2p: Reading[int] = NOT_READ


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReadings:
    """One MIG device: a compute instance in a GPU instance of the GPU it is listed under. The name ends in its profile.

    `slot` is its place in the driver's list, which has gaps; `num_multiprocessors` counts SMs.
    """

    slot: int
    uuid: Reading[str]
    name: Reading[str]
    memory_total_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    gpu_instance: Reading[int]
    compute_instance: Reading[int]
    num_multiprocessors: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """One GPU. `numa` is NVML's own node id, which only coherent platforms have.

    Modes and states are NVML's numbers (1: enabled, pending). `fabric_*` tell the NVLink domain of several hosts
    (state 3: joined; `fabric_cluster` a UUID, `fabric_health` a mask); `clock_reasons` is the mask of what holds the
    clocks back; `remapped_rows` counts corrected and uncorrected, then says whether one is pending or failed.
    """

    index: int
    uuid: Reading[str]
    name: Reading[str]
    pci: Reading[str]
    memory_total_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    compute_capability: Reading[tuple[int, int]]
    numa: Reading[int]
    cpus: Reading[Cpus]
    nvlinks: tuple[NvlinkReadings, ...] = ()
    nvlink_count: Reading[int] = NOT_READ
    memory_nodes: Reading[tuple[int, ...]] = NOT_READ
    pcie_max_generation: Reading[int] = NOT_READ
    pcie_max_width: Reading[int] = NOT_READ
    pcie_device_max_generation: Reading[int] = NOT_READ
    pcie_generation: Reading[int] = NOT_READ
    pcie_width: Reading[int] = NOT_READ
    power_limit_milliwatts: Reading[int] = NOT_READ
    mig_mode: Reading[int] = NOT_READ
    mig_pending_mode: Reading[int] = NOT_READ
    mig_devices: tuple[MigReadings, ...] = ()
    fabric_state: Reading[int] = NOT_READ
    fabric_cluster: Reading[str] = NOT_READ
    fabric_clique: Reading[int] = NOT_READ
    fabric_health: Reading[int] = NOT_READ
    clock_reasons: Reading[int] = NOT_READ
    ecc_mode: Reading[int] = NOT_READ
    ecc_pending_mode: Reading[int] = NOT_READ
    retired_pages_pending: Reading[int] = NOT_READ
    remapped_rows: Reading[tuple[int, int, int, int]] = NOT_READ
    persistence_mode: Reading[int] = NOT_READ
    compute_mode: Reading[int] = NOT_READ


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorReadings:
    """NVML's topology level of two GPUs, by their NVML indices."""

    a_index: int
    b_index: int
    level: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class P2pReadings:
    """NVML's peer-to-peer status of two GPUs, by their NVML indices: 0 is OK, the others are reasons."""

    a_index: int
    b_index: int
    read: Reading[int]
    write: Reading[int]
    nvlink: Reading[int]
    atomics: Reading[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReadings:
    """All GPUs the driver shows, hidden ones included: `visible_devices` is applied when assembling.

    `unavailable` is one line saying why there is nothing, or None; `cuda_version` is 1000 x major + 10 x minor.
    `count` is the driver's own number of GPUs, of which no more than 256 are read.
    `visible_devices` and `device_order` are the texts of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None where unset.
    """

    driver_version: Reading[str]
    gpus: tuple[GpuReadings, ...] = ()
    ancestors: tuple[AncestorReadings, ...] = ()
    unavailable: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    p2p: tuple[P2pReadings, ...] = ()
    cuda_version: Reading[int] = NOT_READ
    count: Reading[int] = NOT_READ
