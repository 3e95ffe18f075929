"""What the GPUs of a topology file are called, and the memory that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.checks import printable
from topology.hardware import peak
from topology.tables.pci_ids import AMD, NVIDIA, NVIDIA_BOARDS, NVIDIA_MEMORY_GIB
from topology.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.probe.nccl_tree import Element

_NVIDIA: Final = "10de"
_AMD: Final = "1002"
_VENDORS: Final[Mapping[str, str]] = {_NVIDIA: "NVIDIA", _AMD: "AMD", "1d94": "Hygon"}


def gpu_name(pci: Element) -> str:
    """Return what the driver calls the GPU of a PCI function, or its numbers where they are in no table."""
    told = next(
        (name for gpu in pci.inside("gpu") if (name := gpu.attributes.get("trainmaster_name", "")).strip()), None
    )
    if told is not None:
        return printable(told)
    vendor, device, board = (_number(pci, key) for key in ("vendor", "device", "subsystem_device"))
    known = {_NVIDIA: NVIDIA_BOARDS.get((device, board), NVIDIA.get(device)), _AMD: AMD.get(device)}.get(vendor)
    if known is not None:
        return known
    if not vendor or not device:
        return "unknown GPU"
    return f"{_VENDORS.get(vendor, '0x' + vendor)} GPU {vendor}:{device}"


def gpu_memory_bytes(pci: Element, name: str) -> int | None:
    """Return the memory that this package wrote into the file, or a table's; None where neither has it.

    Where this package wrote a name and no memory, it was unknown.
    """
    told = told_memory_bytes(pci)
    if told is not None or _told_name(pci) is not None:
        return told
    size = NVIDIA_MEMORY_GIB.get(_number(pci, "device")) if _number(pci, "vendor") == _NVIDIA else None
    known = peak(name, None if size is None else size * GIB)
    return None if known is None else known.memory_bytes


def told_memory_bytes(pci: Element) -> int | None:
    """Return the memory that this package wrote into the file."""
    return next((int(text) for gpu in pci.inside("gpu") if (text := gpu.get("trainmaster_memory_bytes"))), None)


def _told_name(pci: Element) -> str | None:
    return next(
        (name for gpu in pci.inside("gpu") if (name := gpu.attributes.get("trainmaster_name", "")).strip()), None
    )


def _number(pci: Element, key: str) -> str:
    return (pci.get(key) or "").lower().removeprefix("0x")
