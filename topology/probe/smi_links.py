"""The NVLinks that a matrix's counts stand for: direct ones, or a bundle of each GPU to NVSwitches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.grouping import connected
from topology.link_rates import Rate, nvlink_rate
from topology.model import Link, Switch, SwitchKind
from topology.pcie_tree import told_link
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# NVLinks of one GPU; of an unknown one at most as many as any has (H100, B200).
_MOST_LINKS: Final = 18
_LINKS_OF: Final = {"P100": 4, "V100": 6, "A100": 12, "A800": 12, "A30": 4, "A6000": 4}
_LINK_BYTES_PER_SECOND: Final = 25 * GB
_ASSUMED_SOURCE: Final = "the text names no GPU; 25 GB/s an NVLink, as V100, A100 and H100 have"


def nvlinks(
    host: str,
    counts: Mapping[tuple[str, str], int],
    names: Mapping[str, str],
) -> tuple[tuple[Switch, ...], tuple[Link, ...], tuple[str, ...]]:
    """Return switches, links and warnings for the NVLink counts of pairs of device ids.

    GPUs that all see each other with one count, more than a GPU has links for, are joined by NVSwitches, which
    are one switch here. `names` are those of the GPUs where the text tells them.
    """
    ids = list(dict.fromkeys(end for pair in counts for end in pair))
    switches: list[Switch] = []
    links: list[Link] = []
    warnings: list[str] = []
    for island in connected(ids, counts):
        inside = {pair: count for pair, count in counts.items() if pair[0] in island}
        widest = {name: max(count for pair, count in inside.items() if name in pair) for name in island}
        total = {name: sum(count for pair, count in inside.items() if name in pair) for name in island}
        over = [name for name in island if total[name] > _most_links(names.get(name))]
        if not over:
            links += [_link(a, b, count, names, (a, b)) for (a, b), count in inside.items()]
        elif _is_switched(island, inside, widest):
            at = len(switches)
            switch = Switch(id=f"{host}/nvswitch{at or ''}", kind=SwitchKind.nvswitch, host=host)
            switches.append(switch)
            links += [_link(name, switch.id, widest[name], names, (name,)) for name in island]
        else:
            warnings.append(
                f"{over[0]} has {total[over[0]]} NVLinks to others, more than any GPU, and no NVSwitch would show "
                "these counts: no NVLinks are taken from them"
            )
    return tuple(switches), tuple(links), tuple(warnings)


def _most_links(name: str | None) -> int:
    words = (name or "").replace("-", " ").split()
    return next((most for chip, most in _LINKS_OF.items() if chip in words), _MOST_LINKS)


def _is_switched(island: Sequence[str], counts: Mapping[tuple[str, str], int], widest: Mapping[str, int]) -> bool:
    # A GPU that lost links shows the smaller count to all others.
    is_complete = len(counts) == len(island) * (len(island) - 1) // 2
    return is_complete and all(count == min(widest[a], widest[b]) for (a, b), count in counts.items())


def _link(a: str, b: str, count: int, names: Mapping[str, str], gpus: Sequence[str]) -> Link:
    rates = [nvlink_rate(name=names[gpu]) if gpu in names else None for gpu in gpus]
    known = [rate for rate in rates if rate is not None]
    slowest = min(known, key=lambda rate: rate.bytes_per_second) if len(known) == len(rates) else None
    assumed = Rate(bytes_per_second=_LINK_BYTES_PER_SECOND, source=_ASSUMED_SOURCE, date="2026-01")
    return told_link(a, b, f"NV{count}", _times(slowest, count), _times(assumed, count) or assumed)


def _times(rate: Rate | None, count: int) -> Rate | None:
    if rate is None:
        return None
    return Rate(bytes_per_second=rate.bytes_per_second * count, source=rate.source, date=rate.date)
