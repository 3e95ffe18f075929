"""Memory of a card as nvidia-smi shows it, where that is below the size it is sold with: a planner may not count more.

ECC on GDDR6 and the driver's own reserve take the difference. MiB, as printed in public logs of such machines.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN_MIB: Final[Mapping[str, int]] = MappingProxyType(
    {
        "Tesla T4": 15_360,
        "NVIDIA A10": 23_028,
        "NVIDIA A10G": 23_028,
        "NVIDIA L4": 23_034,
        "NVIDIA A40": 46_068,
        "NVIDIA L40S": 46_068,
        "NVIDIA L20": 46_068,
        "NVIDIA RTX A6000": 49_140,
        "NVIDIA RTX 6000 Ada Generation": 49_140,
        "NVIDIA GeForce RTX 4090": 24_564,
        "NVIDIA GeForce RTX 5090": 32_607,
        "NVIDIA H100 80GB HBM3": 81_559,
        "NVIDIA H100 PCIe": 81_559,
        "NVIDIA H200": 143_771,
        "NVIDIA B200": 183_359,
    },
)
