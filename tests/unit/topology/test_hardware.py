from __future__ import annotations

import pytest

from topology.errors import TopologyError
from topology.hardware import Peak, Precision, cpu_peak, peak, supports_bf16
from topology.model import Device, DeviceKind
from topology.presets import cpu_host, preset, preset_names
from topology.units import GIB


@pytest.mark.parametrize(
    ("name", "half_tera", "memory_gib"),
    [
        ("Tesla V100-SXM2-16GB", 125, 16),
        ("Tesla V100-PCIE-32GB", 112, 32),
        ("Tesla T4", 65, 16),
        ("NVIDIA A100-SXM4-40GB", 312, 40),
        ("NVIDIA A100 80GB PCIe", 312, 80),
        ("NVIDIA A100-PCIE-40GB", 312, 40),
        ("NVIDIA A10G", 70, 24),
        ("NVIDIA GeForce RTX 3090", 71, 24),
        ("NVIDIA GeForce RTX 4090", 165.2, 24),
        ("NVIDIA GeForce RTX 5090", 209.5, 32),
        ("NVIDIA RTX A6000", 154.8, 48),
        ("NVIDIA RTX 6000 Ada Generation", 364.2, 48),
        ("NVIDIA L4", 121, 24),
        ("NVIDIA L40S", 362, 48),
        ("NVIDIA H100 80GB HBM3", 989.4, 80),
        ("NVIDIA H100 PCIe", 756, 80),
        ("NVIDIA H200", 989.4, 141),
        ("NVIDIA B200", 2250, 180),
    ],
)
def test_names_as_the_driver_writes_them_match(name: str, half_tera: float, memory_gib: int) -> None:
    found = peak(name)
    assert found is not None
    assert found.flops_per_second[Precision("fp16")] == half_tera * 1e12
    assert found.memory_bytes == memory_gib * GIB
    assert found.source
    assert found.date


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H300",
        "Quadro RTX 6000",
        "GRID T4-8Q",
    ],
)
def test_relatives_and_unknown_cards_stay_unknown(name: str) -> None:
    assert peak(name) is None


def test_cards_without_bf16_units_have_no_bf16_peak() -> None:
    for name in ("Tesla T4", "Tesla V100-SXM2-16GB"):
        found = peak(name)
        assert found is not None
        assert Precision.bf16 not in found.flops_per_second


def test_every_preset_card_is_in_the_table_and_fits_its_memory() -> None:
    for name in preset_names():
        for gpu in preset(name).gpus:
            found = peak(gpu.name)
            assert found is not None
            assert found.memory_bytes == gpu.memory_bytes


def gpu(capability: tuple[int, int] | None) -> Device:
    return Device(id="a", host="h", kind=DeviceKind.gpu, name="?", memory_bytes=1, compute_capability=capability)


def slot(*features: str) -> Device:
    return Device(id="c", host="h", kind=DeviceKind.cpu, name="?", memory_bytes=1, cores=1, features=features)


def test_bf16_needs_ampere_or_the_right_flags() -> None:
    assert [supports_bf16(gpu(cc)) for cc in ((7, 5), (8, 0), (12, 0), None)] == [False, True, True, False]
    assert [supports_bf16(slot(*f)) for f in (("avx512f",), ("avx512_bf16",), ("amx_bf16",))] == [False, True, True]


def test_a_cpu_estimate_grows_with_its_flags() -> None:
    peaks = [cpu_peak(slot(*f), 1e9) for f in ((), ("avx2", "fma"), ("avx512f",), ("avx512f", "avx512_bf16"))]
    assert [p and p.flops_per_second[Precision.fp32] for p in peaks] == [4e9, 16e9, 32e9, 32e9]
    assert peaks[3] is not None
    assert peaks[3].flops_per_second[Precision.bf16] == 64e9
    assert "estimate" in peaks[3].source


def test_threads_share_the_units_of_their_core() -> None:
    whole, shared = cpu_peak(slot(), 1e9), cpu_peak(slot(), 1e9, threads_per_core=2)
    assert whole is not None
    assert shared is not None
    assert shared.flops_per_second[Precision.fp32] * 2 == whole.flops_per_second[Precision.fp32]


def test_without_a_clock_or_for_a_gpu_there_is_no_estimate() -> None:
    assert cpu_peak(cpu_host().devices[0], None) is None
    assert cpu_peak(gpu((8, 0)), 1e9) is None


def test_a_peak_is_above_zero() -> None:
    with pytest.raises(TopologyError, match="rates above 0"):
        Peak(flops_per_second={}, memory_bytes_per_second=0, memory_bytes=1, source="s", date="d")
