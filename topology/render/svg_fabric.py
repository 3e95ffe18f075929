"""NVLinks of a host: bars for NVSwitches, lanes for direct links, in the band beside or between the rows of GPUs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.model import Link, SwitchKind
from topology.render.svg_style import count_of, is_nvlink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.model import Switch
    from topology.render.svg_parts import Part

_MOST_DIRECT_PAIRS: Final = 6  # of an island without links, beyond which one bar stands for all
_UNTOLD: Final = "the pair's label; no link tells the rate"
_MANY: Final = 4  # links of a bundle from which on fewer than the others are a fault, not a design


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """NVSwitches that join the same devices: one link for each device, bundled over the switches."""

    switches: tuple[Switch, ...]
    links: tuple[tuple[str, Link], ...]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What joins the GPUs of a host past PCIe: bars, links between bars (by their ranks), direct links."""

    bars: tuple[Bar, ...] = ()
    trunks: tuple[tuple[int, int, Link], ...] = ()
    direct: tuple[Link, ...] = ()
    degraded: frozenset[tuple[str, str]] = frozenset()

    @property
    def is_mesh(self) -> bool:
        """Whether GPUs are joined directly, by more than one pair."""
        return len(self.direct) > 1

    def is_degraded(self, link: Link) -> bool:
        """Whether the link has fewer NVLinks than its peers."""
        return (link.a, link.b) in self.degraded or (link.b, link.a) in self.degraded


def fabric_of(part: Part, leaf_of: Mapping[str, str]) -> Fabric:
    """Find the fabric of a host; `leaf_of` maps the ids of drawn devices to the ids of their boxes."""
    switches = {s.id: s for s in part.switches if s.kind is SwitchKind.nvswitch}
    uplinks: dict[str, dict[str, list[Link]]] = defaultdict(lambda: defaultdict(list))
    direct: dict[frozenset[str], Link] = {}
    between = []
    for link in part.links:
        low, high = (link.b, link.a) if link.a in switches else (link.a, link.b)
        if low in switches and high in switches:
            between.append(link)
        elif high in switches and low in leaf_of:
            uplinks[high][leaf_of[low]].append(link)
        elif low in leaf_of and high in leaf_of and leaf_of[low] != leaf_of[high]:
            ends = frozenset((leaf_of[low], leaf_of[high]))
            direct[ends] = bundle([link, *([direct[ends]] if ends in direct else [])], leaf_of[low], leaf_of[high])
    bars = _bars(switches, uplinks)
    joined = {name for bar in bars for name, _ in bar.links} | {name for ends in direct for name in ends}
    joined |= {
        leaf_of[end] for link in part.outward if is_nvlink(link.kind) for end in (link.a, link.b) if end in leaf_of
    }
    more_bars, more_direct = _from_pairs(part, leaf_of, joined)
    bars, links = (*bars, *more_bars), (*direct.values(), *more_direct)
    degraded = _degraded(part, (*(link for bar in bars for _, link in bar.links), *links))
    return Fabric(bars=bars, trunks=_trunks(bars, between), direct=links, degraded=degraded)


def _bars(switches: Mapping[str, Switch], uplinks: Mapping[str, Mapping[str, list[Link]]]) -> tuple[Bar, ...]:
    alike: dict[frozenset[str], list[str]] = defaultdict(list)
    for name in switches:
        if name in uplinks:
            alike[frozenset(uplinks[name])].append(name)
    bars = []
    for names in alike.values():
        devices = dict.fromkeys(device for name in names for device in uplinks[name])
        links = tuple(
            (device, bundle([one for name in names for one in uplinks[name][device]], device, names[0]))
            for device in devices
        )
        kind = switches[names[0]].name or "NVSwitch"
        title = kind if len(names) == 1 else f"{len(names)} x {kind}"
        bars.append(Bar(switches=tuple(switches[name] for name in names), links=links, name=title))
    return tuple(bars)


def bundle(links: Sequence[Link], a: str, b: str) -> Link:
    """Take links side by side for one link between two ids."""
    if len(links) == 1:
        return replace(links[0], a=a, b=b)
    counts = [count_of(link.kind) for link in links]
    prefix = links[0].kind.rstrip("0123456789")
    same = all(link.kind.startswith(prefix) for link in links) and None not in counts
    kind = f"{prefix}{sum(count or 0 for count in counts)}" if same else links[0].kind
    known = [link.bytes_per_second for link in links if link.bytes_per_second is not None]
    reckoned = [rate for link in links if (rate := link.capacity_bytes_per_second) is not None]
    is_known = len(known) == len(links)
    return Link(
        a=a,
        b=b,
        kind=kind,
        source=links[0].source,
        bytes_per_second=sum(known) if is_known else None,
        assumed_bytes_per_second=None if is_known or not reckoned else sum(reckoned),
    )


def _from_pairs(part: Part, leaf_of: Mapping[str, str], joined: set[str]) -> tuple[tuple[Bar, ...], tuple[Link, ...]]:
    # A file may tell pairs and no links: they still say who is joined, though not how fast.
    pairs = [pair for pair in part.pairs if pair.is_nvlink and pair.a in leaf_of and pair.b in leaf_of]
    untold = [pair for pair in pairs if leaf_of[pair.a] not in joined and leaf_of[pair.b] not in joined]
    untold = [pair for pair in untold if leaf_of[pair.a] != leaf_of[pair.b]]
    if not untold:
        return (), ()
    names = sorted({leaf_of[end] for pair in untold for end in (pair.a, pair.b)}, key=list(leaf_of.values()).index)
    is_whole = len(untold) == len(names) * (len(names) - 1) // 2 and len({pair.kind for pair in untold}) == 1
    if is_whole and len(untold) > _MOST_DIRECT_PAIRS:
        kind = untold[0].kind
        links = tuple((name, Link(a=name, b=f"{name} NVLink", kind=kind, source=_UNTOLD)) for name in names)
        return (Bar(switches=(), links=links, name=f"NVLink, {kind} between any two"),), ()
    return (), tuple(Link(a=leaf_of[p.a], b=leaf_of[p.b], kind=p.kind, source=_UNTOLD) for p in untold)


def _trunks(bars: Sequence[Bar], between: Sequence[Link]) -> tuple[tuple[int, int, Link], ...]:
    rank = {switch.id: at for at, bar in enumerate(bars) for switch in bar.switches}
    found = []
    for a, b in combinations(range(len(bars)), 2):
        links = [link for link in between if {rank.get(link.a), rank.get(link.b)} == {a, b}]
        if links:
            found.append((a, b, bundle(links, links[0].a, links[0].b)))
    return tuple(found)


def _degraded(part: Part, links: Sequence[Link]) -> frozenset[tuple[str, str]]:
    # Among the same GPUs. Meshes of V100 mix NV1 and NV2 by design; wider bundles are all alike where none is down.
    names = {device.id: device.name for device in part.host.devices}
    alike: dict[frozenset[str], list[Link]] = defaultdict(list)
    for link in links:
        if link.kind.startswith("NV") and count_of(link.kind) is not None:
            alike[frozenset(names[end] for end in (link.a, link.b) if end in names)].append(link)
    wrong: set[tuple[str, str]] = set()
    for group in alike.values():
        most = max(count_of(link.kind) or 0 for link in group)
        if most >= _MANY:
            wrong |= {(link.a, link.b) for link in group if (count_of(link.kind) or most) < most}
    return frozenset(wrong)
