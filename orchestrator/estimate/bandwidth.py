"""How many bytes may be fetched while one layer computes, so that fetching does not slow the computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.errors import Problem, UserError

CHUNK_BYTES: Final = 16 * 2**20


def window_bytes(
    headroom: float, memory_bytes_per_second: float, layer_seconds: float, chunk_bytes: int = CHUNK_BYTES
) -> int:
    """Bytes that one device may start to fetch in a compute window: whole chunks, at least one.

    A fetched byte crosses the device memory's bus when it lands, beside what the layer itself moves; `headroom` is
    the share of the bus that the layer leaves over. One chunk is always allowed, so that fetching goes on.

    Args:
        headroom: share of the memory's rate, from 0 to 1.
        memory_bytes_per_second: rate of the device memory.
        layer_seconds: how long one layer computes.
        chunk_bytes: size of one transfer.

    Raises:
        UserError: a number is out of its range.
    """
    problems = [
        Problem(where=f"bandwidth budget, {name}", found=f"found {value}", remedy=f"Use {wanted}.")
        for name, value, is_good, wanted in (
            ("headroom", headroom, 0 <= headroom <= 1, "a share from 0 to 1"),
            ("memory_bytes_per_second", memory_bytes_per_second, memory_bytes_per_second > 0, "more than 0"),
            ("layer_seconds", layer_seconds, 0 <= layer_seconds < float("inf"), "0 or more seconds"),
            ("chunk_bytes", chunk_bytes, chunk_bytes > 0, "more than 0"),
        )
        if not is_good
    ]
    if problems:
        raise UserError(*problems)
    chunks = int(headroom * memory_bytes_per_second * layer_seconds / chunk_bytes)
    return max(1, chunks) * chunk_bytes


def chunks_per_second(headroom: float, memory_bytes_per_second: float, chunk_bytes: int = CHUNK_BYTES) -> float:
    """Highest rate of chunks that a device can keep up."""
    return headroom * memory_bytes_per_second / chunk_bytes


def common_window_bytes(each: Sequence[int]) -> int:
    """Bytes that all ranks gather in a window: what the tightest of them may.

    Gathers need every rank at once, so that no rank can go ahead of another.
    """
    return min(each)
