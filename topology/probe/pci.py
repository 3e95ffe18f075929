"""PCI functions from /sys: where each sits in the tree, and what it and the link above it can do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.probe.host_readings import DISPLAY, MAX_NODE, NVIDIA, NVSWITCH, PciReadings
from topology.probe.kernel_files import attempt, is_there, read_text, read_whole
from topology.probe.kernel_values import ReadingAbsentError, positive
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DEVICES: Final = "sys/bus/pci/devices"
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?GT/s")
_NO_WIDTH: Final = frozenset({0, 0xFF})  # what the kernel prints where the function does not say
_MAX_FUNCTIONS: Final = 4096
_MAX_ID: Final = 0xFFFF
_MAX_CLASS: Final = 0xFFFFFF
_MAX_WIDTH: Final = 32
_MAX_SPEED_GT: Final = 256.0  # PCIe 8.0
_MAX_DEPTH: Final = 64
_NO_NODE: Final = frozenset({"-1", "4294967295"})  # NUMA_NO_NODE, signed and not


def read_functions(root: Path, addresses: Iterable[str]) -> tuple[PciReadings, ...]:
    """Read these functions, then all bridges on their ways up, each once."""
    found: dict[str, PciReadings] = {}
    waiting = list(dict.fromkeys(addresses))
    while waiting and len(found) < _MAX_FUNCTIONS:
        address = waiting.pop(0)
        found[address] = function = _function(root, address)
        bridges = (normal_pci(name) for name in (function.above.value or ())[1:])
        waiting += [name for name in bridges if name is not None and name not in found and name not in waiting]
    return tuple(found.values())


def nvidia_functions(root: Path) -> tuple[str, ...]:
    """Return the addresses of the GPUs and NVSwitches on the bus, in order: they are there without a driver too."""
    base = root / _DEVICES
    names = attempt("devices", lambda: sorted(path.name for path in base.iterdir())).value or []
    found = []
    for name in names:
        # Most functions are of others: one file each is enough to leave them out.
        if attempt("vendor", _id, base / name / "vendor").value == NVIDIA:
            code = attempt("class", _class, base / name / "class").value
            is_one = code is not None and (code >> 16 == DISPLAY or code >> 8 == NVSWITCH)
            found += [name] if is_one and normal_pci(name) == name else []
    return tuple(found)


def address_of(device: Path) -> str:
    """Return the PCI address behind a `device` link of a class.

    Raises:
        ReadingAbsentError: `NO_PCI`.

    """
    # Behind virtio or USB the PCI function is an ancestor of the device: the nearest one counts.
    for part in reversed(device.resolve().parts):
        address = normal_pci(part) if ":" in part and "." in part else None
        if address:
            return address
    raise ReadingAbsentError(code="NO_PCI")


def numa_of(root: Path, device: Path) -> Reading[int]:
    """Read the NUMA node of a device directory."""
    path = device / "numa_node"
    source = f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)
    return attempt(source, _node, path)


def _node(path: Path) -> int:
    # The kernel writes -1 where the firmware does not say.
    if read_text(path) in _NO_NODE:
        raise ReadingAbsentError(code="NO_NODE")
    return read_whole(path, most=MAX_NODE)


def _id(path: Path) -> int:
    return read_whole(path, most=_MAX_ID)


def _class(path: Path) -> int:
    return read_whole(path, most=_MAX_CLASS)


def _function(root: Path, address: str) -> PciReadings:
    path = root / _DEVICES / address
    source = f"/{_DEVICES}/{address}"
    if not is_there(path):
        gone: Reading[int] = Reading(source=source, error="ENOENT")
        return PciReadings(address=address, numa=gone, above=Reading(source=source, error="ENOENT"))
    return PciReadings(
        address=address,
        numa=numa_of(root, path),
        above=attempt(source, _above, path),
        vendor_id=attempt(f"{source}/vendor", _id, path / "vendor"),
        device_id=attempt(f"{source}/device", _id, path / "device"),
        class_code=attempt(f"{source}/class", _class, path / "class"),
        max_speed_gt=attempt(f"{source}/max_link_speed", _speed, path / "max_link_speed"),
        max_width=attempt(f"{source}/max_link_width", _width, path / "max_link_width"),
        speed_gt=attempt(f"{source}/current_link_speed", _speed, path / "current_link_speed"),
        width=attempt(f"{source}/current_link_width", _width, path / "current_link_width"),
    )


def _above(path: Path) -> tuple[str, ...]:
    # /sys/devices/pci0000:16/0000:16:00.0/0000:17:00.0: the last host bridge counts, since a volume controller or
    # a hypervisor's bus may stand before it.
    parts = path.resolve().parts
    tops = [at for at, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)]
    if not tops:
        raise ReadingAbsentError(code="NO_HOST_BRIDGE")
    above = (parts[tops[-1]], *(part for part in parts[tops[-1] + 1 : -1] if normal_pci(part) == part))
    if len(above) > _MAX_DEPTH:
        raise ValueError
    return above


def _speed(path: Path) -> float:
    # "8 GT/s" of kernels up to 5.6, "16.0 GT/s PCIe" of later ones, "Unknown" where the function does not say.
    match = _SPEED.match(read_text(path))
    if match is None:
        raise ReadingAbsentError(code="UNKNOWN_SPEED")
    return positive(match[1], most=_MAX_SPEED_GT)


def _width(path: Path) -> int:
    width = read_whole(path, most=_MAX_ID)
    if width in _NO_WIDTH:
        raise ReadingAbsentError(code="UNKNOWN_WIDTH")
    if width > _MAX_WIDTH:
        raise ValueError
    return width
