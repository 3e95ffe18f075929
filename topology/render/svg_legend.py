"""The legend of a picture, and its warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.pcie_tree import BETWEEN
from topology.render.svg_shapes import FAINT, INK, Box, Font, Stroke, group, path, rect, text
from topology.render.svg_style import DEGRADED, ISLANDS, colour_of, count_of, width_px
from topology.render.svg_text import listed
from topology.render.svg_text import width_px as text_px
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.render.svg_host import HostPlan
    from topology.render.svg_network import Network

_FONT: Final = Font(size_px=11)
_HEAD: Final = Font(size_px=12, bold=True)
_FAINT: Final = Font(size_px=11, colour=FAINT)
_LINE: Final = 20.0
_SAMPLE: Final = 34.0
_RATES_GB: Final = (10, 50, 200, 450, 900)
_MOST_WARNINGS: Final = 4
_MOST_ISLANDS: Final = 6
_MOST_LISTED: Final = 4
_AMBER: Final = "#92400e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line or swatch with what it means; entries of one `line` stand together."""

    words: str
    stroke: Stroke | None = None
    fill: str | None = None
    outline: str | None = None
    line: int = 0


def entries_of(plans: Sequence[HostPlan], network: Network) -> list[Entry]:
    """Explain what the picture uses, and nothing else."""
    kinds: dict[tuple[str, str], set[str]] = {}
    rates: list[float] = []
    links = [(link, False) for plan in plans for link in plan.part.links]
    links += [(link, False) for plan in plans for ports in plan.ports.values() for link in ports]
    bars = [link for plan in plans for bar in plan.fabric.bars for _, link in bar.links]
    inner = {switch.id for plan in plans for bar in plan.fabric.bars for switch in bar.switches}
    outer = {switch.id for row in network.rows for hub in row if hub.is_nvswitch for switch in hub.switches}
    links += [(link, True) for link in bars]
    is_assumed = False
    for link, is_bundle in links:
        switched = is_bundle or not {link.a, link.b}.isdisjoint(inner | outer)
        if words := _meaning(link.kind, switched=switched):
            key = (words, colour_of(link.kind, switched=switched))
            kinds.setdefault(key, set()).add(link.kind)
        if (rate := link.capacity_bytes_per_second) is not None:
            rates.append(rate)
        is_assumed = is_assumed or (link.bytes_per_second is None and link.kind not in {"CPU", "port"})
    entries = [_kind_entry(*key, kinds[key]) for key in sorted(kinds)]
    if any(plan.fabric.degraded for plan in plans):
        entries.append(Entry(words="fewer NVLinks than its peers", stroke=Stroke(colour=DEGRADED, width_px=3)))
    if is_assumed:
        dashed = Stroke(colour=FAINT, width_px=2, dashed=True)
        entries.append(Entry(words="rate not known, \u2248 assumed", stroke=dashed))
    return [*entries, *_widths(rates), *_islands(plans)]


def _meaning(kind: str, *, switched: bool) -> str:
    count = count_of(kind)
    if count is not None:
        fabric = "XGMI" if kind.startswith("XGMI") else "NVLink"
        return f"{fabric} to NVSwitch" if switched else f"{fabric} direct"
    known = {"PCIe": "PCIe", BETWEEN: "between NUMA nodes", "NET": "network", "C2C": "NVLink-C2C to the CPU"}
    return known.get(kind, "")


def _kind_entry(words: str, colour: str, kinds: set[str]) -> Entry:
    named = sorted((kind for kind in kinds if count_of(kind) is not None), key=lambda kind: count_of(kind) or 0)
    # Several kinds of one colour are told apart by their labels in the picture.
    told = f"{words}, {listed(named, 4)}" if named and "direct" in words else words
    return Entry(words=told, stroke=Stroke(colour=colour, width_px=3))


def _widths(rates: Sequence[float]) -> list[Entry]:
    if not rates:
        return []
    low, high = min(rates) / GB, max(rates) / GB
    shown = [rate for rate in _RATES_GB if low / 2 <= rate <= high * 1.5] or [10]
    return [
        Entry(words=f"{rate} GB/s", stroke=Stroke(colour=INK, width_px=width_px(rate * GB)), line=1) for rate in shown
    ]


def _islands(plans: Sequence[HostPlan]) -> list[Entry]:
    entries: dict[int, Entry] = {}
    for plan in plans:
        for name, island in plan.names.island.items():
            if island in entries or island >= _MOST_ISLANDS:
                continue
            members = [plan.names.of(other) for other, at in plan.names.island.items() if at == island]
            ends = ", ".join(members) if len(members) <= _MOST_LISTED else f"{members[0]} to {members[-1]}"
            shared = "NVLink island" + (f" {island + 1}" if island else "")
            words = shared if len(plans) > 1 else f"NVLink island: {ends}"
            if name in plan.anchors or any(device.parent for device in plan.part.host.devices):
                entries[island] = Entry(words=words, fill=ISLANDS[island % len(ISLANDS)], line=2)
    return [entries[island] for island in sorted(entries)]


def legend(
    entries: Sequence[Entry],
    left: float,
    top: float,
    width: float,
    head: str = "Numbers beside lines: GB/s per direction. Wider lines carry more.",
) -> tuple[list[str], float]:
    """Draw the legend in as many lines as it takes; also its height."""
    if not entries:
        return [], 0.0
    parts = [text(left, top + 14, head, width, _FAINT)]
    x, y, line = left, top + _LINE, 0
    for entry in entries:
        needed = _SAMPLE + 8 + text_px(entry.words, _FONT.size_px) + 22
        if x > left and (entry.line != line or x + needed > left + width):
            x, y = left, y + _LINE
        line = entry.line
        parts.append(_sample(entry, x, y + 9))
        parts.append(text(x + _SAMPLE + 8, y + 13, entry.words, width - _SAMPLE - 8, _FONT))
        x += needed
    return parts, y + _LINE - top


def _sample(entry: Entry, x: float, y: float) -> str:
    if entry.stroke is not None:
        return path([(x, y), (x + _SAMPLE, y)], entry.stroke)
    return rect(
        Box(x=x + 8, y=y - 7, width=_SAMPLE - 8, height=14),
        entry.fill or "#ffffff",
        entry.outline or "#365314",
        radius_px=3,
    )


def warnings(lines: Sequence[str], left: float, top: float, width: float) -> tuple[list[str], float]:
    """Draw how many warnings there are and the first ones, each in one line with the whole as its tooltip."""
    if not lines:
        return [], 0.0
    count = f"{len(lines)} warning{'' if len(lines) == 1 else 's'}"
    more = len(lines) - _MOST_WARNINGS
    head = count + (f", the first {_MOST_WARNINGS}:" if more > 0 else "")
    font = Font(size_px=12, bold=True, colour=_AMBER)
    parts = [text(left, top + 14, head, width, font)]
    for at, line in enumerate(lines[:_MOST_WARNINGS]):
        parts.append(group(line, [text(left + 8, top + 32 + 16 * at, f"\u2022 {line}", width - 8, _FONT)]))
    return parts, 22.0 + 16 * min(len(lines), _MOST_WARNINGS)
