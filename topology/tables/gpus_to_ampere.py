"""NVIDIA GPUs from Pascal to Ampere."""

from __future__ import annotations

from typing import Final

from topology.tables.group import CLOCKS, CODE_TABLES, RECALLED, SPEC_TABLE, Group

PASCAL_TO_TURING: Final[tuple[Group, ...]] = (
    Group(
        source="NVIDIA P100 datasheet",
        date="2016-10",
        checked="no tensor cores; fp32 and PCIe memory rates found in public notes",
        has_bf16=False,
        rows=(
            ("P100-SXM2-16GB", 0, 10.6, 732, 16),
            ("P100-PCIE-16GB", 0, 9.3, 732, 16),
            ("P100-PCIE-12GB", 0, 9.3, 549, 12),
        ),
    ),
    Group(
        source="NVIDIA P40 datasheet",
        date="2016-09",
        checked="no tensor cores; fp32 same in a public database, memory rate from memory of the source",
        has_bf16=False,
        rows=(("P40", 0, 11.76, 346, 24),),
    ),
    Group(
        source="NVIDIA V100 datasheet",
        date="2020-01",
        checked="SXM2 and PCIe same in NVIDIA's A100 architecture post and in public notes",
        has_bf16=False,
        rows=(
            ("V100-SXM2-16GB", 125, 15.7, 900, 16),
            ("V100-SXM2-32GB|V100-SXM3-32GB", 125, 15.7, 900, 32),
            ("V100-PCIE-16GB", 112, 14, 900, 16),
            ("V100-PCIE-32GB", 112, 14, 900, 32),
            ("V100S-PCIE-32GB", 130, 16.4, 1134, 32),
        ),
    ),
    Group(
        source="NVIDIA T4 datasheet",
        date="2019-03",
        checked="fp32 same in a public database",
        has_bf16=False,
        rows=(("T4", 65, 8.1, 320, 16),),
    ),
    Group(
        source="NVIDIA TITAN V product page",
        date="2017-12",
        checked=RECALLED,
        has_bf16=False,
        rows=(("TITAN V", 110, 13.8, 653, 12),),
    ),
    Group(
        source="NVIDIA Turing architecture whitepaper",
        date="2018-09",
        checked="read in NVIDIA's Turing architecture post; TITAN RTX as quoted from the GA102 whitepaper",
        has_bf16=False,
        rows=(
            ("GeForce GTX 1080 Ti", 0, 11.3, 484, 11),
            ("GeForce RTX 2080 Ti", 53.8, 13.4, 616, 11),
            ("TITAN RTX", 130.5, 16.3, 672, 24),
            ("Quadro RTX 6000", 130.5, 16.3, 672, 24),
        ),
    ),
    Group(
        source="NVIDIA Quadro RTX 8000, 5000 and 4000 datasheets",
        date="2019-03",
        checked="RTX 5000 same on a vendor page; the others from memory of the source",
        has_bf16=False,
        rows=(
            ("Quadro RTX 8000", 130.5, 16.3, 672, 48),
            ("Quadro RTX 5000", 89.2, 11.2, 448, 16),
            ("Quadro RTX 4000", 57, 7.1, 416, 8),
        ),
    ),
    Group(
        source="NVIDIA GeForce RTX 20 product pages, reference clocks",
        date="2019-07",
        checked="fp32 of RTX 2060 and 2070 SUPER found in public databases, the rest from memory of the source",
        has_bf16=False,
        rows=(
            ("GeForce RTX 2060", 25.8, 6.45, 336, 6),
            ("GeForce RTX 2060", 28.7, 7.18, 336, 12),
            ("GeForce RTX 2060 SUPER", 28.7, 7.18, 448, 8),
            ("GeForce RTX 2070", 29.9, 7.46, 448, 8),
            ("GeForce RTX 2070 SUPER", 36.2, 9.06, 448, 8),
            ("GeForce RTX 2080", 40.3, 10.07, 448, 8),
            ("GeForce RTX 2080 SUPER", 44.6, 11.15, 496, 8),
        ),
    ),
)

