"""Peak rates by device name: vendor figures (dense, no sparsity), each with its source and date.

A name matches only when all its words do, so a laptop part, a MIG slice or a new card stays unknown (None)
rather than borrowing the figures of a relative.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import Device, DeviceKind
from topology.tables.gpus_from_ada import ADA, BLACKWELL, HOPPER, INSTINCT
from topology.tables.gpus_to_ampere import AMPERE, PASCAL_TO_TURING
from topology.tables.names import name_words
from topology.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from topology.tables.group import Group, Row

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


def peak(name: str, memory_bytes: int | None = None) -> Peak | None:
    """Peaks of the GPU that NVML (or ROCm) calls `name`, or None where the table does not have it.

    Some cards share a name (RTX 3060, 3080, GB300 ...): `memory_bytes`, as the driver tells it, picks the nearest of
    them; without it the one with the least memory counts, which is never the faster one.
    """
    found = _TABLE.get(name_words(name))
    if found is None:
        return None
    return found[0] if memory_bytes is None else min(found, key=lambda one: abs(one.memory_bytes - memory_bytes))


def supports_bf16(device: Device) -> bool:
    """Whether bf16 products run in hardware: Ampere (8.0) and later, or a CPU with AVX512-BF16 or AMX-BF16.

    A GPU whose compute capability is unknown goes by its name; an unknown name counts as without.
    """
    if device.kind is DeviceKind.cpu:
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(device.features)
    if device.compute_capability is not None:
        return device.compute_capability >= (8, 0)
    known = peak(device.name)
    return known is not None and Precision.bf16 in known.flops_per_second


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


def _peak_of(group: Group, row: Row) -> Peak:
    _, half, fp32, rate, memory = row
    tera = {Precision.fp16: half, Precision.bf16: half if group.has_bf16 else 0, Precision.fp32: fp32}
    return Peak(
        flops_per_second=MappingProxyType({key: value * _TERA for key, value in tera.items() if value}),
        memory_bytes_per_second=rate * GB,
        memory_bytes=memory * GIB,
        source=f"{group.source} ({group.checked})",
        date=group.date,
    )


def _table(groups: Iterable[Group]) -> Mapping[frozenset[str], tuple[Peak, ...]]:
    found: dict[frozenset[str], list[Peak]] = {}
    for group in groups:
        for row in group.rows:
            for words in {name_words(name) for name in row[0].split("|")}:
                found.setdefault(words, []).append(_peak_of(group, row))
    return MappingProxyType({words: tuple(sorted(peaks, key=_size)) for words, peaks in found.items()})


def _size(found: Peak) -> int:
    return found.memory_bytes


_TABLE: Final = _table((*PASCAL_TO_TURING, *AMPERE, *ADA, *HOPPER, *BLACKWELL, *INSTINCT))
