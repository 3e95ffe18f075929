"""Peak rates of links, per direction: each row with its source and date; what is not in a table stays unknown."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.checks import check, negative
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Mapping


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


# Advertised GB/s of one NVLink in one direction by compute capability. Later chips are unknown.
_LINK_GB: Final[Mapping[tuple[int, int], float]] = MappingProxyType(
    {
        (6, 0): 20.0,
        (7, 0): 25.0,
        (7, 5): 25.0,
        (8, 0): 25.0,
        (8, 6): 14.0625,
        (9, 0): 25.0,
        (10, 0): 50.0,
        (10, 3): 50.0,
    },
)
# By the driver's NVLink version code, for cards that do not tell their capability. Drivers hand out two numberings
# (nvml.h: 4 is NVLink 3.0, 6 is 4.0, 7 is 5.0; the kernel driver's: 5 is 3.0, 7 is 4.0, 8 is 5.0): the slower holds.
_VERSION_GB: Final[Mapping[int, float]] = MappingProxyType(
    {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 14.0625, 6: 14.0625, 7: 25.0, 8: 50.0},
)
# GB/s of one lane in one direction after line coding: 8b/10b, 128b/130b, from 64 GT/s 236 of 256 bytes of a flit.
# Packet headers take some 10-20% more.
_LANE_GB: Final[Mapping[int, float]] = MappingProxyType(
    {
        1: 0.25,
        2: 0.5,
        3: 8 * 128 / 130 / 8,
        4: 16 * 128 / 130 / 8,
        5: 32 * 128 / 130 / 8,
        6: 64 * 236 / 256 / 8,
    },
)
_ASSUMED_GENERATION, _ASSUMED_WIDTH = 3, 16


def nvlink_rate(
    *,
    compute_capability: tuple[int, int] | None = None,
    name: str | None = None,
    version: int | None = None,
) -> Rate | None:
    """One NVLink of a GPU, by its chip, else its name, else the driver's version code; None if none is known."""
    if compute_capability is not None:
        rate, by = _LINK_GB.get(compute_capability), "chip generation"
    else:
        rate, by = _VERSION_GB.get(version or 0), "the driver's NVLink version"
    if rate is None:
        return None
    return Rate(bytes_per_second=rate * GB, source=f"NVIDIA whitepapers, advertised rate by {by}", date="2026-01")


def pcie_rate(generation: int | None, width: int | None) -> Rate | None:
    """Rate of a PCIe link after line coding; None where either is unknown or not in the table."""
    lane = _LANE_GB.get(generation or 0)
    if lane is None or not width:
        return None
    return Rate(
        bytes_per_second=lane * width * GB,
        source=f"PCIe Gen{generation} x{width}, PCI Express base specification 6.0",
        date="2022-01",
    )


def assumed_pcie_rate() -> Rate:
    """What to reckon with where the generation or width of a PCIe link is unknown: the least a server has."""
    rate = pcie_rate(_ASSUMED_GENERATION, _ASSUMED_WIDTH)
    assert rate is not None  # noqa: S101 - both are in the table
    return rate


def socket_rate(cpu_name: str | None) -> Rate | None:
    """Rate between two sockets of that processor (all links of the pair); None if it is not in the table."""
    return None if cpu_name is None else None


def assumed_socket_rate() -> Rate:
    """What to reckon with between sockets of an unknown processor."""
    return Rate(
        bytes_per_second=10 * GB, source="assumed: the least NCCL reckons with for servers (UPI)", date="2026-01"
    )
