"""Peak rates of links, per direction: each row with its source and date; what is not in a table stays unknown.

Line rates only: what software reaches is a share of them, and measured where it matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.checks import check, negative
from topology.tables.names import name_words
from topology.tables.network import (
    C2C_GB,
    INFINIBAND_LANE_GBIT,
    NIC_DATE,
    NIC_GBIT,
    NIC_SOURCE,
    PCIE_LANE_GB,
    XGMI_GB,
)
from topology.tables.nvlink import BY_CAPABILITY, BY_NAME, BY_VERSION
from topology.tables.sockets import SOCKETS
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from topology.tables.nvlink import NvLinks

_BITS_PER_BYTE: Final = 8
_GBIT: Final = GB / _BITS_PER_BYTE
_ASSUMED_GENERATION, _ASSUMED_WIDTH = 3, 16
# As NCCL names a processor: vendor, family, model. Where Linux adds the extended family to 15, NCCL shifts it by four.
_CPUID: Final = re.compile(r"(\w+) (\d{1,5})/(\d{1,5})")
_EXTENDED: Final = 15
_INFINIBAND: Final = re.compile(r"\b(\d{1,2})x (sdr|ddr|qdr|fdr10|fdr|edr|hdr|ndr|xdr)\b", re.IGNORECASE)
_PLAIN_SPEED: Final = re.compile(r"\b(\d{1,5}(?:\.\d{1,3})?) ?(?:gb/sec|gb/s|gbit/s|gbps|gbe)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes per second in one direction, with where the figure comes from."""

    bytes_per_second: float
    source: str
    date: str

    def __post_init__(self) -> None:
        """A rate is a quantity and has a source."""
        check(
            "a link rate",
            (negative(self.bytes_per_second), f"{self.bytes_per_second} bytes per second"),
            (not self.source, "no source"),
        )


def _by_words(rows: Iterable[NvLinks]) -> Mapping[frozenset[str], NvLinks]:
    return MappingProxyType({name_words(name): row for row in rows for name in row.names.split("|")})


_NVLINKS: Final = _by_words(BY_NAME)


def nvlink_rate(
    *,
    compute_capability: tuple[int, int] | None = None,
    name: str | None = None,
    version: int | None = None,
) -> Rate | None:
    """One NVLink of a GPU, by its name, else its chip, else the driver's version code; None if none is known.

    A chip that is not in the table stays unknown, whatever its version code: the codes have two meanings.
    """
    named = _NVLINKS.get(name_words(name or ""))
    if named is not None and named.num_links:
        return Rate(bytes_per_second=named.link_gb * GB, source=f"NVLink, {named.source}", date=named.date)
    if compute_capability is not None:
        rate, by = BY_CAPABILITY.get(compute_capability, (0, 0.0))[1], "chip generation"
    else:
        rate, by = BY_VERSION.get(version or 0, 0.0), "the driver's NVLink version"
    if not rate:
        return None
    return Rate(bytes_per_second=rate * GB, source=f"NVIDIA whitepapers, advertised rate by {by}", date="2026-01")


def max_nvlinks(*, compute_capability: tuple[int, int] | None = None, name: str | None = None) -> int | None:
    """NVLinks a GPU has when all work: by its name, else the most a part with its chip has; None if unknown."""
    named = _NVLINKS.get(name_words(name or ""))
    if named is not None:
        return named.num_links
    by_chip = BY_CAPABILITY.get(compute_capability or (0, 0))
    return None if by_chip is None else by_chip[0]


def pcie_rate(generation: int | None, width: int | None) -> Rate | None:
    """Rate of a PCIe link after line coding; None where either is unknown or not in the table.

    Packet headers are not taken off. NCCL reckons with 12, 24, 48 and 96 GB/s for x16 of Gen3, 4, 5 and 6,
    which is 76% to 81% of these.
    """
    lane = PCIE_LANE_GB.get(generation or 0)
    if lane is None or not width:
        return None
    edition, date = ("7.0", "2025-06") if generation == max(PCIE_LANE_GB) else ("6.0", "2022-01")
    source = f"PCIe Gen{generation} x{width}, PCI Express base specification {edition}"
    return Rate(bytes_per_second=lane * width * GB, source=source, date=date)


def assumed_pcie_rate() -> Rate:
    """What to reckon with where the generation or width of a PCIe link is unknown: the least a server has."""
    rate = pcie_rate(_ASSUMED_GENERATION, _ASSUMED_WIDTH)
    assert rate is not None  # noqa: S101 - both are in the table
    return rate


