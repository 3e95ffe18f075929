"""Cutting the layers of an island: every byte once, equal as far as room allows, off the devices only what must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner.assign import assign_shards
from orchestrator.planner.shards import Cut, Gather, ShardRank, gather_seconds
from orchestrator.planner.streamed_plan import TierBytes
from orchestrator.planner.streaming_cut import Room, by_weight, cut_island, level

ROOMS = st.lists(st.integers(0, 400), min_size=1, max_size=6)


@given(st.integers(0, 1500), ROOMS)
def test_levels_sum_and_stay_within_the_room_there_is(total: int, rooms: list[int]) -> None:
    shares = level(total, rooms)
    assert sum(shares) == total
    lack = max(0, total - sum(rooms))
    assert all(share <= room + -(-lack // len(rooms)) for share, room in zip(shares, rooms, strict=True))
    if not lack:
        # Whoever holds less than another has no room for more.
        short = [share for share, room in zip(shares, rooms, strict=True) if share < room]
        assert all(share >= max(shares) - 1 for share in short)


@given(st.integers(1, 1200), ROOMS, ROOMS)
def test_as_little_as_must_waits_in_host_memory(total: int, devices: list[int], hosts: list[int]) -> None:
    rooms = [Room(device=device, host=host) for device, host in zip(devices, hosts, strict=False)]
    cut = cut_island(total, rooms)
    assert sum(share.total for share in cut) == total
    device, host = sum(room.device for room in rooms), sum(room.host for room in rooms)
    assert sum(share.host for share in cut) == min(max(0, total - device), host)
    assert all(share.host <= room.host for share, room in zip(cut, rooms, strict=True))


def test_a_drive_takes_what_neither_memory_has_room_for() -> None:
    cut = cut_island(100, [Room(device=30, host=20, nvme=1000), Room(device=10, host=0, nvme=1000)])
    assert [(share.device, share.host, share.nvme) for share in cut] == [(30, 20, 20), (10, 0, 20)]


@given(st.integers(0, 10_000), st.lists(st.integers(0, 100), min_size=1, max_size=5).filter(any))
def test_weights_cut_to_a_byte(total: int, weights: list[int]) -> None:
    parts = by_weight(total, weights)
    assert sum(parts) == total
    assert all(abs(part - total * weight / sum(weights)) <= 1 for part, weight in zip(parts, weights, strict=True))


def test_weights_and_a_host_share_are_the_users() -> None:
    rooms = [Room(device=50, host=50), Room(device=50, host=50)]
    assert cut_island(100, rooms, [70, 30]) == (TierBytes(device=50, host=20), TierBytes(device=30))
    assert cut_island(100, rooms, [70, 30], 0.5) == (TierBytes(device=35, host=35), TierBytes(device=15, host=15))
    assert cut_island(100, rooms, (), 1.0) == (TierBytes(device=0, host=50), TierBytes(device=0, host=50))


@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.floats(0.05, 1.0), st.sampled_from([True, False]))
def test_where_links_are_alike_no_program_finds_a_faster_cut(rooms: list[int], fill: float, shares: bool) -> None:
    """Against the program of `assign`, in granules of one byte, all of it in device memory."""
    total = max(1, int(fill * sum(rooms)))
    ranks = [
        ShardRank(
            name="a",
            device_bytes=room,
            host_bytes=0,
            out_bytes_per_second=1e3,
            in_bytes_per_second=1e3,
            host_bytes_per_second=1e3,
            window_bytes=10**6,
            shares_path=shares,
        )
        for room in rooms
    ]
    best = assign_shards(ranks, total, granule_bytes=1)
    assert isinstance(best, Cut)
    ours = level(total, rooms)
    seconds = min(gather_seconds(ranks, ours, [0] * len(rooms), gather) for gather in Gather)
    assert seconds <= best.seconds * (1 + 1e-9)
