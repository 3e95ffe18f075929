from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.hardware import peak
from topology.link_rates import (
    Rate,
    assumed_nic_rate,
    assumed_pcie_rate,
    assumed_socket_rate,
    c2c_rate,
    infiniband_rate,
    max_nvlinks,
    nic_rate,
    nvlink_rate,
    pcie_rate,
    socket_rate,
    xgmi_rate,
)
from topology.tables.network import C2C_GB, INFINIBAND_LANE_GBIT, NIC_GBIT, PCIE_LANE_GB, XGMI_GB
from topology.tables.nvlink import BY_CAPABILITY, BY_NAME
from topology.tables.sockets import SOCKETS

_NVLINK_NAMES = [name for row in BY_NAME for name in row.names.split("|")]


def gb(rate: Rate | None) -> float | None:
    return None if rate is None else round(rate.bytes_per_second / 1e9, 3)


@pytest.mark.parametrize(
    ("name", "num_links", "one_way_gb"),
    [
        ("Tesla P100-SXM2-16GB", 4, 80),
        ("Tesla V100-SXM2-32GB", 6, 150),
        ("NVIDIA GeForce RTX 2080 Ti", 2, 50),
        ("NVIDIA A100-SXM4-80GB", 12, 300),
        ("NVIDIA A100 80GB PCIe", 12, 300),
        ("NVIDIA A800-SXM4-80GB", 8, 200),
        ("NVIDIA A30", 4, 100),
        ("NVIDIA A40", 4, 56.25),
        ("NVIDIA RTX A6000", 4, 56.25),
        ("NVIDIA GeForce RTX 3090", 4, 56.25),
        ("NVIDIA H100 80GB HBM3", 18, 450),
        ("NVIDIA H100 NVL", 12, 300),
        ("NVIDIA H800", 8, 200),
        ("NVIDIA H20", 18, 450),
        ("NVIDIA H200", 18, 450),
        ("NVIDIA B200", 18, 900),
        ("NVIDIA GB200", 18, 900),
    ],
)
def test_nvlinks_of_a_card_add_up_to_what_the_vendor_says(name: str, num_links: int, one_way_gb: float) -> None:
    rate = nvlink_rate(name=name)
    assert rate is not None
    assert max_nvlinks(name=name) == num_links
    assert rate.bytes_per_second * num_links == pytest.approx(one_way_gb * 1e9)


def test_a_name_beats_the_capability_and_that_the_version() -> None:
    assert gb(nvlink_rate(name="NVIDIA A40", compute_capability=(9, 0), version=8)) == 14.062
    assert gb(nvlink_rate(name="NVIDIA Mystery", compute_capability=(9, 0), version=8)) == 25
    assert gb(nvlink_rate(name="NVIDIA Mystery", version=8)) == 50
    assert max_nvlinks(name="NVIDIA H800", compute_capability=(9, 0)) == 8
    assert max_nvlinks(name="NVIDIA GeForce RTX 3080", compute_capability=(8, 6)) == 0
    assert max_nvlinks(name="NVIDIA Mystery", compute_capability=(8, 6)) == 4
    assert max_nvlinks(compute_capability=(8, 9)) == 0
    assert max_nvlinks(name="NVIDIA GeForce RTX 4090") == 0


def test_a_link_on_a_card_without_connector_still_gets_its_chip_rate() -> None:
    assert gb(nvlink_rate(name="NVIDIA A10G", compute_capability=(8, 6))) == 14.062


def test_an_unknown_gpu_has_no_nvlink_rate() -> None:
    assert nvlink_rate() is None
    assert nvlink_rate(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9)) is None
    assert nvlink_rate(name="NVIDIA Mystery", compute_capability=(99, 0), version=8) is None
    assert nvlink_rate(version=99) is None
    assert max_nvlinks(name="NVIDIA Mystery") is None
    assert max_nvlinks() is None


@given(st.sampled_from(_NVLINK_NAMES), st.from_regex(r"z[a-z0-9]{1,6}", fullmatch=True))
def test_a_further_word_makes_any_card_unknown(name: str, word: str) -> None:
    assert max_nvlinks(name=name) is not None
    assert max_nvlinks(name=f"{name} {word}") is None
    assert nvlink_rate(name=f"{word} {name}") is None


def test_every_card_with_nvlinks_has_peaks_and_no_more_links_than_a_chip() -> None:
    most = max(links for links, _ in BY_CAPABILITY.values())
    for row in BY_NAME:
        assert 0 <= row.num_links <= most
        assert bool(row.num_links) == bool(row.link_gb)
        for name in row.names.split("|"):
            assert peak(name) is not None, name


