"""Colours, line widths and words of a picture."""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.pcie_tree import BETWEEN
from topology.render.svg_shapes import Stroke
from topology.units import GB, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Link

SWITCHED: Final = "#4d8b00"
DEGRADED: Final = "#d3212d"
NETWORK: Final = "#0f766e"
PCIE_COLOUR: Final = "#64748b"
SOCKET_COLOUR: Final = "#92643c"
COHERENT: Final = "#b5179e"
OTHER: Final = "#6b7280"
_XGMI: Final = "#a8480c"
# Told apart by people who do not see red or green, too; red is left for what is wrong.
_DIRECT: Final[Mapping[int, str]] = MappingProxyType({1: "#1d6fb8", 2: "#e08a00", 3: "#7b3fa0", 4: "#0b8a74"})
# Pale, so that black text reads well on them.
ISLANDS: Final = ("#dcf0c4", "#cfe5fa", "#fde3bd", "#ead9f5", "#c9efe6", "#f8d7e3")
NO_ISLAND: Final = "#f8fafc"
_PCIE_KINDS: Final = frozenset({"PCIe", "CPU", "port", "virtual"})
_COUNT: Final = re.compile(r"(?:NV|XGMI)([1-9]\d{0,5})")
_LEAST_PX, _MOST_PX, _PX_PER_ROOT_GB = 1.0, 11.0, 0.42
_PLAIN_PX: Final = 1.2


def count_of(kind: str) -> int | None:
    """Return how many links a bundle such as NV12 has; None for other kinds."""
    found = _COUNT.fullmatch(kind)
    return None if found is None else int(found[1])


def is_nvlink(kind: str) -> bool:
    """Whether the link is one of a fabric between GPUs."""
    return count_of(kind) is not None


def width_px(bytes_per_second: float | None) -> float:
    """Width of a line: it grows with the square root, so that a tenth of the rate is still seen."""
    if bytes_per_second is None:
        return _PLAIN_PX
    gigabytes = bytes_per_second / GB
    return min(max(_LEAST_PX, _PX_PER_ROOT_GB * math.sqrt(gigabytes)), _MOST_PX)


def colour_of(kind: str, *, switched: bool = False) -> str:
    """Colour of a kind of link; `switched` tells that it ends at an NVSwitch."""
    if kind.startswith("XGMI"):
        return _XGMI
    count = count_of(kind)
    if count is not None:
        return SWITCHED if switched else _DIRECT.get(count, SWITCHED)
    known = {BETWEEN: SOCKET_COLOUR, "C2C": COHERENT, "NET": NETWORK}
    return known.get(kind, PCIE_COLOUR if kind in _PCIE_KINDS else OTHER)


def stroke_of(link: Link, *, switched: bool = False, degraded: bool = False) -> Stroke:
    """Look of a link: dashed where its rate is not known."""
    colour = DEGRADED if degraded else colour_of(link.kind, switched=switched)
    dashed = link.bytes_per_second is None and link.kind not in {"CPU", "port"}
    return Stroke(colour=colour, width_px=width_px(link.capacity_bytes_per_second), dashed=dashed)


def short_rate(link: Link) -> str:
    """Write the capacity in GB/s in a few characters, `≈` where it is assumed, nothing where there is none."""
    rate = link.capacity_bytes_per_second
    if rate is None:
        return ""
    mark = "\u2248" if link.bytes_per_second is None else ""
    return mark + gigabytes(rate)


def gigabytes(bytes_per_second: float) -> str:
    """Write a rate in GB/s with two or three digits."""
    value = bytes_per_second / GB
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004 - below it, three digits need a point


def told(link: Link, ends: str) -> str:
    """Tell all about a link: its ends, kind, rate and source."""
    if link.bytes_per_second is not None:
        rate = f"{format_rate(link.bytes_per_second)} per direction"
    elif link.assumed_bytes_per_second is not None:
        rate = f"rate unknown, {format_rate(link.assumed_bytes_per_second)} assumed"
    else:
        rate = "no rate of its own" if link.kind in {"CPU", "port"} else "rate unknown"
    return f"{ends}: {link.kind}, {rate}\nsource: {link.source}"
