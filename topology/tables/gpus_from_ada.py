"""NVIDIA GPUs from Ada and Hopper on, and AMD Instinct."""

from __future__ import annotations

from typing import Final

from topology.tables.group import CLOCKS, CODE_TABLES, RECALLED, SPEC_TABLE, Group

_PRO_RULE: Final = "1/8 of the AI TOPS (fp4 with sparsity), the ratio of the RTX PRO 6000"

ADA: Final[tuple[Group, ...]] = (
    Group(
        source="NVIDIA Ada GPU architecture whitepaper v2",
        date="2023-01",
        checked="RTX 4090 as quoted from the whitepaper; RTX 4080 same in the public table lamonoai/gpumap",
        rows=(("GeForce RTX 4080", 97.5, 48.7, 717, 16), ("GeForce RTX 4090", 165.2, 82.6, 1008, 24)),
    ),
    Group(
        source="NVIDIA GeForce RTX 40 product pages",
        date="2024-01",
        checked=CLOCKS + " (clocks of 4060 Ti, 4070 SUPER and 4080 SUPER from memory)",
        rows=(
            ("GeForce RTX 4060", 30.2, 15.1, 272, 8),
            ("GeForce RTX 4060 Ti", 44.1, 22.1, 288, 8),
            ("GeForce RTX 4060 Ti", 44.1, 22.1, 288, 16),
            # Cards with GDDR6 reach 480 GB/s under the same name.
            ("GeForce RTX 4070", 58.3, 29.1, 504, 12),
            ("GeForce RTX 4070 SUPER", 71, 35.5, 504, 12),
            ("GeForce RTX 4070 Ti", 80.2, 40.1, 504, 12),
            ("GeForce RTX 4070 Ti SUPER", 88.2, 44.1, 672, 16),
            ("GeForce RTX 4080 SUPER", 104.4, 52.2, 736, 16),
        ),
    ),
    Group(
        source="NVIDIA GeForce RTX 4090 D product page",
        date="2023-12",
        checked="from memory of the source; public measurements at 103% of the half rate",
        rows=(("GeForce RTX 4090 D", 147.1, 73.5, 1008, 24),),
    ),
    Group(
        source="NVIDIA RTX 6000 Ada datasheet",
        date="2023-01",
        checked="same in a copy of the datasheet",
        rows=(("RTX 6000 Ada Generation", 364.2, 91.1, 960, 48),),
    ),
    Group(
        source="NVIDIA RTX Ada Generation datasheets, 1/4 of the fp8 tensor rate with sparsity",
        date="2024-02",
        checked=SPEC_TABLE + "; 2000 on a reseller's page",
        rows=(
            ("RTX 2000 Ada Generation", 48, 12, 224, 16),
            ("RTX 4000 SFF Ada Generation", 76.7, 19.2, 280, 20),
            ("RTX 4000 Ada Generation", 106.9, 26.7, 360, 20),
            ("RTX 4500 Ada Generation", 158.5, 39.6, 432, 24),
            ("RTX 5000 Ada Generation", 261.1, 65.3, 576, 32),
        ),
    ),
    Group(
        source="NVIDIA RTX 5880 Ada datasheet",
        date="2024-01",
        checked=RECALLED,
        rows=(("RTX 5880 Ada Generation", 277.1, 69.3, 960, 48),),
    ),
    Group(
        source="NVIDIA L4 datasheet",
        date="2023-03",
        checked=SPEC_TABLE,
        rows=(("L4", 121, 30.3, 300, 24),),
    ),
    Group(
        source="NVIDIA L40 datasheet",
        date="2022-10",
        checked="same on a reseller's copy of the datasheet",
        rows=(("L40", 181, 90.5, 864, 48),),
    ),
    Group(
        source="NVIDIA L40S datasheet",
        date="2023-08",
        checked=CODE_TABLES,
        rows=(("L40S", 362, 91.6, 864, 48),),
    ),
    Group(
        source="NVIDIA L20 product brief",
        date="2023-11",
        checked="half precision and memory same in public tables, fp32 from memory of the source",
        rows=(("L20", 119.5, 59.8, 864, 48),),
    ),
)