def socket_rate(cpu_name: str | None) -> Rate | None:
    """Rate between two sockets of that processor (all links of the pair); None if it is not in the table.

    `cpu_name` as /proc/cpuinfo prints it ("AMD EPYC 7763 64-Core Processor") or as NCCL's topology files number it
    ("GenuineIntel 6/85", "AuthenticAMD 175/1"). The low end of what machines with it have.
    """
    if cpu_name is None:
        return None
    model = _cpuid(cpu_name)
    plain = " ".join(re.sub(r"\((?:r|tm)\)", " ", cpu_name.lower()).split())
    for row in SOCKETS:
        if model in row.models or (model is None and row.name is not None and re.search(row.name, plain)):
            source = f"{row.kind}: at least {row.num_links} x {row.transfers_per_second / 1e9:g} GT/s; {row.source}"
            return Rate(bytes_per_second=row.bytes_per_second, source=source, date=row.date)
    return None


def _cpuid(cpu_name: str) -> tuple[str, int, int] | None:
    found = _CPUID.fullmatch(cpu_name.strip())
    if found is None:
        return None
    vendor, family, model = found[1], int(found[2]), int(found[3])
    return vendor, _EXTENDED + (family >> 4) if family > 2 * _EXTENDED else family, model


def assumed_socket_rate() -> Rate:
    """What to reckon with between sockets of an unknown processor."""
    return Rate(
        bytes_per_second=10 * GB, source="assumed: the least NCCL reckons with for servers (UPI)", date="2026-01"
    )


def nic_rate(name_or_model: str | None) -> Rate | None:
    """Rate of a network card; None where its text tells neither a speed nor a model of the table.

    Understands a speed as Linux prints it ("400 Gb/sec (4X NDR)", "100GbE"), a model in a PCI name
    ("MT2910 Family [ConnectX-7]": its fastest card, so at most that), and an AWS instance type
    ("p5.48xlarge": one of its EFA cards). RoCE at 40 Gbit/s calls itself QDR and so counts as 32.
    """
    text = name_or_model or ""
    lanes, speed = _INFINIBAND.search(text), _PLAIN_SPEED.search(text)
    if lanes is not None:
        return infiniband_rate(lanes[2], int(lanes[1]))
    if speed is not None and float(speed[1]):
        return Rate(bytes_per_second=float(speed[1]) * _GBIT, source=f"speed as told: {speed[0]}", date="2026-01")
    for pattern, gbit, what in NIC_GBIT:
        if re.search(rf"(?<![\w.-]){pattern}(?![\w.-])", text, re.IGNORECASE):
            return Rate(bytes_per_second=gbit * _GBIT, source=f"{what}: {NIC_SOURCE}", date=NIC_DATE)
    return None


def infiniband_rate(generation: str, num_lanes: int = 4) -> Rate | None:
    """Rate of an InfiniBand port of so many lanes, after line coding; None for an unknown generation ("NDR")."""
    lane = INFINIBAND_LANE_GBIT.get(generation.upper())
    if lane is None or num_lanes < 1:
        return None
    return Rate(
        bytes_per_second=lane * num_lanes * _GBIT,
        source=f"InfiniBand {num_lanes}X {generation.upper()}, InfiniBand Trade Association roadmap",
        date="2024-01",
    )


def assumed_nic_rate() -> Rate:
    """What to reckon with for a network card of unknown rate: 10 Gbit/s."""
    return Rate(
        bytes_per_second=10 * _GBIT,
        source="assumed: 10 Gbit/s, which NCCL also takes where a card tells no speed",
        date="2026-01",
    )


def c2c_rate(name: str | None) -> Rate | None:
    """NVLink-C2C between a GPU of that name and its CPU; None for GPUs without or not in the table."""
    return _by_word(C2C_GB, name)


def xgmi_rate(name: str | None) -> Rate | None:
    """One Infinity Fabric link between two AMD GPUs of that name; None if it is not in the table."""
    return _by_word(XGMI_GB, name)


def _by_word(rows: tuple[tuple[str, float, str, str], ...], name: str | None) -> Rate | None:
    words = name_words(name or "")
    for word, rate, source, date in rows:
        if word in words:
            return Rate(bytes_per_second=rate * GB, source=source, date=date)
    return None
