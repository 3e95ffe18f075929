from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.hardware import Peak, Precision, cpu_peak, peak, supports_bf16
from topology.model import Device, DeviceKind
from topology.presets import cpu_host, preset, preset_names
from topology.tables.gpus_from_ada import ADA, BLACKWELL, HOPPER, INSTINCT
from topology.tables.gpus_to_ampere import AMPERE, PASCAL_TO_TURING
from topology.tables.names import name_words
from topology.units import GIB, MIB


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
        ("Tesla V100-SXM3-32GB", 125, 32),
        ("Quadro RTX 8000", 130.5, 48),
        ("NVIDIA GeForce RTX 2080 Ti", 53.8, 11),
        ("NVIDIA TITAN RTX", 130.5, 24),
        ("NVIDIA A800-SXM4-80GB", 312, 80),
        ("NVIDIA A100X", 312, 80),
        ("NVIDIA A30", 165, 24),
        ("NVIDIA A40", 149.7, 48),
        ("NVIDIA A16", 17.9, 16),
        ("NVIDIA RTX A4000", 76.7, 16),
        ("NVIDIA GeForce RTX 3080 Ti", 68.2, 12),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88.2, 16),
        ("NVIDIA GeForce RTX 4090 D", 147.1, 24),
        ("NVIDIA RTX 4500 Ada Generation", 158.5, 24),
        ("NVIDIA L20", 119.5, 48),
        ("NVIDIA H100 NVL", 835, 94),
        ("NVIDIA H800", 989.4, 80),
        ("NVIDIA H20", 148, 96),
        ("NVIDIA H20-3e", 148, 141),
        ("NVIDIA GH200 480GB", 989.4, 96),
        ("NVIDIA GH200 144G HBM3e", 989.4, 144),
        ("NVIDIA B300 SXM6 AC", 2250, 270),
        ("NVIDIA GB200", 2500, 186),
        ("NVIDIA GB10", 62, 119),
        ("NVIDIA GeForce RTX 5070 Ti", 87.9, 16),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 480, 96),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 96),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9, 96),
        ("AMD Instinct MI300X OAM", 1307.4, 192),
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
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100X-20C",
        "NVIDIA H300",
        "NVIDIA RTX 6000",
        "NVIDIA RTX PRO 6000 Blackwell",
        "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU",
        "NVIDIA GeForce RTX 2080 Super with Max-Q Design",
        "Orin (nvgpu)",
        "GRID T4-8Q",
    ],
)
def test_relatives_and_unknown_cards_stay_unknown(name: str) -> None:
    assert peak(name) is None


_GROUPS = (*PASCAL_TO_TURING, *AMPERE, *ADA, *HOPPER, *BLACKWELL, *INSTINCT)
_NAMES = [name for group in _GROUPS for row in group.rows for name in row[0].split("|")]
_VOCABULARY = frozenset({"nvidia", "tesla", "geforce", "generation"}).union(*map(name_words, _NAMES))
junk = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True).filter(
    lambda word: word not in _VOCABULARY and not word.startswith("sxm")
)


@given(st.sampled_from(_NAMES), st.lists(junk, min_size=1, max_size=3), st.sampled_from([" ", "-", " / "]))
def test_a_further_word_makes_any_name_unknown(name: str, words: list[str], joint: str) -> None:
    assert peak(name) is not None
    assert peak(f"{name}{joint}{joint.join(words)}") is None
    assert peak(f"{words[0]} NVIDIA {name}") is None


@given(st.sampled_from(_NAMES), st.integers(0, 2**40))
def test_brand_case_and_memory_do_not_change_the_card(name: str, memory_bytes: int) -> None:
    plain, told = peak(f"NVIDIA {name.upper()}"), peak(name, memory_bytes)
    assert plain == peak(name)
    assert plain is not None
    assert told is not None
    assert told.memory_bytes >= plain.memory_bytes