HOPPER: Final[tuple[Group, ...]] = (
    Group(
        source="NVIDIA H100 datasheet",
        date="2023-03",
        checked=CODE_TABLES,
        rows=(
            ("H100 80GB HBM3|H100-SXM5-80GB", 989.4, 66.9, 3352, 80),
            ("H100 PCIe|H100-PCIE-80GB", 756, 51.2, 2039, 80),
        ),
    ),
    Group(
        source="NVIDIA H100 NVL product brief",
        date="2024-03",
        checked="835 in torchtitan; a public measurement reached 978, so cards may clock higher",
        rows=(("H100 NVL", 835, 60, 3938, 94),),
    ),
    Group(
        source="NVIDIA H200 datasheet",
        date="2024-11",
        checked=CODE_TABLES + " (NVL from memory of the source)",
        rows=(("H200|H200-SXM-141GB", 989.4, 66.9, 4800, 141), ("H200 NVL", 835, 60, 4800, 141)),
    ),
    Group(
        source="NVIDIA H800: an H100 with fewer NVLinks",
        date="2023-03",
        checked="SXM same in public tables; PCIe taken to be as the H100 PCIe",
        rows=(("H800|H800 80GB HBM3", 989.4, 66.9, 3352, 80), ("H800 PCIe", 756, 51.2, 2039, 80)),
    ),
    Group(
        source="NVIDIA H20 specification",
        date="2023-11",
        checked="same in public tables; a public measurement reached 142",
        rows=(("H20", 148, 44, 4000, 96), ("H20-3e", 148, 44, 4800, 141)),
    ),
    Group(
        source="NVIDIA GH200 datasheet",
        date="2024-01",
        checked="same in the public table feifeibear/LLMRoofline; memory as drivers show it",
        rows=(("GH200 480GB|GH200 120GB", 989.4, 66.9, 4000, 96), ("GH200 144G HBM3e", 989.4, 66.9, 4900, 144)),
    ),
)

