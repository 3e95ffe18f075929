"""Suspicious links: NVLinks fewer than they should be, or missing, and PCIe links below what the card can do."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from topology.link_rates import max_nvlinks
from topology.model import SwitchKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from topology.model import Device, Topology

# Cards that are sold on NVLink boards only: without any NVLink among two of them, something is off.
_BOARD_ONLY: Final = re.compile(r"SXM\d|\bHBM3e?$|\bH20\b|\bH200$|\bB[23]00$|\bGB[23]00\b")
_DOWN: Final = "see `nvidia-smi nvlink -s`; reset the GPU or reboot, and if they stay down have the board replaced"
_MANAGER: Final = (
    "check `systemctl status nvidia-fabricmanager` (its version must be the driver's) and `nvidia-smi nvlink -s`"
)
_HIDDEN: Final = "nvlink"
_ASK: Final = "see `nvidia-smi nvlink -s`"
_SEVERAL: Final = 2
_MOST: Final = 2 / 3
_UNNAMED: Final = "unknown GPU"  # of texts; a board with NVSwitches has one kind of GPU


def link_warnings(one: Topology, names: Mapping[str, str], *, is_switched: bool) -> Iterator[str]:
    """Tell of the NVLinks and PCIe links of one host's GPUs."""
    gpus = one.gpus
    counts = _switch_counts(one) if is_switched else _bundle_counts(one)
    most = {device.id: _sold_with(device) for device in gpus} if is_switched else {}
    told = {device.id for device in gpus if _HIDDEN not in device.unread}
    yield from _degraded({name: count for name, count in counts.items() if name in told}, most, names)
    is_whole = not any(device.mig or _HIDDEN in device.unread for device in gpus)
    hidden = [names[device.id] for device in gpus if _HIDDEN in device.unread and _BOARD_ONLY.search(device.name)]
    if hidden:
        yield f"{', '.join(hidden)}: the state of the NVLinks cannot be read; whether they are up is unknown: {_ASK}"
    is_dark = not any(link.kind.startswith("NV") for link in one.links) and not any(p.is_nvlink for p in one.pairs)
    if len(gpus) >= _SEVERAL and is_dark and is_whole and all(_BOARD_ONLY.search(device.name) for device in gpus):
        yield f"no NVLink among {len(gpus)} {gpus[0].name}, which are made for it: {_MANAGER}"
    if not one.hosts[0].is_virtual:  # a hypervisor tells what it likes of slots
        yield from _slow_slots(gpus, names)


def _switch_counts(one: Topology) -> dict[str, int]:
    switches = {switch.id for switch in one.switches if switch.kind is SwitchKind.nvswitch}
    own = {device.id for device in one.gpus}
    counts: Counter[str] = Counter()
    for link in one.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end in own and other in switches:
                counts[end] += _num_links(link.kind)
    return {**_without(one, counts, is_switched=True), **counts}


def _without(one: Topology, counts: Mapping[str, int], *, is_switched: bool) -> dict[str, int]:
    """Give 0 to the GPUs that have no NVLink although all of their kind are made for it, and some have."""
    linked = {device.name for device in one.gpus if counts.get(device.id)}
    return {
        device.id: 0
        for device in one.gpus
        if device.name in linked
        and device.parent is None
        and (_BOARD_ONLY.search(device.name) or (device.name == _UNNAMED and is_switched))
    }


def _bundle_counts(one: Topology) -> dict[str, int]:
    """Widest bundle of each GPU, where each bundle is as wide as its narrower end allows; else nothing.

    In meshes such as the hybrid cube, NV1 and NV2 are by design, and a GPU of NV2 also has NV1 to such another.
    """
    bundles = {(pair.a, pair.b): _num_links(pair.kind) for pair in one.pairs if pair.is_nvlink}
    widest: dict[str, int] = {}
    for ends, count in bundles.items():
        for end in ends:
            widest[end] = max(count, widest.get(end, 0))
    is_plain = all(count == min(widest[a], widest[b]) for (a, b), count in bundles.items())
    usual, number = Counter(bundles.values()).most_common(1)[0] if bundles else (0, 0)
    if not is_plain and usual == max(bundles.values()) and number >= _MOST * len(bundles):
        # Nearly all bundles are alike: the few that are not are faults, at both their ends.
        return {end: min(count for ends, count in bundles.items() if end in ends) for end in widest}
    dark = {name: 0 for name in _without(one, widest, is_switched=False) if name not in widest}
    return {**widest, **dark} if is_plain else dict.fromkeys(widest, 0)


def _num_links(kind: str) -> int:
    return int(kind[2:]) if kind[2:].isdecimal() else 0


def _sold_with(device: Device) -> int:
    # By name only: of a chip, cards with fewer links are sold too.
    return max_nvlinks(name=device.name) or 0


def _degraded(counts: Mapping[str, int], sold_with: Mapping[str, int], names: Mapping[str, str]) -> Iterator[str]:
    most = max(counts.values(), default=0)
    fewer: dict[tuple[int, int], list[str]] = {}
    for end, count in counts.items():
        whole = max(most, sold_with.get(end, 0))
        if count < whole:
            fewer.setdefault((count, whole), []).append(names[end])
    for (count, whole), ends in sorted(fewer.items()):
        yield f"{', '.join(ends)}: {count} of {whole} NVLinks active; degraded: {_DOWN}"


def _slow_slots(gpus: Sequence[Device], names: Mapping[str, str]) -> Iterator[str]:
    # The largest speed of slot and card together: idle readings do not enter.
    for device in gpus:
        pcie = device.pcie
        if pcie is None or pcie.max_generation is None or pcie.device_max_generation is None:
            continue
        if pcie.max_generation < pcie.device_max_generation:
            yield (
                f"{names[device.id]}: PCIe Gen{pcie.max_generation} slot under a Gen{pcie.device_max_generation} card; "
                "check slot, riser and BIOS setting"
            )
    by_name: dict[str, list[Device]] = {}
    for device in gpus:
        by_name.setdefault(device.name, []).append(device)
    for alike in by_name.values():
        widths = {d.id: d.pcie.max_width for d in alike if d.pcie is not None and d.pcie.max_width is not None}
        widest = max(widths.values(), default=0)
        for name, width in widths.items():
            if width < widest:
                yield f"{names[name]}: PCIe x{width} where its like have x{widest}; check slot, riser and seating"