def test_pcie_rates_are_after_line_coding_and_double_from_one_generation_to_the_next() -> None:
    assert [gb(pcie_rate(generation, 16)) for generation in (1, 3, 4, 5, 6)] == [4, 15.754, 31.508, 63.015, 118]
    rates = [pcie_rate(generation, 1) for generation in sorted(PCIE_LANE_GB)]
    known = [rate.bytes_per_second for rate in rates if rate is not None]
    assert len(known) == 7
    for slow, fast in pairwise(known):
        assert 1.8 < fast / slow < 2.1


@given(st.integers(1, 7), st.sampled_from([1, 2, 4, 8, 16]))
def test_twice_the_lanes_carry_twice(generation: int, width: int) -> None:
    half, full = pcie_rate(generation, width), pcie_rate(generation, 2 * width)
    assert half is not None
    assert full is not None
    assert full.bytes_per_second == 2 * half.bytes_per_second


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (0, 16), (8, 16), (4, 0), (None, None)])
def test_an_unknown_slot_has_no_rate_but_an_assumed_one(generation: int | None, width: int | None) -> None:
    assert pcie_rate(generation, width) is None
    assert gb(assumed_pcie_rate()) == 15.754


@pytest.mark.parametrize(
    ("cpu_name", "one_way_gb"),
    [
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", 38.4),
        ("Intel(R) Xeon(R) CPU E5-2620 v3 @ 2.40GHz", 25.6),
        ("GenuineIntel 6/79", 25.6),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 41.6),
        ("Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", 41.6),
        ("Intel(R) Xeon(R) Silver 4214 CPU @ 2.20GHz", 38.4),
        ("GenuineIntel 6/85", 38.4),
        ("Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", 44.8),
        ("Intel(R) Xeon(R) Silver 4314 CPU @ 2.40GHz", 41.6),
        ("GenuineIntel 6/106", 41.6),
        ("Intel(R) Xeon(R) Platinum 8480C", 96),
        ("Intel(R) Xeon(R) CPU Max 9470", 96),
        ("GenuineIntel 6/143", 64),
        ("INTEL(R) XEON(R) PLATINUM 8568Y+", 120),
        ("INTEL(R) XEON(R) GOLD 6530", 96),
        ("GenuineIntel 6/207", 64),
        ("Intel(R) Xeon(R) 6960P", 144),
        ("GenuineIntel 6/173", 144),
        ("AMD EPYC 7551 32-Core Processor", 75.854),
        ("AMD EPYC 7742 64-Core Processor", 96),
        ("AMD EPYC 7R32", 96),
        ("AMD EPYC 7763 64-Core Processor", 96),
        ("AMD EPYC 7V13 64-Core Processor", 96),
        ("AuthenticAMD 23/49", 96),
        ("AuthenticAMD 143/49", 96),
        ("AuthenticAMD 175/1", 96),
        ("AMD EPYC 9654 96-Core Processor", 192),
        ("AMD EPYC 9V74 80-Core Processor", 192),
        ("AMD EPYC 9575F 64-Core Processor", 192),
        ("AuthenticAMD 175/17", 192),
        ("AuthenticAMD 191/2", 192),
        ("POWER9, altivec supported", 32),
        ("Neoverse-V2", 100),
        ("NVIDIA Grace", 100),
    ],
)
def test_processors_as_linux_and_nccl_name_them(cpu_name: str, one_way_gb: float) -> None:
    assert gb(socket_rate(cpu_name)) == one_way_gb


@pytest.mark.parametrize(
    "cpu_name",
    [
        None,
        "",
        "Intel(R) Xeon(R) Processor @ 2.30GHz",
        "Intel(R) Core(TM) i9-14900K",
        "Intel(R) Xeon(R) W-3375 CPU @ 2.50GHz",
        "Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz",
        "AMD Ryzen Threadripper PRO 5995WX 64-Cores",
        "AMD EPYC 8534P 64-Core Processor",
        "AMD EPYC-Rome Processor",
        "GenuineIntel",
        "GenuineIntel 6/1",
        "AuthenticAMD 175/48",
        "AuthenticAMD 6/85",
        "AMD 159/2",
        "GenuineIntel 6/" + "9" * 5000,
        "Neoverse-N1",
        "POWER8",
    ],
)
def test_an_unknown_processor_has_no_rate_but_an_assumed_one(cpu_name: str | None) -> None:
    assert socket_rate(cpu_name) is None
    assert gb(assumed_socket_rate()) == 10


