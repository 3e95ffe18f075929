"""Cuts in device memory alone are as fast as the solver's, which may use host memory as well."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.planner.assign import _solve
from orchestrator.planner.resident import resident_cut
from orchestrator.planner.shards import Gather, ShardRank, gather_seconds

_rate = st.sampled_from([1e9, 2e9, 7e9, 25e9])


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[ShardRank], list[tuple[int, int]], int]:
    """Ranks, their room in granules, and granules that fit both memories together."""
    shares_path = draw(st.booleans())
    ranks, room = [], []
    for at in range(draw(st.integers(2, 6))):
        room.append((draw(st.integers(0, 40)), draw(st.sampled_from([0, 5, 40]))))
        ranks.append(
            ShardRank(
                name=f"r{at}",
                device_bytes=room[-1][0],
                host_bytes=room[-1][1],
                out_bytes_per_second=draw(_rate),
                in_bytes_per_second=draw(_rate),
                host_bytes_per_second=draw(_rate),
                window_bytes=10**9,
                shares_path=shares_path,
            )
        )
    return ranks, room, draw(st.integers(1, max(1, sum(map(sum, room)))))


@pytest.mark.parametrize("gather", Gather)
@given(instance=instances())
@settings(max_examples=60, deadline=None)
def test_a_cut_is_as_fast_as_the_solver_s(
    instance: tuple[list[ShardRank], list[tuple[int, int]], int], gather: Gather
) -> None:
    ranks, room, units = instance
    found = resident_cut(ranks, units, room, gather)
    if sum(device for device, _ in room) < units:
        assert found is None
        return
    solved = _solve(ranks, units, room, gather)
    least = gather_seconds(ranks, [d for d, _ in solved], [h for _, h in solved], gather)
    if found is None:
        return
    assert sum(found) == units
    assert all(0 <= kept <= device for kept, (device, _) in zip(found, room, strict=True))
    assert gather_seconds(ranks, found, [0] * len(ranks), gather) == pytest.approx(least, rel=1e-6)
    assert sum(host for _, host in solved) == 0


def test_room_in_device_memory_is_enough_to_need_no_solver() -> None:
    """Two small cards and two large ones: equal shares where they fit, and what is left over on the large ones."""
    ranks = [
        ShardRank(
            name="card",
            device_bytes=0,
            host_bytes=0,
            out_bytes_per_second=1e9,
            in_bytes_per_second=1e9,
            host_bytes_per_second=1e9,
            window_bytes=10**9,
        )
    ] * 4
    room = [(5, 9), (5, 9), (30, 9), (30, 9)]
    assert resident_cut(ranks, 20, room, Gather.padded) == [5, 5, 5, 5]
    assert resident_cut(ranks, 30, room, Gather.padded) is None  # host memory would make the largest slot smaller
    assert resident_cut(ranks, 30, [(5, 0), (5, 0), (30, 0), (30, 0)], Gather.padded) == [5, 5, 10, 10]
