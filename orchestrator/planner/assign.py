"""Who takes how much: rows per rank and forward pass, and bytes of the frozen base per rank and tier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from orchestrator.planner.resident import resident_cut
from orchestrator.planner.shards import (
    Cut,
    Gather,
    ShardRank,
    Shortage,
    equal_cut,
    gather_seconds,
    host_room,
    slowest_link,
)
from topology.units import MIB, format_bytes

_EXACT_RANKS: Final = 16  # up to here granules are whole numbers in the program, above they are rounded up after it
_SAME: Final = 1e-9


def share_rows(rows: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Cut `rows` in proportion to `weights`, at least one row each, summing exactly to `rows`.

    Largest remainders win, lower ranks first among equals.
    """
    ranks = len(weights)
    if rows < ranks:
        msg = f"{rows} rows cannot give {ranks} ranks one row each"
        raise ValueError(msg)
    if len(set(weights)) == 1:
        each, rest = divmod(rows, ranks)
        return tuple(each + (rank < rest) for rank in range(ranks))
    free, total = rows - ranks, sum(weights)
    ideal = [free * weight / total for weight in weights]
    shares = [math.floor(part) for part in ideal]
    order = sorted(range(ranks), key=lambda rank: (-(ideal[rank] - shares[rank]), rank))
    for rank in order[: free - sum(shares)]:
        shares[rank] += 1
    return tuple(share + 1 for share in shares)