def test_every_row_is_dated_and_of_a_known_order() -> None:
    for group in _GROUPS:
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", group.date), group
        assert group.source
        assert group.checked
        for name, half, fp32, rate, memory_gib in group.rows:
            # Tensor cores give 2 to 50 times the fp32 rate; parts without them have no half-precision figure.
            assert half == 0 or 1.9 * fp32 < half < 50 * fp32, name
            assert 4 <= fp32 < 200, name
            assert 150 < rate <= 8000, name
            assert 6 <= memory_gib <= 288, name


def test_rows_of_one_name_differ_in_memory() -> None:
    rows = Counter((name_words(name), row) for group in _GROUPS for row in group.rows for name in _spellings(row))
    sizes = Counter((words, row[-1]) for words, row in rows)
    assert set(sizes.values()) == {1}


def _spellings(row: tuple[str, float, float, float, int]) -> list[str]:
    return row[0].split("|")


@pytest.mark.parametrize(
    ("name", "memory_mib", "rate_gb"),
    [
        ("NVIDIA GeForce RTX 3060", 12288, 360),
        ("NVIDIA GeForce RTX 3060", 8192, 240),
        ("NVIDIA GeForce RTX 3060", None, 240),
        ("NVIDIA GeForce RTX 3080", 12053, 912),
        ("NVIDIA GeForce RTX 3080", 10018, 760),
        ("NVIDIA GB300", 256703, 7100),
        ("NVIDIA GB300", 284208, 8000),
    ],
)
def test_memory_tells_cards_of_one_name_apart(name: str, memory_mib: int | None, rate_gb: float) -> None:
    found = peak(name, None if memory_mib is None else memory_mib * MIB)
    assert found is not None
    assert found.memory_bytes_per_second == rate_gb * 1e9


def test_without_memory_the_slowest_card_of_a_name_counts() -> None:
    for name in _NAMES:
        least = peak(name)
        assert least is not None
        most = peak(name, 2**50)
        assert most is not None
        assert least.memory_bytes_per_second <= most.memory_bytes_per_second
        for precision, flops in least.flops_per_second.items():
            assert flops <= most.flops_per_second[precision]


# What the driver shows (MiB), from public logs: a little less than the card has.
@pytest.mark.parametrize(
    ("name", "shown_mib"),
    [
        ("NVIDIA B300 SXM6 AC", 275040),
        ("NVIDIA B200", 183359),
        ("NVIDIA GB200", 189471),
        ("NVIDIA H200", 143771),
        ("NVIDIA H100 80GB HBM3", 81559),
        ("NVIDIA H100 NVL", 95830),
        ("NVIDIA GH200 144G HBM3e", 146831),
        ("NVIDIA GeForce RTX 5090", 32607),
        ("NVIDIA GeForce RTX 4090", 23028),
        ("NVIDIA L4", 23034),
        ("NVIDIA RTX A4000", 15352),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
        ("NVIDIA RTX PRO 5000 Blackwell", 48935),
    ],
)
def test_memory_is_what_the_driver_shows_or_a_little_more(name: str, shown_mib: int) -> None:
    found = peak(name, shown_mib * MIB)
    assert found is not None
    assert 0.93 * found.memory_bytes < shown_mib * MIB <= found.memory_bytes


def test_cards_without_a_unit_have_no_peak_for_it() -> None:
    for name, has in (("Tesla T4", {"fp16", "fp32"}), ("Tesla P40", {"fp32"}), ("NVIDIA L4", {"fp16", "bf16", "fp32"})):
        found = peak(name)
        assert found is not None
        assert set(found.flops_per_second) == has


def test_geforce_cards_run_half_precision_at_twice_fp32_from_ampere_on() -> None:
    for group in (*AMPERE, *ADA, *BLACKWELL):
        for name, half, fp32, *_ in group.rows:
            if name.startswith("GeForce"):
                assert half == pytest.approx(2 * fp32, rel=0.01), name


def test_every_preset_card_is_in_the_table_and_fits_its_memory() -> None:
    for name in preset_names():
        for gpu in preset(name).gpus:
            found = peak(gpu.name)
            assert found is not None
            assert gpu.memory_bytes is not None
            assert 0.93 * found.memory_bytes <= gpu.memory_bytes <= found.memory_bytes


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
