"""How ranks lie on hosts: rank 0 and those that follow it on the first, and so on."""

from __future__ import annotations

from collections.abc import Sequence

_FEW_HOSTS = 4


def host_of_rank(counts: Sequence[int], rank: int) -> int:
    """Return the number of the host of a rank; O(hosts).

    Args:
        counts: ranks of each host.
        rank: below their sum.
    """
    if rank < counts[0]:
        return 0
    for at, count in enumerate(counts):
        rank -= count
        if rank < 0:
            return at
    msg = f"rank {rank + sum(counts)} of {sum(counts)}"
    raise ValueError(msg)


def hosts_of_ranks(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the number of the host of each rank."""
    return tuple(at for at, count in enumerate(counts) for _ in range(count))


def is_even(counts: Sequence[int]) -> bool:
    """Whether all hosts have equally many ranks."""
    return len(set(counts)) <= 1


def counts_label(counts: Sequence[int]) -> str:
    """Name the ranks of hosts that differ: ` (4+2)`; empty where they do not."""
    if is_even(counts):
        return ""
    if len(counts) <= _FEW_HOSTS:
        return f" ({'+'.join(map(str, counts))})"
    return f" ({min(counts)} to {max(counts)} each)"
