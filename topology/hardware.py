"""Peak rates by device name: vendor figures (dense, no sparsity), each with its source and date.

A name matches only when all its words do, so a laptop part, a MIG slice or a new card stays unknown (None)
rather than borrowing the figures of a relative.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import Device, DeviceKind
from topology.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

_TERA: Final = 1e12


class Precision(StrEnum):
    """Arithmetic of the matrix products; members compare equal to their text."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a device can do at best. A precision it has no unit for is absent from the mapping.

    `fp16` and `bf16` are dense tensor-core rates with fp32 accumulation; `fp32` is without tensor cores.
    """

    flops_per_second: Mapping[Precision, float]
    memory_bytes_per_second: float
    memory_bytes: int
    source: str
    date: str

    def __post_init__(self) -> None:
        """Every rate is above zero."""
        rates = [self.memory_bytes_per_second, *self.flops_per_second.values()]
        if min(rates) <= 0:
            raise TopologyError(asked=f"peaks from {self.source}", found=f"rates {rates}", remedy="give rates above 0")


def peak(name: str) -> Peak | None:
    """Peaks of the GPU that NVML calls `name`, or None where the table does not have it."""
    return _TABLE.get(_words(name))


def supports_bf16(device: Device) -> bool:
    """Whether bf16 products run in hardware: Ampere (8.0) and later, or a CPU with AVX512-BF16 or AMX-BF16.

    A GPU whose compute capability could not be read counts as without.
    """
    if device.kind is DeviceKind.cpu:
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(device.features)
    return device.compute_capability is not None and device.compute_capability >= (8, 0)


def cpu_peak(device: Device, host_clock_hz: float | None, threads_per_core: int = 1) -> Peak | None:
    """Estimate the peaks of a CPU slot: cores x clock x operations per cycle; None for a GPU or an unknown clock.

    Counts one fused-multiply-add unit a core (many have two, but run lower clocks under wide vectors), shared
    by the core's hardware threads. Memory: 5 GB/s a core, what a server core keeps when all cores stream.
    """
    if device.kind is not DeviceKind.cpu or not host_clock_hz or device.memory_bytes is None:
        return None
    has = set(device.features).__contains__
    fp32 = 32 if has("avx512f") else 16 if has("avx2") and has("fma") else 8 if has("asimd") else 4
    per_cycle = {Precision.fp32: fp32}
    if has("amx_bf16"):
        # A tile product is 1024 bf16 operations a cycle on paper; loads let about half through.
        per_cycle[Precision.bf16] = 512
    elif has("avx512_bf16"):
        per_cycle[Precision.bf16] = 2 * fp32
    if has("avx512_fp16"):
        per_cycle[Precision.fp16] = 2 * fp32
    cores = device.cores / threads_per_core
    return Peak(
        flops_per_second=MappingProxyType({key: cores * host_clock_hz * ops for key, ops in per_cycle.items()}),
        memory_bytes_per_second=cores * 5 * GB,
        memory_bytes=device.memory_bytes,
        source=f"estimate: cores x clock x {fp32} fp32 operations per cycle from the CPU flags; 5 GB/s a core",
        date="2026-01",
    )


def _words(name: str) -> frozenset[str]:
    # Brand words come and go with driver versions; SXM2/3/4/5 are told apart by the chip already.
    words = re.findall(r"[a-z0-9]+", re.sub(r"sxm\d", "sxm", name.lower()))
    return frozenset(words) - {"nvidia", "tesla", "geforce", "generation"}


# Names (`|` between spellings), fp16, bf16, fp32 in TFLOP/s (0: no such unit), GB/s, GiB, source, date.
_Row = tuple[str, float, float, float, float, int, str, str]
_AMPERE_RTX: Final = "NVIDIA Ampere GA102 whitepaper v2"
_ADA: Final = "NVIDIA Ada GPU architecture whitepaper v2"
_ROWS: Final[tuple[_Row, ...]] = (
    ("V100-SXM2-16GB", 125, 0, 15.7, 900, 16, "NVIDIA V100 datasheet", "2020-01"),
    ("V100-SXM2-32GB", 125, 0, 15.7, 900, 32, "NVIDIA V100 datasheet", "2020-01"),
    ("V100-PCIE-16GB", 112, 0, 14, 900, 16, "NVIDIA V100 datasheet", "2020-01"),
    ("V100-PCIE-32GB", 112, 0, 14, 900, 32, "NVIDIA V100 datasheet", "2020-01"),
    ("V100S-PCIE-32GB", 130, 0, 16.4, 1134, 32, "NVIDIA V100 datasheet", "2020-01"),
    ("T4", 65, 0, 8.1, 320, 16, "NVIDIA T4 datasheet", "2019-03"),
    ("GeForce RTX 2080 Ti", 53.8, 0, 13.4, 616, 11, "NVIDIA Turing architecture whitepaper", "2018-09"),
    ("A100-SXM4-40GB", 312, 312, 19.5, 1555, 40, "NVIDIA A100 datasheet", "2021-06"),
    ("A100-SXM4-80GB", 312, 312, 19.5, 2039, 80, "NVIDIA A100 datasheet", "2021-06"),
    ("A100-PCIE-40GB", 312, 312, 19.5, 1555, 40, "NVIDIA A100 datasheet", "2021-06"),
    ("A100 80GB PCIe", 312, 312, 19.5, 1935, 80, "NVIDIA A100 datasheet", "2021-06"),
    ("A30", 165, 165, 10.3, 933, 24, "NVIDIA A30 datasheet", "2021-04"),
    ("A40", 149.7, 149.7, 37.4, 696, 48, "NVIDIA A40 datasheet", "2021-03"),
    ("A10", 125, 125, 31.2, 600, 24, "NVIDIA A10 datasheet", "2021-04"),
    ("A10G", 70, 70, 35, 600, 24, "NVIDIA A10G datasheet (AWS G5)", "2022-01"),
    ("RTX A5000", 111.1, 111.1, 27.8, 768, 24, "NVIDIA RTX A5000 datasheet", "2021-04"),
    ("RTX A6000", 154.8, 154.8, 38.7, 768, 48, "NVIDIA RTX A6000 datasheet", "2020-12"),
    ("GeForce RTX 3090", 71, 71, 35.6, 936, 24, _AMPERE_RTX, "2021-04"),
    ("GeForce RTX 3090 Ti", 80, 80, 40, 1008, 24, "NVIDIA Ada whitepaper, comparison table", "2022-10"),
    ("GeForce RTX 4080", 97.5, 97.5, 48.7, 717, 16, _ADA, "2023-01"),
    ("GeForce RTX 4090", 165.2, 165.2, 82.6, 1008, 24, _ADA, "2023-01"),
    ("RTX 6000 Ada Generation", 364.2, 364.2, 91.1, 960, 48, "NVIDIA RTX 6000 Ada datasheet", "2023-01"),
    ("L4", 121, 121, 30.3, 300, 24, "NVIDIA L4 datasheet", "2023-03"),
    ("L40", 181, 181, 90.5, 864, 48, "NVIDIA L40 datasheet", "2022-10"),
    ("L40S", 362, 362, 91.6, 864, 48, "NVIDIA L40S datasheet", "2023-08"),
    ("GeForce RTX 5090", 209.5, 209.5, 104.8, 1792, 32, "NVIDIA RTX Blackwell whitepaper v1.1", "2025-01"),
    ("H100 80GB HBM3|H100-SXM5-80GB", 989.4, 989.4, 66.9, 3352, 80, "NVIDIA H100 datasheet", "2023-03"),
    ("H100 PCIe|H100-PCIE-80GB", 756, 756, 51.2, 2039, 80, "NVIDIA H100 datasheet", "2023-03"),
    ("H100 NVL", 835, 835, 60, 3938, 94, "NVIDIA H100 NVL product brief", "2024-03"),
    ("H200|H200-SXM-141GB", 989.4, 989.4, 66.9, 4800, 141, "NVIDIA H200 datasheet", "2024-11"),
    ("H200 NVL", 835, 835, 60, 4800, 141, "NVIDIA H200 datasheet", "2024-11"),
    ("B200", 2250, 2250, 75, 7700, 180, "NVIDIA HGX B200 datasheet, per GPU", "2025-01"),
)


def _peak_of(row: _Row) -> Peak:
    _, fp16, bf16, fp32, rate, memory, source, date = row
    tera = {Precision.fp16: fp16, Precision.bf16: bf16, Precision.fp32: fp32}
    return Peak(
        flops_per_second=MappingProxyType({key: value * _TERA for key, value in tera.items() if value}),
        memory_bytes_per_second=rate * GB,
        memory_bytes=memory * GIB,
        source=source,
        date=date,
    )


_TABLE: Final[Mapping[frozenset[str], Peak]] = MappingProxyType(
    {_words(name): _peak_of(row) for row in _ROWS for name in row[0].split("|")},
)