def micro_options(shares: Sequence[int]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """All balanced (micro per rank, accumulation) pairs, smallest micro-batch first.

    Every number of forward passes that changes the largest micro-batch appears once: with 6 rows,
    micro-batches 1, 2, 3 and 6.
    """
    most = max(shares)
    # ceil(most / micro) is floor((most - 1) / micro) + 1, which takes about 2 sqrt(most) values.
    root = math.isqrt(most - 1)
    passes = {1, *((most - 1) // micro + 1 for micro in range(1, root + 1)), *range(1, root + 2)}
    return tuple(
        (tuple(math.ceil(share / accumulation) for share in shares), accumulation)
        for accumulation in sorted(passes, reverse=True)
    )


def forced_micro(shares: Sequence[int], micro: int) -> tuple[tuple[int, ...], int]:
    """Return the pair for the user's own micro-batch (never above a rank's share)."""
    return tuple(min(micro, share) for share in shares), math.ceil(max(shares) / min(micro, max(shares)))


def assign_shards(ranks: Sequence[ShardRank], total_bytes: int, *, granule_bytes: int = 16 * MIB) -> Cut | Shortage:
    """Cut the frozen base so that one gather of all of it takes the least time.

    Minimises T over d_i (device) and h_i (host) with sum(d_i + h_i) = S, where for each rank i

        d_i <= device_bytes_i
        h_i <= host_bytes_i, and S + h_i <= window_bytes_i     (landing: S - d_i; sends: d_i + h_i)
        T >= h_i / B_host_i
        padded:     T >= (P - 1) max_j(d_j + h_j) / B_min
        broadcast:  T >= (d_i + h_i) / B_out_i, T >= (S - d_i - h_i) / B_in_i

    and with `shares_path` the host's and the link's seconds of a rank add up. Among cuts of equal T the one with the
    fewest bytes in host memory is taken. Padded or broadcast is chosen like the HAP paper does (arXiv 2401.05965):
    whichever is shorter. Where device memory is enough for the best cut, `resident` finds it; elsewhere HiGHS does, in
    whole granules up to 16 ranks; beyond, granules are rounded up, which adds less than one granule's time.
    """
    units = -(-total_bytes // granule_bytes)
    room = [(rank.device_bytes // granule_bytes, _host_units(rank, total_bytes, granule_bytes)) for rank in ranks]
    shortage = _shortage(ranks, total_bytes, room, units * granule_bytes, granule_bytes)
    if shortage is not None:
        return shortage
    best: Cut | None = None
    for gather in Gather:
        resident = resident_cut(ranks, units, room, gather)
        solved = _solve(ranks, units, room, gather) if resident is None else [(kept, 0) for kept in resident]
        device, host = _trimmed(ranks, solved, units, granule_bytes, total_bytes)
        seconds = gather_seconds(ranks, device, host, gather)
        if best is None or seconds < best.seconds * (1 - _SAME):
            best = Cut(device=device, host=host, gather=gather, seconds=seconds)
    equal = equal_cut(ranks, total_bytes)
    if best is not None and equal is not None and equal.seconds < best.seconds:
        return equal  # whole granules cost more than the unevenness gains
    return best if best is not None else Shortage(missing_bytes=total_bytes, reason="no ranks")


def _host_units(rank: ShardRank, total_bytes: int, granule_bytes: int) -> int:
    return host_room(rank, total_bytes) // granule_bytes


def _shortage(
    ranks: Sequence[ShardRank], total_bytes: int, room: Sequence[tuple[int, int]], needed: int, granule_bytes: int
) -> Shortage | None:
    slow = [(total_bytes - rank.window_bytes, rank.name) for rank in ranks if rank.window_bytes < total_bytes]
    if slow:
        missing, name = max(slow)
        reason = (
            f"{format_bytes(missing)} of {format_bytes(total_bytes)} a pass do not get through the memory of {name} "
            "while it computes: a larger micro-batch makes the pass longer"
        )
        return Shortage(missing_bytes=missing, reason=reason)
    held = sum(device + host for device, host in room) * granule_bytes
    if held >= needed:
        return None
    device = sum(device for device, _ in room) * granule_bytes
    reason = (
        f"{format_bytes(total_bytes)} do not fit {format_bytes(device)} of device memory and "
        f"{format_bytes(held - device)} of host memory that can be used: {format_bytes(needed - held)} missing"
    )
    return Shortage(missing_bytes=needed - held, reason=reason)


def _solve(
    ranks: Sequence[ShardRank], units: int, room: Sequence[tuple[int, int]], gather: Gather
) -> list[tuple[int, int]]:
    """Granules per rank (device, host) with the least T, then with the fewest in host memory."""
    # Loading these takes longer than the plan of a machine of few devices.
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(ranks)
    # Variables: d_0..d_P-1, h_0..h_P-1, the largest shard m, T (in granules per byte and second: scaled to order 1).
    rows, lower = _rows(ranks, units, gather)
    upper = [*(device for device, _ in room), *(host for _, host in room), units, np.inf]
    integral = np.array([1.0] * (2 * count) + [0.0, 0.0]) if count <= _EXACT_RANKS else np.zeros(2 * count + 2)

    def minimum(cost: Any, most: float) -> Any:  # noqa: ANN401 - arrays of numpy
        bounds = Bounds(np.zeros(2 * count + 2), np.array([*upper[:-1], most]))
        found = milp(
            cost,
            constraints=LinearConstraint(
                np.array(rows), np.array(lower), np.array([lower[0], *[np.inf] * (len(rows) - 1)])
            ),
            bounds=bounds,
            integrality=integral,
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            msg = f"HiGHS found no cut where there is room for one: {found.message}"
            raise RuntimeError(msg)
        return found.x

    time_cost, host_cost = np.zeros(2 * count + 2), np.zeros(2 * count + 2)
    time_cost[-1] = 1.0
    host_cost[count : 2 * count] = 1.0
    least = minimum(time_cost, np.inf)[-1]
    x = minimum(host_cost, least * (1 + 1e-7) + 1e-9)
    return [(math.ceil(x[at] - 1e-6), math.ceil(x[count + at] - 1e-6)) for at in range(count)]


def _rows(ranks: Sequence[ShardRank], units: int, gather: Gather) -> tuple[list[list[float]], list[float]]:
    """Rows and lower limits of A x >= b, the first of them an equation.

    Seconds are counted in those of one granule over the slowest link.
    """
    count, slowest = len(ranks), slowest_link(ranks)
    rows = [[1.0] * (2 * count) + [0.0, 0.0]]
    lower = [float(units)]

    def add(limit: float, terms: dict[int, float]) -> None:
        row = [0.0] * (2 * count + 2)
        for at, factor in terms.items():
            row[at] += factor
        rows.append(row)
        lower.append(limit)

    most, time = 2 * count, 2 * count + 1
    for at, rank in enumerate(ranks):
        copies = slowest / rank.host_bytes_per_second
        own = {at: -1.0, count + at: -1.0}
        add(0.0, {most: 1.0, **own})
        if gather is Gather.padded:
            link, constant = {most: -(count - 1.0)}, 0.0
        else:
            out, into = slowest / rank.out_bytes_per_second, slowest / rank.in_bytes_per_second
            add(0.0, {time: 1.0, at: -out, count + at: -out})
            link, constant = {at: into, count + at: into}, into * units
        add(constant, {time: 1.0, **link})
        both = dict(link) if rank.shares_path else {}
        both[count + at] = both.get(count + at, 0.0) - copies
        add(constant if rank.shares_path else 0.0, {time: 1.0, **both})
    return rows, lower


def _trimmed(
    ranks: Sequence[ShardRank], solved: Sequence[tuple[int, int]], units: int, granule_bytes: int, total_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that sum exactly to the base: whole granules, without those beyond it, the last one cut."""
    device, host = [d for d, _ in solved], [h for _, h in solved]
    surplus = sum(device) + sum(host) - units
    for part in (host, device):
        for at in sorted(range(len(ranks)), key=lambda rank: -(device[rank] + host[rank])):
            taken = min(surplus, part[at])
            part[at] -= taken
            surplus -= taken
    sizes = [[granule_bytes * count for count in part] for part in (device, host)]
    spare = units * granule_bytes - total_bytes
    for part in reversed(sizes):
        for at, held in enumerate(part):
            if spare and held >= spare:
                part[at] -= spare
                spare = 0
    return tuple(sizes[0]), tuple(sizes[1])
