"""Which copies are timed, what their times tell, and which links the rates belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.measure.attribute import Seen, attributed
from orchestrator.measure.flows import Kind, Timed, Trial, exchanges_of, speed_of, trials_of
from topology.graph import Graph, graph_of
from topology.model import Device, DeviceKind, Host, Link, Nic, Switch, SwitchKind, Topology
from topology.routing.exchanges import PairPaths

_PAIR = Trial(kind=Kind.pair, flows=((0, 1),))
_MB = 10**6


def machine(rates: Sequence[int], slots: int) -> Topology:
    """Hosts of CPU slots, each behind one port of so many MB/s, on one switch."""
    hosts, links, switches = [], [], [Switch(id="network", kind=SwitchKind.network)]
    for at, rate in enumerate(rates):
        name = f"h{at}"
        devices = tuple(
            Device(id=f"{name}/cpu{x}", host=name, kind=DeviceKind.cpu, name="CPU", memory_bytes=2**33, cores=1, numa=0)
            for x in range(slots)
        )
        nic = Nic(id=f"{name}/eth0", name="eth0", kind="ethernet", bytes_per_second=rate * _MB)
        hosts.append(Host(name=name, memory_bytes=2**34, cores=slots, devices=devices, nics=(nic,)))
        switches.append(Switch(id=f"{name}/node0", kind=SwitchKind.socket, host=name, numa=0))
        links.append(Link(a=nic.id, b=f"{name}/node0", kind="CPU", source="drawn"))
        links.append(Link(a=nic.id, b="network", kind="NET", source="drawn", bytes_per_second=rate * _MB))
    return Topology(hosts=tuple(hosts), links=tuple(links), switches=tuple(switches))


def ranks_of(hosts: int, slots: int) -> list[list[int]]:
    return [list(range(at * slots, (at + 1) * slots)) for at in range(hosts)]


def seen(graph: Graph, test: Trial) -> tuple[Seen, set[int]]:
    """What equal copies over fair links show, and the edges that set it."""
    path = PairPaths(graph)
    loads = Counter(edge for flow in test.flows for edge in path(*flow) if graph.edges[edge].units is not None)
    rates = {edge: (graph.edges[edge].units or 0) * _MB / copies for edge, copies in loads.items()}
    least = min(rates.values())
    return Seen(flows=test.flows, bytes_per_second=least), {edge for edge, rate in rates.items() if rate == least}


@given(st.lists(st.integers(5, 400), min_size=2, max_size=5), st.integers(1, 3))
def test_no_link_is_told_to_be_faster_than_it_is_and_the_slowest_is_found(rates: list[int], slots: int) -> None:
    true = machine(rates, slots)
    told = machine([10_000] * len(rates), slots)  # the ports' drivers know nothing of the shaper
    graph = graph_of(true)
    shown = [seen(graph, test)[0] for test in trials_of(ranks_of(len(rates), slots))]
    found = {x.ends: x.bytes_per_second for x in attributed(told, graph_of(told), shown)}
    for at, rate in enumerate(rates):
        ends = (f"h{at}/eth0", "network")
        assert found.get(ends, 0) <= rate * _MB * (1 + 1e-9)
        if rate == min(rates):
            assert found[ends] >= 0.9 * rate * _MB  # tests that come that near count as repeats


def test_a_shared_port_shows_only_when_all_send_at_once() -> None:
    told = machine([100, 100], 2)
    alone = Seen(flows=((0, 2),), bytes_per_second=25e6)
    together = Seen(flows=((0, 2), (1, 3)), bytes_per_second=12.5e6)
    inside = Seen(flows=((0, 1), (2, 3)), bytes_per_second=1e9)
    (first, second) = attributed(told, graph_of(told), [inside, alone, together])
    assert first.is_shared
    assert second.is_shared
    assert first.bytes_per_second == pytest.approx(25e6)
    (free, _) = attributed(told, graph_of(told), [inside, alone, Seen(flows=together.flows, bytes_per_second=25e6)])
    assert not free.is_shared
    assert free.bytes_per_second == pytest.approx(50e6)


def test_where_evidence_is_unclear_no_link_gets_a_rate() -> None:
    """Two copies leave one host for two others: its port may be slow, or both of theirs."""
    told = machine([100, 100, 100], 2)
    one = Seen(flows=((0, 2), (1, 4)), bytes_per_second=10e6)
    fast = Seen(flows=((0, 1), (2, 3), (4, 5)), bytes_per_second=1e9)
    assert attributed(told, graph_of(told), [one, fast]) == ()
    other = Seen(flows=((2, 4),), bytes_per_second=40e6)
    found = {x.ends[0]: x.bytes_per_second for x in attributed(told, graph_of(told), [one, fast, other])}
    assert found == {"h0/eth0": 20e6, "h1/eth0": 40e6, "h2/eth0": 40e6}


@given(
    st.floats(1e6, 1e9),
    st.floats(0, 300e3),
    st.floats(1e-5, 1e-3),
    st.lists(st.floats(0.99, 1.01), min_size=9, max_size=9),
)
def test_rate_and_burst_are_recovered(rate: float, burst: float, alpha: float, noise: list[float]) -> None:
    timed = [
        Timed(
            test=_PAIR,
            size_bytes=size,
            seconds=tuple((alpha + max(0.0, size - burst) / rate) * noise[3 * at + run] for run in range(3)),
        )
        for at, size in enumerate((1 << 10, 4 << 20, 16 << 20))
    ]
    found = speed_of(timed)
    assert found.bytes_per_second == pytest.approx(rate, rel=0.04 + alpha * rate / (16 << 20))
    if burst > 200e3 and max(noise) - min(noise) < 0.002 and alpha * rate < 1e3:
        assert found.burst_bytes == pytest.approx(burst, rel=0.35)


def test_a_longer_message_must_take_longer() -> None:
    timed = [Timed(test=_PAIR, size_bytes=size, seconds=(1.0,) * 3) for size in (1, 2, 3)]
    with pytest.raises(ArithmeticError, match="too busy"):
        speed_of(timed)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_tests_cover_every_port_both_ways_and_no_rank_twice(sizes: list[int]) -> None:
    hosts, at = [], 0
    for size in sizes:
        hosts.append(list(range(at, at + size)))
        at += size
    found = trials_of(hosts)
    host_of = {rank: number for number, ranks in enumerate(hosts) for rank in ranks}
    for test in found:
        assert all(source != target for source, target in test.flows)
        if test.kind in {Kind.inside, Kind.all_inside}:
            assert all(host_of[source] == host_of[target] for source, target in test.flows)
        else:
            assert all(host_of[source] != host_of[target] for source, target in test.flows)
    if len(hosts) > 1:
        leaving = {host_of[source] for test in found for source, _ in test.flows if host_of[source] != host_of[_]}
        assert leaving == set(range(len(hosts)))
    assert len({frozenset(test.flows) for test in found}) == len(found)


def test_exchanges_are_of_pairs_that_answer_each_other() -> None:
    for hosts in (ranks_of(2, 2), ranks_of(1, 3), ranks_of(3, 1), ranks_of(1, 2)):
        for test in exchanges_of(hosts):
            assert {flow[::-1] for flow in test.flows} == set(test.flows)
    assert [len(test.flows) for test in exchanges_of(ranks_of(2, 2))] == [2, 8]


def test_a_burst_that_is_known_is_not_told_anew() -> None:
    """A busy machine made the shorter message late: the difference alone would double the rate."""
    times = {1 << 10: 0.001, 4 << 20: 0.4, 16 << 20: 0.67}
    timed = [Timed(test=_PAIR, size_bytes=size, seconds=(seconds,) * 3) for size, seconds in times.items()]
    assert speed_of(timed, 0.0).bytes_per_second == pytest.approx((16 << 20) / 0.67)
    assert speed_of(timed, 1 << 20).bytes_per_second == pytest.approx((15 << 20) / 0.67)


def test_a_port_that_is_slow_one_way_only_is_not_told_by_the_other() -> None:
    """Two hosts send to a third at once: what comes in there is twice what each of them can send."""
    told = machine([1000, 1000, 1000], 2)
    inside = Seen(flows=((0, 1), (2, 3), (4, 5)), bytes_per_second=1e9)
    into = Seen(flows=((2, 0), (4, 1)), bytes_per_second=120e6)
    out = [Seen(flows=((2 * at, (2 * at + 2) % 6),), bytes_per_second=120e6) for at in range(3)]
    found = {x.ends[0]: x.bytes_per_second for x in attributed(told, graph_of(told), [inside, into, *out])}
    assert found == dict.fromkeys(("h0/eth0", "h1/eth0", "h2/eth0"), 120e6)
