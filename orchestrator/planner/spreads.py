"""How many ranks each host takes where not all can take equally many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def filled(room: Sequence[int], total: int) -> tuple[int, ...]:
    """Fill one host after the other; `room` is for at least `total` ranks, and hosts that get none get 0."""
    counts = []
    left = total
    for most in room:
        counts.append(min(most, left))
        left -= counts[-1]
    return tuple(counts)


def levelled(room: Sequence[int], total: int) -> tuple[int, ...]:
    """Give each host as nearly the same as its room allows, the first of equals more; `total` fits in."""
    level = 0
    while level < max(room) and sum(min(most, level + 1) for most in room) <= total:
        level += 1
    counts = [min(most, level) for most in room]
    over = [at for at, most in enumerate(room) if most > level][: total - sum(counts)]
    return tuple(count + (at in over) for at, count in enumerate(counts))


def spreads(room: Sequence[int], firsts: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Yield ways to put `total` ranks on few hosts, some hosts full and as even as can be, each once.

    Args:
        room: of each host, at least 1.
        firsts: hosts of which each is filled first once: one of each kind.
        total: at most the sum of the room.
    """
    found: dict[tuple[int, ...], None] = {}
    by_room = sorted(range(len(room)), key=lambda at: -room[at])
    for first in dict.fromkeys((by_room[0], *firsts)):
        alike = [at for at in by_room if room[at] == room[first] and at >= first]
        order = [first, *(at for at in alike if at != first), *(at for at in by_room if at not in {first, *alike})]
        few = next(k for k in range(1, len(order) + 1) if sum(room[at] for at in order[:k]) >= total)
        for share in (filled, levelled):
            counts = dict(zip(order, share([room[at] for at in order[:few]], total), strict=False))
            found.setdefault(tuple(counts.get(at, 0) for at in range(len(room))))
    yield from found