def test_later_processors_of_a_maker_are_not_slower() -> None:
    for models in (["6/79", "6/85", "6/106", "6/143", "6/207", "6/173"],):
        rates = [gb(socket_rate(f"GenuineIntel {model}")) or 0 for model in models]
        assert rates == sorted(rates)
    rates = [gb(socket_rate(f"AuthenticAMD {model}")) or 0 for model in ("23/1", "23/49", "25/1", "25/17", "26/2")]
    assert rates == sorted(rates)


def test_no_processor_is_assumed_faster_than_any_known_one() -> None:
    assumed = assumed_socket_rate().bytes_per_second
    assert all(row.bytes_per_second > assumed for row in SOCKETS)


@given(st.text(max_size=60))
def test_any_text_is_answered(text: str) -> None:
    for rate in (socket_rate(text), nic_rate(text), c2c_rate(text), xgmi_rate(text), nvlink_rate(name=text)):
        assert rate is None or rate.bytes_per_second > 0


@pytest.mark.parametrize(
    ("text", "gbit"),
    [
        ("MT2910 Family [ConnectX-7]", 400),
        ("Mellanox Technologies MT27710 Family [ConnectX-4 Lx]", 50),
        ("MT2892 Family [ConnectX-6 Dx]", 200),
        ("MT28908 Family [ConnectX-6]", 200),
        ("MT27800 Family [ConnectX-5]", 100),
        ("MT27700 Family [ConnectX-4]", 100),
        ("CX8 Family [ConnectX-8]", 800),
        ("NVIDIA BlueField-3", 400),
        ("p4d.24xlarge", 100),
        ("p5.48xlarge", 100),
        ("p5en.48xlarge", 200),
        ("p6-b200.48xlarge", 400),
        ("400 Gb/sec (4X NDR)", 400),
        ("200 Gb/sec (4X HDR)", 200),
        ("40 Gb/sec (4X QDR)", 32),
        ("56 Gb/sec (4X FDR)", 54.545),
        ("100GbE", 100),
        ("ConnectX-7 200 Gb/s", 200),
        ("2.5 Gb/sec", 2.5),
    ],
)
def test_network_cards_by_model_or_by_the_speed_they_tell(text: str, gbit: float) -> None:
    rate = nic_rate(text)
    assert rate is not None
    assert rate.bytes_per_second * 8 / 1e9 == pytest.approx(gbit, rel=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "mlx5_0",
        "eth0",
        "Elastic Fabric Adapter (EFA)",
        "ConnectX-77",
        "9" * 5000 + " Gb/sec",
        "ConnectX-3 Pro",
        "0 Gb/sec",
        "p5x.48xlarge",
        "BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb Ethernet",
    ],
)
def test_an_unknown_network_card_has_no_rate_but_an_assumed_one(text: str | None) -> None:
    assert nic_rate(text) is None
    assert gb(assumed_nic_rate()) == 1.25


def test_infiniband_generations_are_in_order() -> None:
    lanes = list(INFINIBAND_LANE_GBIT)
    rates = [gb(infiniband_rate(lane)) or 0 for lane in lanes]
    assert rates == sorted(rates)
    assert gb(infiniband_rate("ndr", 2)) == 25
    assert infiniband_rate("GDR") is None
    assert infiniband_rate("NDR", 0) is None


def test_links_of_superchips_and_of_amd() -> None:
    assert gb(c2c_rate("NVIDIA GH200 480GB")) == 450
    assert gb(c2c_rate("NVIDIA GB200")) == 225
    assert c2c_rate("NVIDIA H200") is None
    assert c2c_rate(None) is None
    assert gb(xgmi_rate("AMD Instinct MI300X OAM")) == 64
    assert gb(xgmi_rate("AMD Instinct MI250X / MI250")) == 50
    assert xgmi_rate("NVIDIA H200") is None


def test_every_row_has_a_source_and_a_date() -> None:
    dated = [(row.source, row.date) for row in (*BY_NAME, *SOCKETS)]
    dated += [(source, date) for _, _, source, date in (*C2C_GB, *XGMI_GB)]
    dated += [(rate.source, rate.date) for rate in (nic_rate(name) for name in ("ConnectX-7", "1 Gb/s")) if rate]
    for source, date in dated:
        assert len(source) > 5
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", date)
    assert all(gbit > 0 for _, gbit, _ in NIC_GBIT)


def test_a_rate_is_a_quantity_with_a_source() -> None:
    with pytest.raises(TopologyError, match="no source"):
        Rate(bytes_per_second=1, source="", date="2026-01")
    with pytest.raises(TopologyError, match="bytes per second"):
        Rate(bytes_per_second=-1, source="s", date="2026-01")
