"""What the PCI ids of a topology file are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.probe.nccl_tree import Element

_NVIDIA: Final = "0x10de"
_VENDORS: Final[Mapping[str, str]] = {_NVIDIA: "NVIDIA", "0x1002": "AMD", "0x1d94": "Hygon"}
# NVIDIA device ids and the names NVML gives them (pci.ids 2026.08.22); other ids keep their number.
_NAMES: Final[Mapping[str, str]] = {
    "0x1db1": "Tesla V100-SXM2-16GB",
    "0x1db4": "Tesla V100-PCIE-16GB",
    "0x1db5": "Tesla V100-SXM2-32GB",
    "0x1db6": "Tesla V100-PCIE-32GB",
    "0x1eb8": "Tesla T4",
    "0x20b0": "NVIDIA A100-SXM4-40GB",
    "0x20b2": "NVIDIA A100-SXM4-80GB",
    "0x20b5": "NVIDIA A100 80GB PCIe",
    "0x20f1": "NVIDIA A100-PCIE-40GB",
    "0x2235": "NVIDIA A40",
    "0x2236": "NVIDIA A10",
    "0x2237": "NVIDIA A10G",
    "0x26b9": "NVIDIA L40S",
    "0x27b8": "NVIDIA L4",
    "0x2330": "NVIDIA H100 80GB HBM3",
    "0x2331": "NVIDIA H100 PCIe",
    "0x2335": "NVIDIA H200",
    "0x2901": "NVIDIA B200",
}


def gpu_name(pci: Element) -> str:
    """Return what NVML calls the GPU of a PCI function, or its numbers where they are in no table."""
    vendor, device = ((pci.get(key) or "").lower() for key in ("vendor", "device"))
    if vendor == _NVIDIA and device in _NAMES:
        return _NAMES[device]
    if not vendor or not device:
        return "unknown GPU"
    return f"{_VENDORS.get(vendor, vendor)} GPU {vendor.removeprefix('0x')}:{device.removeprefix('0x')}"
