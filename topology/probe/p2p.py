"""Which pairs of GPUs cannot reach each other's memory, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.probe.host_readings import NOT_READ

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from topology.probe.readings import P2pReadings

# NVML_P2P_STATUS_*; 0 is OK.
_STATUS: Final[Mapping[int, str]] = {
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology of the I/O hub not supported",
    4: "disabled by a driver setting (registry key)",
    5: "not supported",
    6: "unknown",
}
# Cards, virtual machines and old drivers without the call: nothing is wrong there.
_USUAL: Final = frozenset({NOT_READ.error, "NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})
_MAX_NAMED: Final = 8


def p2p_warnings(indices: Collection[int], readings: Sequence[P2pReadings]) -> list[str]:
    """Tell the pairs of these GPUs whose peer-to-peer reads or writes are off, by what is off and why."""
    own = [row for row in readings if row.a_index in indices and row.b_index in indices]
    off: dict[str, list[str]] = {}
    for row in own:
        told = [
            f"{what} {_STATUS.get(reading.value, f'status {reading.value}')}"
            for what, reading in (("reads", row.read), ("writes", row.write))
            if reading.value
        ]
        if told:
            off.setdefault(", ".join(told), []).append(f"GPU {row.a_index} - GPU {row.b_index}")
    told = [f"{name_pairs(names, len(own))}: no peer-to-peer: {why}" for why, names in off.items()]
    return told + _unread(own)


def _unread(own: Sequence[P2pReadings]) -> list[str]:
    failed: dict[str, list[str]] = {}
    for row in own:
        if row.read.error is not None and row.read.error not in _USUAL:
            failed.setdefault(row.read.error, []).append(f"GPU {row.a_index} - GPU {row.b_index}")
    return [f"{name_pairs(names, len(own))}: peer-to-peer status unreadable ({code})" for code, names in failed.items()]


def name_pairs(names: Sequence[str], num_pairs: int) -> str:
    """Name some of `num_pairs` pairs: the first few, or all of them in one word."""
    if len(names) == num_pairs > _MAX_NAMED:
        return f"all {num_pairs} GPU pairs"
    more = f" and {len(names) - _MAX_NAMED} more pairs" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
