"""Latency of collectives by NCCL's cost model: rings grow with the ranks, trees with the logarithm of the hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner.latency import gather_latency_seconds, reduce_latency_seconds


def test_values_counted_by_hand() -> None:
    """Ring over 8 GPUs on NVLink: 14 + 7 x 1.9 us; over 2 such hosts: 14 hops inside, one over the network."""
    assert gather_latency_seconds(8, 1, nvlink=True) == pytest.approx(27.3e-6)
    assert gather_latency_seconds(16, 2, nvlink=True) == pytest.approx((14 + 14 * 1.9 + 4.0) * 1e-6)
    assert gather_latency_seconds(2, 1, nvlink=False) == pytest.approx((8.4 + 5.7) * 1e-6)
    # Tree over 2 hosts of 8: 14 + 2 (7 x 1.25 + 8.5).
    assert reduce_latency_seconds(16, 2, nvlink=True) == pytest.approx((14 + 2 * (7 * 1.25 + 8.5)) * 1e-6)


def test_a_gather_over_thousands_of_ranks_costs_milliseconds_and_a_reduction_does_not() -> None:
    assert gather_latency_seconds(8192, 1024, nvlink=True) > 15e-3
    assert reduce_latency_seconds(8192, 1024, nvlink=True) < 0.5e-3


@given(st.integers(1, 8), st.integers(1, 200), st.booleans())
def test_more_hosts_never_cost_less(per_host: int, hosts: int, nvlink: bool) -> None:
    for latency in (gather_latency_seconds, reduce_latency_seconds):
        fewer, more = (latency(per_host * count, count, nvlink=nvlink) for count in (hosts, hosts + 1))
        if hosts > 1:  # one rank a host: the first network hop changes the algorithm
            assert fewer <= more * (1 + 1e-9)
