"""What hosts compare before they start ranks together: clock, versions, code, files, devices. Reads this host."""

import hashlib
import importlib.util
import os
import platform
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

__all__ = ["ERROR_PREFIX", "Facts", "Fault", "address_of", "compare", "interface_of", "read_facts"]

ERROR_PREFIX = "trainmaster-error: "
"""A line that the launching side reads back: JSON with exit_code and problems."""
MOST_SKEW_SECONDS = 2.0

_PACKAGES = ("trainmaster", "torch", "transformers", "trl", "accelerate", "peft", "bitsandbytes", "deepspeed", "numpy")
# These decide what ranks compute or how they speak with each other; of the others a difference is told.
_MUST_AGREE = frozenset({"trainmaster", "torch", "transformers", "peft", "bitsandbytes", "deepspeed"})
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong with a host, as `orchestrator.errors.Problem` takes it."""

    where: str
    found: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One host. `skew_seconds` is its clock less that of the first host."""

    host: str
    versions: Mapping[str, str]
    code: str
    unseen: tuple[str, ...] = ()
    devices: int | None = None
    skew_seconds: float = 0.0


def read_facts(
    host: str, *, must_see: Iterable[str], packages: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Facts:
    """Read this host; `packages` are those whose source must be the same everywhere."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return Facts(
        host=host,
        versions=versions,
        code=_code(packages),
        unseen=tuple(path for path in must_see if not os.access(path, os.R_OK)),
        devices=None if visible is None else len([each for each in visible.split(",") if each.strip()]),
    )


def compare(found: Sequence[Facts], processes: Sequence[int], *, uses_devices: bool) -> tuple[list[Fault], list[str]]:
    """Return what keeps the hosts from working together, and what is worth a line. The first one is the measure."""
    first, faults, notes = found[0], [], []
    for facts, count in zip(found, processes, strict=True):
        faults += [_unseen(facts.host, path) for path in facts.unseen]
        if uses_devices and facts.devices is not None and facts.devices < count:
            told = f"shows {facts.devices} devices in CUDA_VISIBLE_DEVICES for {count} ranks"
            faults.append(Fault(where=f"host {facts.host}", found=told, remedy="Ask for as many devices as ranks."))
        if abs(facts.skew_seconds) > MOST_SKEW_SECONDS:
            notes.append(
                f"the clock of host {facts.host} is {facts.skew_seconds:+.1f} s from that of {first.host}: times in "
                "logs of different hosts cannot be compared; synchronise them (chrony, ntp)"
            )
        differing = _differing(first, facts)
        if hard := [text for name, text in differing if name in _MUST_AGREE]:
            remedy = (
                f"Install the same versions on both, or use one environment on a shared file system ({first.host})."
            )
            faults.append(Fault(where=f"host {facts.host}", found="; ".join(hard), remedy=remedy))
        notes += [f"host {facts.host}: {text}" for name, text in differing if name not in _MUST_AGREE]
        if facts.code != first.code:
            told = f"runs other source code of trainmaster than {first.host}"
            remedy = "Bring both to the same commit, or use one installation on a shared file system."
            faults.append(Fault(where=f"host {facts.host}", found=told, remedy=remedy))
    return faults, notes


def interface_of(address: str) -> str | None:
    """Name of this host's interface with that address."""
    for name, found in psutil.net_if_addrs().items():
        if any(item.family in _FAMILIES and item.address.partition("%")[0] == address for item in found):
            return name
    return None


def address_of(interface: str) -> str | None:
    """Address of an interface of this host that others may reach: IPv4 before IPv6, never link-local."""
    found = psutil.net_if_addrs().get(interface, [])
    for family in _FAMILIES:
        for item in found:
            if item.family is family and not item.address.startswith(("fe80", "169.254.")):
                return str(item.address)
    return None


def _unseen(host: str, path: str) -> Fault:
    remedy = "The run directory and what it names must lie on a file system that all hosts share, under one path."
    return Fault(where=path, found=f"host {host} does not see it", remedy=remedy)


def _differing(first: Facts, other: Facts) -> list[tuple[str, str]]:
    names = [*first.versions, *(name for name in other.versions if name not in first.versions)]
    return [
        (
            name,
            f"{name} {other.versions.get(name, 'missing')}, but {first.versions.get(name, 'missing')} on {first.host}",
        )
        for name in names
        if first.versions.get(name) != other.versions.get(name)
    ]


def _code(packages: Sequence[str]) -> str:
    """Hash the Python sources of packages, without importing them."""
    digest = hashlib.sha256()
    for package in sorted(packages):
        spec = importlib.util.find_spec(package)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(folder)}".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
