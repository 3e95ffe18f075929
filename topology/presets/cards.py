"""GPUs by the names NVML gives them: capability, PCIe generation, power limit and memory.

NVIDIA's data sheets of each; the memory counts only where the peak table does not have the card.
"""

from __future__ import annotations

from typing import Final

from topology.presets.box import Card


def _card(name: str, capability: tuple[int, int], generation: int, watts: int, memory_gib: int) -> Card:
    return Card(name=name, capability=capability, generation=generation, watts=watts, memory_gib=memory_gib)


V100_16GB: Final = _card("Tesla V100-SXM2-16GB", (7, 0), 3, 300, 16)
V100_32GB: Final = _card("Tesla V100-SXM2-32GB", (7, 0), 3, 300, 32)
V100_SXM3: Final = _card("Tesla V100-SXM3-32GB", (7, 0), 3, 350, 32)
T4: Final = _card("Tesla T4", (7, 5), 3, 70, 16)
A10: Final = _card("NVIDIA A10", (8, 6), 4, 150, 24)
A10G: Final = _card("NVIDIA A10G", (8, 6), 4, 300, 24)
A40: Final = _card("NVIDIA A40", (8, 6), 4, 300, 48)
A100_40GB: Final = _card("NVIDIA A100-SXM4-40GB", (8, 0), 4, 400, 40)
A100_80GB: Final = _card("NVIDIA A100-SXM4-80GB", (8, 0), 4, 400, 80)
A100_PCIE_40GB: Final = _card("NVIDIA A100-PCIE-40GB", (8, 0), 4, 250, 40)
A100_PCIE_80GB: Final = _card("NVIDIA A100 80GB PCIe", (8, 0), 4, 300, 80)
H100: Final = _card("NVIDIA H100 80GB HBM3", (9, 0), 5, 700, 80)
H100_PCIE: Final = _card("NVIDIA H100 PCIe", (9, 0), 5, 350, 80)
H100_NVL: Final = _card("NVIDIA H100 NVL", (9, 0), 5, 400, 94)
H200: Final = _card("NVIDIA H200", (9, 0), 5, 700, 141)
GH200: Final = _card("NVIDIA GH200 480GB", (9, 0), 5, 900, 96)
B200: Final = _card("NVIDIA B200", (10, 0), 5, 1000, 180)
GB200: Final = _card("NVIDIA GB200", (10, 0), 5, 1200, 186)
L4: Final = _card("NVIDIA L4", (8, 9), 4, 72, 24)
L40S: Final = _card("NVIDIA L40S", (8, 9), 4, 350, 48)
RTX_A6000: Final = _card("NVIDIA RTX A6000", (8, 6), 4, 300, 48)
RTX_6000_ADA: Final = _card("NVIDIA RTX 6000 Ada Generation", (8, 9), 4, 300, 48)
RTX_3090: Final = _card("NVIDIA GeForce RTX 3090", (8, 6), 4, 350, 24)
RTX_4090: Final = _card("NVIDIA GeForce RTX 4090", (8, 9), 4, 450, 24)
RTX_5090: Final = _card("NVIDIA GeForce RTX 5090", (12, 0), 5, 575, 32)
