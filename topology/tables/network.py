"""Rates of PCIe lanes, InfiniBand lanes, network cards, C2C and xGMI links: per direction."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# GB/s of one PCIe lane after line coding: 8b/10b, 128b/130b, from 64 GT/s 236 of 256 bytes of a flit.
# Packet headers take some 10-20% more.
PCIE_LANE_GB: Final[Mapping[int, float]] = MappingProxyType(
    {
        1: 2.5 * 8 / 10 / 8,
        2: 5 * 8 / 10 / 8,
        3: 8 * 128 / 130 / 8,
        4: 16 * 128 / 130 / 8,
        5: 32 * 128 / 130 / 8,
        6: 64 * 236 / 256 / 8,
        7: 128 * 236 / 256 / 8,
    },
)

# Gbit/s of one InfiniBand lane after line coding. Linux prints the rate before it for QDR and older ones, and a
# rounded one for FDR, so the generation counts and not the number beside it.
INFINIBAND_LANE_GBIT: Final[Mapping[str, float]] = MappingProxyType(
    {
        "SDR": 2.0,
        "DDR": 4.0,
        "QDR": 8.0,
        "FDR10": 10.0,
        "FDR": 14.0625 * 64 / 66,
        "EDR": 25.0,
        "HDR": 50.0,
        "NDR": 100.0,
        "XDR": 200.0,
    },
)

# A word pattern (regular expression, any case), Gbit/s of the card, what it is. The first that fits counts.
NIC_GBIT: Final[tuple[tuple[str, float, str], ...]] = (
    (r"ConnectX-4 Lx", 50, "the fastest ConnectX-4 Lx card"),
    (r"ConnectX-4", 100, "the fastest ConnectX-4 card"),
    (r"ConnectX-5( Ex)?", 100, "the fastest port of a ConnectX-5 card"),
    (r"ConnectX-6 Lx", 50, "the fastest ConnectX-6 Lx card"),
    (r"ConnectX-6 Dx", 200, "the fastest ConnectX-6 Dx card"),
    (r"ConnectX-6", 200, "the fastest ConnectX-6 card"),
    (r"ConnectX-7", 400, "the fastest ConnectX-7 card"),
    (r"ConnectX-8( SuperNIC)?", 800, "the fastest ConnectX-8 card"),
    (r"BlueField-2", 200, "the fastest BlueField-2 card"),
    (r"BlueField-3", 400, "the fastest BlueField-3 card"),
    (r"p4de?\.24xlarge", 100, "one of 4 EFA cards of an AWS p4d or p4de"),
    (r"p5e?\.48xlarge", 100, "one of 32 EFA cards of an AWS p5 or p5e"),
    (r"p5en\.48xlarge", 200, "one of 16 EFA cards of an AWS p5en"),
    (r"p6-b200\.48xlarge", 400, "one of 8 EFA cards of an AWS p6-b200"),
)
NIC_SOURCE: Final = "NVIDIA product pages and AWS EC2 specifications, not verified"
NIC_DATE: Final = "2025-08"

# A word of the GPU's name, GB/s to its CPU, source, date.
C2C_GB: Final[tuple[tuple[str, float, str, str], ...]] = (
    ("gh200", 450, "900 GB/s both ways: NVIDIA GH200 datasheet; 450 each way in arXiv 2408.11556", "2024-08"),
    ("gb200", 225, "900 GB/s both ways of the Grace, shared by its two GPUs: low reading, not verified", "2025-01"),
    ("gb300", 225, "as the GB200: low reading, not verified", "2025-08"),
    ("gb10", 300, "600 GB/s both ways: GB10 specification, found in a public table", "2025-10"),
)

# A word of the GPU's name, GB/s of one Infinity Fabric link to another GPU, source, date.
XGMI_GB: Final[tuple[tuple[str, float, str, str], ...]] = (
    ("mi100", 46, "23 GT/s x 16 lanes: AMD ROCm documentation, MI100", "2024-01"),
    ("mi210", 50, "25 GT/s x 16 lanes: AMD ROCm documentation, MI250", "2024-01"),
    ("mi250", 50, "25 GT/s x 16 lanes: AMD ROCm documentation, MI250", "2024-01"),
    ("mi250x", 50, "25 GT/s x 16 lanes: AMD ROCm documentation, MI250", "2024-01"),
    ("mi300x", 64, "896 GB/s both ways over 7 links: AMD MI300X datasheet, found in a public table", "2023-12"),
    ("mi325x", 64, "as the MI300X: AMD MI325X datasheet", "2024-10"),
    ("mi350x", 76.8, "153.6 GB/s both ways: AMD MI350 specification, found in a public table", "2025-06"),
    ("mi355x", 76.8, "153.6 GB/s both ways: AMD MI350 specification, found in a public table", "2025-06"),
)