AMPERE: Final[tuple[Group, ...]] = (
    Group(
        source="NVIDIA A100 datasheet",
        date="2021-06",
        checked=CODE_TABLES,
        rows=(
            ("A100-SXM4-40GB", 312, 19.5, 1555, 40),
            ("A100-SXM4-80GB", 312, 19.5, 2039, 80),
            ("A100-PCIE-40GB", 312, 19.5, 1555, 40),
            ("A100 80GB PCIe", 312, 19.5, 1935, 80),
        ),
    ),
    Group(
        source="NVIDIA A800: an A100 with fewer NVLinks",
        date="2022-11",
        checked="SXM4 80GB same in a public table and measured alike to A100; the others taken to be so",
        rows=(
            ("A800-SXM4-40GB", 312, 19.5, 1555, 40),
            ("A800-SXM4-80GB", 312, 19.5, 2039, 80),
            ("A800 80GB PCIe", 312, 19.5, 1935, 80),
            ("A800 40GB Active", 312, 19.5, 1555, 40),
        ),
    ),
    Group(
        source="NVIDIA A100X datasheet",
        date="2021-11",
        checked=RECALLED,
        rows=(("A100X", 312, 19.5, 2039, 80),),
    ),
    Group(
        source="NVIDIA A30 datasheet",
        date="2021-04",
        checked=SPEC_TABLE,
        rows=(("A30", 165, 10.3, 933, 24),),
    ),
    Group(
        source="NVIDIA A40 datasheet",
        date="2021-03",
        checked="same on a reseller's copy of the datasheet",
        rows=(("A40", 149.7, 37.4, 696, 48),),
    ),
    Group(
        source="NVIDIA A10 datasheet",
        date="2021-04",
        checked=SPEC_TABLE,
        rows=(("A10", 125, 31.2, 600, 24),),
    ),
    Group(
        source="NVIDIA A10G datasheet (AWS G5)",
        date="2022-01",
        checked=RECALLED,
        rows=(("A10G", 70, 35, 600, 24),),
    ),
    Group(
        source="NVIDIA A2 and A16 datasheets (A16: one of its four GPUs)",
        date="2021-11",
        checked="products of A2 same in a public database; memory rates from memory of the source",
        rows=(("A2", 18, 4.5, 200, 16), ("A16", 17.9, 4.5, 200, 16)),
    ),
    Group(
        source="NVIDIA RTX A-series datasheets, half of the tensor rate with sparsity",
        date="2022-03",
        checked=SPEC_TABLE + " (A5500 there 2% higher)",
        rows=(
            ("RTX A2000", 31.9, 8, 288, 6),
            ("RTX A2000 12GB", 31.9, 8, 288, 12),
            ("RTX A4000", 76.7, 19.2, 448, 16),
            ("RTX A4500", 94.6, 23.7, 640, 20),
            ("RTX A5000", 111.1, 27.8, 768, 24),
            ("RTX A5500", 136.4, 34.1, 768, 24),
        ),
    ),
    Group(
        source="NVIDIA Ampere GA102 whitepaper v2",
        date="2021-04",
        checked="RTX A6000 and 3090 as quoted from the whitepaper, 3070 and 3080 in the table lamonoai/gpumap",
        rows=(
            ("RTX A6000", 154.8, 38.7, 768, 48),
            ("GeForce RTX 3070", 40.6, 20.3, 448, 8),
            ("GeForce RTX 3080", 59.5, 29.8, 760, 10),
            ("GeForce RTX 3090", 71, 35.6, 936, 24),
        ),
    ),
    Group(
        source="NVIDIA Ada whitepaper, comparison table",
        date="2022-10",
        checked=SPEC_TABLE,
        rows=(("GeForce RTX 3090 Ti", 80, 40, 1008, 24),),
    ),
    Group(
        source="NVIDIA GeForce RTX 30 product pages",
        date="2024-02",
        checked=CLOCKS + " (clocks of 3050, 3070 Ti, 3080 12 GB and 3080 Ti from memory)",
        rows=(
            ("GeForce RTX 3050", 13.5, 6.8, 168, 6),
            ("GeForce RTX 3050", 18.2, 9.1, 224, 8),
            ("GeForce RTX 3060", 25.5, 12.7, 240, 8),
            ("GeForce RTX 3060", 25.5, 12.7, 360, 12),
            # Cards with GDDR6X reach 608 GB/s under the same name.
            ("GeForce RTX 3060 Ti", 32.4, 16.2, 448, 8),
            ("GeForce RTX 3070 Ti", 43.5, 21.7, 608, 8),
            ("GeForce RTX 3080", 61.3, 30.6, 912, 12),
            ("GeForce RTX 3080 Ti", 68.2, 34.1, 912, 12),
        ),
    ),
)