BLACKWELL: Final[tuple[Group, ...]] = (
    Group(
        source="NVIDIA HGX B200 datasheet, per GPU",
        date="2025-01",
        checked="half precision same in torchtitan, memory and its rate in public tables",
        rows=(("B200", 2250, 75, 7700, 180),),
    ),
    Group(
        source="NVIDIA HGX B300 datasheet, per GPU",
        date="2025-08",
        checked="same in public tables and in torchtitan",
        rows=(("B300 SXM6 AC", 2250, 75, 7700, 270),),
    ),
    Group(
        source="NVIDIA GB200 NVL72 specification / 72 GPUs",
        date="2025-01",
        checked="as quoted from NVIDIA's Blackwell architecture brief",
        rows=(("GB200", 2500, 80, 8000, 186),),
    ),
    Group(
        source="NVIDIA GB300 NVL72 specification / 72 GPUs",
        date="2025-08",
        checked="same in torchtitan and public tables",
        rows=(("GB300", 2500, 80, 8000, 279),),
    ),
    Group(
        source="NVIDIA DGX Station (GB300) specification",
        date="2025-08",
        checked="memory as drivers show it, memory rate from memory of the source, the rest as in the NVL72",
        rows=(("GB300", 2500, 80, 7100, 252),),
    ),
    Group(
        source="NVIDIA GB10 (DGX Spark): fp4 rate without sparsity / 8, the ratio of GeForce cards",
        date="2025-10",
        checked="fp32, half rate and memory rate same in public tables; others reckon with 125",
        rows=(("GB10", 62, 31, 273, 119),),
    ),
    Group(
        source="NVIDIA RTX Blackwell whitepaper v1.1",
        date="2025-01",
        checked=SPEC_TABLE,
        rows=(
            ("GeForce RTX 5070", 61.7, 30.9, 672, 12),
            ("GeForce RTX 5070 Ti", 87.9, 43.9, 896, 16),
            ("GeForce RTX 5080", 112.6, 56.3, 960, 16),
            ("GeForce RTX 5090", 209.5, 104.8, 1792, 32),
        ),
    ),
    Group(
        source="NVIDIA GeForce RTX 5050, 5060 and 5060 Ti product pages",
        date="2025-07",
        checked=CLOCKS + " (memory rate of 5050 and clock of 5060 from memory: a database differs)",
        rows=(
            ("GeForce RTX 5050", 26.3, 13.2, 320, 8),
            ("GeForce RTX 5060", 38.4, 19.2, 448, 8),
            ("GeForce RTX 5060 Ti", 47.4, 23.7, 448, 8),
            ("GeForce RTX 5060 Ti", 47.4, 23.7, 448, 16),
        ),
    ),
    Group(
        source="NVIDIA GeForce RTX 5090 D: the figures of the RTX 5090",
        date="2025-01",
        checked="a public measurement shows its limit at 8 and 4 bits only; not verified with NVIDIA",
        rows=(("GeForce RTX 5090 D", 209.5, 104.8, 1792, 32), ("GeForce RTX 5090 D v2", 209.5, 104.8, 1344, 24)),
    ),
    Group(
        source="NVIDIA RTX PRO 6000 Blackwell datasheet, Workstation Edition",
        date="2025-03",
        checked="fp32 and memory in a copy of the datasheet, half precision in a public database",
        rows=(("RTX PRO 6000 Blackwell Workstation Edition", 503.8, 125, 1792, 96),),
    ),
    Group(
        source="NVIDIA RTX PRO 6000 Blackwell datasheet, Max-Q: " + _PRO_RULE,
        date="2025-03",
        checked="fp32 in public databases, AI TOPS from memory of the source",
        rows=(("RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9, 110, 1792, 96),),
    ),
    Group(
        source="NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet: 4 x fp32, the ratio of the Workstation Edition",
        date="2025-12",
        checked="fp32 and memory rate as quoted from the datasheet",
        rows=(("RTX PRO 6000 Blackwell Server Edition", 480, 120, 1597, 96),),
    ),
    Group(
        source="NVIDIA RTX PRO 5000 Blackwell datasheet: " + _PRO_RULE,
        date="2025-12",
        checked="AI TOPS of the 72 GB card and memory rate on a public page; 48 GB taken to be alike",
        rows=(("RTX PRO 5000 Blackwell", 258, 64.5, 1344, 48), ("RTX PRO 5000 Blackwell", 258, 64.5, 1344, 72)),
    ),
    Group(
        source="NVIDIA RTX PRO 4500, 4000 and 2000 Blackwell: 4 x fp32, the ratio of the RTX PRO 6000",
        date="2025-08",
        checked="fp32 and memory in public databases; one of them halves the ratio of the 4500",
        rows=(
            ("RTX PRO 2000 Blackwell", 67.9, 17, 288, 16),
            ("RTX PRO 4000 Blackwell", 187.6, 46.9, 672, 24),
            ("RTX PRO 4500 Blackwell", 219.7, 54.9, 896, 32),
        ),
    ),
)

# Names as ROCm prints them. fp32 is the vector rate.
INSTINCT: Final[tuple[Group, ...]] = (
    Group(
        source="AMD Instinct MI200 datasheets (MI250X: one of its two dies)",
        date="2022-03",
        checked="half precision of MI250X same in torchtitan; the rest from memory of the source",
        rows=(("AMD Instinct MI210", 181, 22.6, 1638, 64), ("AMD Instinct MI250X", 191.5, 23.9, 1638, 64)),
    ),
    Group(
        source="AMD Instinct MI300X and MI325X datasheets",
        date="2024-10",
        checked="same in public tables, fp32 in stas00/ml-engineering",
        rows=(
            ("AMD Instinct MI300X|AMD Instinct MI300X OAM", 1307.4, 163.4, 5300, 192),
            ("AMD Instinct MI325X|AMD Instinct MI325X OAM", 1307.4, 163.4, 6000, 256),
        ),
    ),
    Group(
        source="AMD Instinct MI355X datasheet",
        date="2025-06",
        checked="2.5 PFLOP/s and memory same in public tables, fp32 from memory of the source",
        rows=(("AMD Instinct MI355X", 2516.6, 157.3, 8000, 288),),
    ),
)
