"""Reads what stands between GPUs: ACS of the ports, the IOMMU, NVSwitches and the fabric manager. Raises nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from orchestrator.doctor.evidence import BridgeEvidence, FabricManagerEvidence, PciEvidence
from orchestrator.doctor.read_limits import AbsentError, attempt
from topology.reading import Reading

_DEVICES: Final = "sys/bus/pci/devices"
_STANDARD_BYTES: Final = 256  # from here on stand the extended capabilities; without privileges only 64 are given
_ACS: Final = 0x000D
_ACS_CONTROL: Final = 6
_NVIDIA: Final = "0x10de"
_BRIDGE_CLASS: Final = "0x0680"  # how an NVSwitch presents itself
_MANAGER: Final = "nv-fabricmanager"
_COMM_LETTERS: Final = 15  # the kernel keeps that much of a process's name
_MANAGER_SECONDS: Final = 1.0


def read_pci(root: Path, gpus: Iterable[str], bridges: Iterable[str]) -> PciEvidence:
    """Read the ports above the GPUs and the IOMMU groups of the GPUs, by PCI address."""
    return PciEvidence(
        bridges=tuple(
            BridgeEvidence(
                address=address,
                acs_control=attempt(f"/{_DEVICES}/{address}/config", lambda at=address: _acs(root, at)),  # type: ignore[misc]
            )
            for address in dict.fromkeys(bridges)
        ),
        iommu_types=tuple((address, _iommu_type(root, address)) for address in dict.fromkeys(gpus)),
        has_iommu=attempt("/sys/class/iommu", lambda: any((root / "sys/class/iommu").iterdir())),
    )


def acs_control(config: bytes) -> int:
    """Return the ACS control register out of a function's configuration space.

    Raises:
        AbsentError: `NO_ACS` if it has none, `NEEDS_ROOT` if the extended capabilities are not given to us.
    """
    if len(config) <= _STANDARD_BYTES:
        raise AbsentError("NEEDS_ROOT" if len(config) < _STANDARD_BYTES else "NO_EXTENDED_CONFIG")
    at, visited = _STANDARD_BYTES, set[int]()
    while at >= _STANDARD_BYTES and at + 8 <= len(config) and at not in visited:
        visited.add(at)  # a broken list may run in a circle
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little")
        at = header >> 20
    raise AbsentError("NO_ACS")


def _acs(root: Path, address: str) -> int:
    return acs_control((root / _DEVICES / address / "config").read_bytes())


def _iommu_type(root: Path, address: str) -> Reading[str]:
    path = root / _DEVICES / address / "iommu_group/type"
    return attempt(f"/{_DEVICES}/{address}/iommu_group/type", lambda: path.read_text(encoding="utf-8").strip())


def read_fabric_manager(root: Path, *, wanted: bool) -> FabricManagerEvidence:
    """Look for NVSwitches and the fabric manager; its program is asked for its version only where `wanted`."""
    return FabricManagerEvidence(
        running=attempt("/proc", lambda: _is_running(root)),
        version=attempt(_MANAGER, _version) if wanted else Reading(source=_MANAGER, error="NOT_ASKED"),
        switches=attempt(f"/{_DEVICES}", lambda: _switches(root)),
    )


def _is_running(root: Path) -> bool:
    name = _MANAGER[:_COMM_LETTERS]
    return any(_text(path / "comm") == name for path in (root / "proc").iterdir() if path.name.isdecimal())


def _version() -> str:
    program = shutil.which(_MANAGER)
    if program is None:
        raise AbsentError("NOT_INSTALLED")
    try:
        # Prints "Fabric Manager version is : 535.104.05".
        done = subprocess.run(  # noqa: S603 - a fixed program, found by its name
            [program, "--version"], capture_output=True, timeout=_MANAGER_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as late:
        raise AbsentError("TIMEOUT") from late
    match = re.search(rb"(\d{3,}\.\d+(?:\.\d+)*)", done.stdout[:4096])
    if match is None:
        raise AbsentError("NO_VERSION")
    return match[1].decode()


def _switches(root: Path) -> tuple[str, ...]:
    folder = root / _DEVICES
    return tuple(
        path.name
        for path in sorted(folder.iterdir())
        if _text(path / "vendor") == _NVIDIA and _text(path / "class").startswith(_BRIDGE_CLASS)
    )


def _text(path: Path) -> str:
    # A process may end, or a function go, between the listing and the look.
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
