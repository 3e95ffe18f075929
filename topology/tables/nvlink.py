"""NVLink by GPU: links on the part and the advertised rate of one of them, in GB/s per direction."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLinks:
    """GPUs (`|` between names) with the same links. No links: the part has no NVLink connector."""

    names: str
    num_links: int
    link_gb: float = 0.0
    source: str
    date: str


_BRIDGE_30: Final = "112.5 GB/s both ways over 4 links: NVIDIA GA102 whitepaper and A40 datasheet, A40 found again"

BY_NAME: Final[tuple[NvLinks, ...]] = (
    NvLinks(
        names="P100-SXM2-16GB", num_links=4, link_gb=20, source="160 GB/s both ways: P100 datasheet", date="2016-10"
    ),
    NvLinks(
        names="V100-SXM2-16GB|V100-SXM2-32GB|V100-SXM3-32GB",
        num_links=6,
        link_gb=25,
        source="300 GB/s both ways: NVIDIA V100 datasheet",
        date="2020-01",
    ),
    NvLinks(
        names="RTX 2080 Ti|TITAN RTX|Quadro RTX 6000|Quadro RTX 8000",
        num_links=2,
        link_gb=25,
        source="100 GB/s both ways: NVIDIA Turing architecture whitepaper",
        date="2018-09",
    ),
    NvLinks(
        names="RTX 2070 SUPER|RTX 2080|RTX 2080 SUPER|Quadro RTX 5000",
        num_links=1,
        link_gb=25,
        source="50 GB/s both ways: Turing whitepaper; the Quadro's found again on a vendor page",
        date="2018-09",
    ),
    NvLinks(
        names="A100-SXM4-40GB|A100-SXM4-80GB|A100-PCIE-40GB|A100 80GB PCIe",
        num_links=12,
        link_gb=25,
        source="600 GB/s both ways (PCIe: over three bridges): NVIDIA A100 datasheet",
        date="2021-06",
    ),
    NvLinks(
        names="A800-SXM4-40GB|A800-SXM4-80GB|A800 80GB PCIe|A800 40GB Active",
        num_links=8,
        link_gb=25,
        source="400 GB/s both ways: A800 specification, found in a public table",
        date="2022-11",
    ),
    NvLinks(names="A30", num_links=4, link_gb=25, source="200 GB/s both ways: NVIDIA A30 datasheet", date="2021-04"),
    NvLinks(
        names="A40|RTX A4500|RTX A5000|RTX A5500|RTX A6000|RTX 3090|RTX 3090 Ti",
        num_links=4,
        link_gb=14.0625,
        source=_BRIDGE_30,
        date="2021-04",
    ),
    NvLinks(
        names="H100 80GB HBM3|H100-SXM5-80GB|H200|H200-SXM-141GB|H20|H20-3e|GH200 480GB|GH200 120GB|GH200 144G HBM3e",
        num_links=18,
        link_gb=25,
        source="900 GB/s both ways: NVIDIA H100 datasheet; H20 and H200 found in a public table",
        date="2023-03",
    ),
    NvLinks(
        names="H100 PCIe|H100-PCIE-80GB|H100 NVL",
        num_links=12,
        link_gb=25,
        source="600 GB/s both ways over three bridges: NVIDIA H100 datasheet",
        date="2024-03",
    ),
    NvLinks(
        names="H200 NVL",
        num_links=18,
        link_gb=25,
        source="900 GB/s both ways over a 2- or 4-way bridge: NVIDIA H200 datasheet, not verified",
        date="2024-11",
    ),
    NvLinks(
        names="H800|H800 80GB HBM3|H800 PCIe",
        num_links=8,
        link_gb=25,
        source="400 GB/s both ways: H800 specification, found in a public table",
        date="2023-03",
    ),
    NvLinks(
        names="B200|B300 SXM6 AC|GB200|GB300",
        num_links=18,
        link_gb=50,
        source="1800 GB/s both ways: NVIDIA HGX B200 datasheet and GB200 NVL72 specification (NV18 in a public record)",
        date="2025-01",
    ),
    NvLinks(
        names="P100-PCIE-16GB|P100-PCIE-12GB|P40|TITAN V|V100-PCIE-16GB|V100-PCIE-32GB|V100S-PCIE-32GB|T4"
        "|RTX 2060|RTX 2060 SUPER|RTX 2070|Quadro RTX 4000"
        "|A2|A10|A10G|A16|RTX A2000|RTX A2000 12GB|RTX A4000|RTX 3050|RTX 3060|RTX 3060 Ti|RTX 3070|RTX 3070 Ti"
        "|RTX 3080|RTX 3080 Ti|L4|L20|L40|L40S|GB10"
        "|RTX 4060|RTX 4060 Ti|RTX 4070|RTX 4070 SUPER|RTX 4070 Ti|RTX 4070 Ti SUPER|RTX 4080|RTX 4080 SUPER|RTX 4090"
        "|RTX 4090 D|RTX 2000 Ada|RTX 4000 SFF Ada|RTX 4000 Ada|RTX 4500 Ada|RTX 5000 Ada|RTX 5880 Ada|RTX 6000 Ada"
        "|RTX 5050|RTX 5060|RTX 5060 Ti|RTX 5070|RTX 5070 Ti|RTX 5080|RTX 5090|RTX 5090 D|RTX 5090 D v2"
        "|RTX PRO 2000 Blackwell|RTX PRO 4000 Blackwell|RTX PRO 4500 Blackwell|RTX PRO 5000 Blackwell"
        "|RTX PRO 6000 Blackwell Workstation Edition|RTX PRO 6000 Blackwell Max-Q Workstation Edition"
        "|RTX PRO 6000 Blackwell Server Edition",
        num_links=0,
        source="no NVLink connector: NVIDIA datasheets and product pages",
        date="2024-01",
    ),
)

# Advertised GB/s of one link by compute capability, and the most links a chip of it has. Later chips are unknown.
BY_CAPABILITY: Final[Mapping[tuple[int, int], tuple[int, float]]] = MappingProxyType(
    {
        (6, 0): (4, 20.0),
        (6, 1): (0, 0.0),
        (7, 0): (6, 25.0),
        (7, 5): (2, 25.0),
        (8, 0): (12, 25.0),
        (8, 6): (4, 14.0625),
        (8, 9): (0, 0.0),
        (9, 0): (18, 25.0),
        (10, 0): (18, 50.0),
        (10, 3): (18, 50.0),
        (12, 0): (0, 0.0),
        (12, 1): (0, 0.0),
    },
)
# By the driver's NVLink version code, for cards that do not tell their capability. Drivers hand out two numberings
# (nvml.h: 4 is NVLink 3.0, 6 is 4.0, 7 is 5.0; the kernel driver's: 5 is 3.0, 7 is 4.0, 8 is 5.0): the slower holds.
BY_VERSION: Final[Mapping[int, float]] = MappingProxyType(
    {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 14.0625, 6: 14.0625, 7: 25.0, 8: 50.0},
)
