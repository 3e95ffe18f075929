"""The gap that an all-to-all over gloo leaves agrees with connections followed one by one.

The reference has gloo's own rules: a rank starts a send to, and a receive from, one other after another (distance 1, 2,
...); a send begins when the other has said that it is ready; that word waits behind what is sent the same way. Ranks
start in any order, and connections get unequal shares of the port that their host sends through.
"""

from __future__ import annotations

import random
from itertools import permutations
from statistics import mean

import pytest

Flow = tuple[int, int]


def waits_for(order: tuple[int, ...]) -> dict[Flow, Flow]:
    """Which message goes behind which, for ranks that start in this order, far apart."""
    size = len(order)
    start = {rank: at for at, rank in enumerate(order)}
    found = {}
    for rank in range(size):
        for distance in range(1, size // 2 + 1):
            other = (rank + distance) % size
            # The later one finds the other ready and sends, and says only then that it is ready itself; where it is the
            # other that is later, it says so before its own turn to send comes, and both send at once.
            if start[rank] > start[other]:
                found[other, rank] = (rank, other)
    return found


def gap(hosts: int, slots: int, order: tuple[int, ...], share: dict[Flow, float]) -> float:
    """What all messages together take more than the port of a host needs for its own, as a part of that."""
    size = hosts * slots
    pairs = list(permutations(range(size), 2))
    left = {flow: 1.0 for flow in pairs if flow[0] // slots != flow[1] // slots}
    behind = {flow: first for flow, first in waits_for(order).items() if flow in left}
    seconds, own = 0.0, len(left) / hosts
    while left:
        going = [flow for flow in left if behind.get(flow) not in left]
        total = [sum(share[flow] for flow in going if flow[0] // slots == host) for host in range(hosts)]
        rate = {flow: share[flow] / total[flow[0] // slots] for flow in going}
        step = min(left[flow] / rate[flow] for flow in going)
        seconds += step
        for flow in going:
            left[flow] -= step * rate[flow]
            if left[flow] < 1e-9:
                del left[flow]
    return seconds / own - 1


@pytest.mark.parametrize(("hosts", "slots"), [(2, 1), (2, 2), (3, 2), (4, 2), (2, 4)])
def test_the_port_runs_dry_for_about_one_message(hosts: int, slots: int) -> None:
    chance = random.Random(hosts * slots)
    size = hosts * slots
    gaps = []
    for _ in range(80):
        order = tuple(chance.sample(range(size), size))
        share = {flow: chance.expovariate(1.0) + 0.05 for flow in permutations(range(size), 2)}
        gaps.append(gap(hosts, slots, order, share))
    messages = slots * slots * (hosts - 1)  # that leave a host
    assert 1 + mean(gaps) == pytest.approx(1 + 1 / messages, rel=0.05)
