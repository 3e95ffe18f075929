"""All-to-all schedules: what each pattern sends, that it delivers, and how near it comes to the bound."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset, preset_names
from topology.probe import read_topology
from topology.routing.all_to_all import ALL_TO_ALL, MOST_IN_RING, all_to_all_schedules, direct, ring
from topology.routing.concurrent_flow import concurrent_flow
from topology.routing.flow_routes import PARTS, flow_based, flow_direct, in_parts
from topology.routing.two_level import by_host, two_level
from topology.schedule import Schedule

CORPUS = Path(__file__).resolve().parents[4].parent / "shared" / "corpus"
HARD = (
    *(f"smi/{name}.txt" for name in ("006", "010", "031", "036", "038", "048", "083", "086", "094")),
    *(f"nccl_xml/rccl/topo_{name}.xml" for name in ("16p1h_vm", "8p6l", "8p_940", "8p_ts1_n4_2", "8p_90a_1")),
)


def star(hosts: list[int], *, wire: int = 1000, uplink: int = 400) -> Graph:
    """Hosts of several devices on one switch each, the switches on one network."""
    size = sum(hosts)
    owners = [host for host, count in enumerate(hosts) for _ in range(count)]
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host=f"h{host}") for at, host in enumerate(owners)]
    nodes += [Node(id=f"s{host}", kind=NodeKind.pcie, host=f"h{host}") for host in range(len(hosts))]
    nodes.append(Node(id="net", kind=NodeKind.network))
    ends = [(at, size + host, wire, LinkClass.pcie) for at, host in enumerate(owners)]
    ends += [(size + host, size + len(hosts), uplink, LinkClass.network) for host in range(len(hosts))]
    both = [*ends, *((b, a, u, k) for a, b, u, k in ends)]
    return Graph(
        nodes=tuple(nodes), edges=tuple(Edge(tail=a, head=b, units=u, link=k) for a, b, u, k in both), size=size
    )


def line(size: int) -> Graph:
    ends = [(at, at + 1) for at in range(size - 1)]
    return Graph(
        nodes=tuple(Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)),
        edges=tuple(
            Edge(tail=a, head=b, units=100, link=LinkClass.nvlink) for x, y in ends for a, b in ((x, y), (y, x))
        ),
        size=size,
    )


def share_of_bound(schedule: Schedule) -> float:
    return concurrent_flow(schedule.graph).seconds_per_byte / schedule.overlapped_seconds_per_byte


@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8])
def test_direct_pairs_every_device_with_one_other_in_each_step(size: int) -> None:
    schedule = direct(star([size]))
    assert schedule.num_steps == size - 1
    met = set()
    for sends in schedule.steps():
        assert sorted(send.source for send in sends) == sorted(send.target for send in sends) == list(range(size))
        met |= {(send.source, send.target) for send in sends}
        if size in (2, 4, 8):
            assert {(s.source, s.target) for s in sends} == {(s.target, s.source) for s in sends}
    assert len(met) == size * (size - 1)
    # One wire of 1000 MB/s carries (size - 1) / size of M.
    assert schedule.claimed_seconds_per_unit == Fraction(size - 1, size * 1000)


def test_direct_needs_a_path_for_each_pair() -> None:
    with pytest.raises(TopologyError, match=r"no path from d[02] to d[02] that passes no other device"):
        direct(line(3))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_a_ring_passes_parts_the_shorter_way_both_ways_round(size: int) -> None:
    loop = Graph(
        nodes=tuple(Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)),
        edges=tuple(
            Edge(tail=at, head=(at + way) % size, units=100, link=LinkClass.nvlink)
            for at in range(size)
            for way in (1, -1)
        ),
        size=size,
    )
    schedule = ring(loop)
    assert schedule.num_steps == size // 2
    assert not schedule.relays  # every send goes to a neighbour
    if size > 2:  # two devices have two wires in this drawing; the path takes one of them
        assert share_of_bound(schedule) == pytest.approx(1)
    assert schedule.phases[0].last == size // 2 - 1


def test_a_ring_follows_its_order_and_refuses_a_broken_one() -> None:
    schedule = ring(star([4]), (0, 2, 1, 3))
    assert {(send.source, send.target) for send in schedule.sends} == {
        (a, b) for x, y in ((0, 2), (2, 1), (1, 3), (3, 0)) for a, b in ((x, y), (y, x))
    }
    with pytest.raises(TopologyError, match="name each rank once"):
        ring(star([4]), (0, 1, 2))
    with pytest.raises(TopologyError, match="name each rank once"):
        ring(star([3]), (0, 1, 1))


@settings(max_examples=12)
@given(hosts=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_two_levels_send_equally_much_from_each_device_whatever_the_hosts_have(hosts: list[int]) -> None:
    found = star(hosts)
    schedule = two_level(found)
    home = found.hosts
    crossing = [send for send in schedule.sends if home[send.source] != home[send.target]]
    inside = [send for send in schedule.sends if home[send.source] == home[send.target]]
    assert len(crossing) == sum(a * b for x, a in enumerate(hosts) for y, b in enumerate(hosts) if x != y)
    assert max((send.step for send in inside), default=-1) < min(send.step for send in crossing)
    sent = Counter((send.source, home[send.target]) for send in crossing)
    for team in by_host(found):
        for other in {home[team[0]]} ^ set(home):
            counts = [sent[rank, other] for rank in team]
            assert max(counts) - min(counts) == 0
    assert [phase.first for phase in schedule.phases][-1] == max(hosts) - 1


def test_equal_hosts_exchange_between_equal_positions() -> None:
    schedule = two_level(star([4, 4, 4]))
    across = [send for send in schedule.sends if send.step >= 3]
    assert {(send.source % 4, send.target % 4) for send in across} == {(at, at) for at in range(4)}
    assert schedule.num_steps == 3 + 2
    assert schedule.phases[0].name.startswith("inside")


def test_two_levels_need_two_groups_that_name_each_rank_once() -> None:
    with pytest.raises(TopologyError, match="one group"):
        two_level(star([4]))
    with pytest.raises(TopologyError, match="name each rank in one group"):
        two_level(star([4]), ((0, 1), (1, 2, 3)))
    assert two_level(star([4]), ((0, 3), (1, 2))).num_steps == 2


def test_a_line_is_served_by_passing_on_device_by_device() -> None:
    schedule = flow_based(line(4))
    assert schedule.num_steps == 3
    assert not schedule.relays  # relayed pieces are sends of their own
    assert share_of_bound(schedule) == pytest.approx(1)
    assert [phase.name for phase in schedule.phases] == [
        "sends along the paths of the best flow",
        "relayed pieces, hop 2",
        "relayed pieces, hop 3",
    ]
    with pytest.raises(TopologyError, match="no path between some pair"):
        flow_direct(line(4))


def test_a_flow_uses_parallel_wires_that_one_path_does_not() -> None:
    ends = [(0, 2, 300), (2, 1, 300), (0, 3, 100), (3, 1, 100)]
    found = Graph(
        nodes=tuple(Node(id=f"n{at}", kind=NodeKind.device if at < 2 else NodeKind.pcie, host="h") for at in range(4)),
        edges=tuple(
            Edge(tail=a, head=b, units=u, link=LinkClass.pcie) for x, y, u in ends for a, b in ((x, y), (y, x))
        ),
        size=2,
    )
    assert share_of_bound(direct(found)) == pytest.approx(0.75)
    schedule = flow_direct(found)
    assert sorted(chunk.share for chunk in schedule.chunks) == [Fraction(1, 8)] * 2 + [Fraction(3, 8)] * 2
    assert share_of_bound(schedule) == pytest.approx(1)


@settings(max_examples=40)
@given(weights=st.lists(st.floats(1e-6, 1), min_size=1, max_size=9))
def test_parts_sum_exactly_and_are_near_what_was_wanted(weights: list[float]) -> None:
    paths = [((at,), weight) for at, weight in enumerate(weights)]
    found = dict(in_parts(paths))
    assert sum(found.values()) == PARTS
    assert all(count >= 1 for count in found.values())
    for path, weight in paths:
        assert abs(found.get(path, 0) - weight / sum(weights) * PARTS) < 1


@settings(max_examples=12)
@given(
    hosts=st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda found: sum(found) > 1),
    wire=st.sampled_from([100, 1000]),
    uplink=st.sampled_from([70, 400]),
)
def test_every_schedule_delivers_and_none_beats_the_bound(hosts: list[int], wire: int, uplink: int) -> None:
    found = list(all_to_all_schedules(star(hosts, wire=wire, uplink=uplink)))
    for schedule in found:  # that it exists is the proof that it delivers
        assert schedule.collective is Collective.all_to_all
        assert share_of_bound(schedule) <= 1 + 1e-9
        shares = Counter[tuple[int | None, int | None]]()
        for chunk in schedule.chunks:
            shares[chunk.origin, chunk.target] += chunk.share  # type: ignore[assignment]
        assert set(shares.values()) == {Fraction(1, sum(hosts))}
        assert schedule.phases[0].first == 0
        assert schedule.phases[-1].last == schedule.num_steps - 1
    assert max(map(share_of_bound, found)) >= 0.99


def test_patterns_that_do_not_fit_are_left_out() -> None:
    assert [found.algorithm for found in all_to_all_schedules(line(3))] == ["flow_based"]
    many = [found.algorithm for found in all_to_all_schedules(star([MOST_IN_RING // 2, MOST_IN_RING // 2 + 1]))]
    assert many == [name for name in ALL_TO_ALL if name != "ring"]
    with pytest.raises(TopologyError, match="1 device"):
        list(all_to_all_schedules(star([1])))


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "gb200_nvl72"])
def test_the_best_schedule_of_every_drawn_machine_is_near_the_bound(name: str) -> None:
    topology = preset(name)
    if len(topology.gpus or topology.devices) < 2:
        pytest.skip("one device")
    assert share_of_bound(flow_based(graph_of(topology))) >= 0.99


def test_a_cube_mesh_is_served_by_relay_alone() -> None:
    found = list(all_to_all_schedules(graph_of(preset("dgx1_v100"))))
    assert [schedule.algorithm for schedule in found] == ["flow_based"]
    assert share_of_bound(found[0]) >= 0.99
    assert found[0].num_steps == 2  # no two GPUs of a cube mesh are more than two hops apart


def test_devices_with_several_ports_use_them_all_at_once() -> None:
    found = graph_of(preset("p5", nodes=2))
    schedule = direct(found)
    crossing = [send for send in schedule.sends if found.hosts[send.source] != found.hosts[send.target]]
    assert len(crossing) == 4 * 2 * 64  # four ports a GPU
    assert {schedule.chunks[send.chunk].share for send in crossing} == {Fraction(1, 64)}
    ports = {at for send in crossing for at in send.path if found.edges[at].link is LinkClass.network}
    assert len(ports) == 2 * 2 * 32
    assert share_of_bound(schedule) == pytest.approx(1)
    assert share_of_bound(two_level(found)) == pytest.approx(1)


def test_wires_side_by_side_are_used_only_where_the_path_is_narrowest() -> None:
    def box(wire: int) -> Graph:
        ends = [(0, 2, wire), (2, 3, 100), (2, 3, 100), (2, 3, 70), (3, 1, wire)]
        kinds = [NodeKind.device, NodeKind.device, NodeKind.pcie, NodeKind.pcie]
        return Graph(
            nodes=tuple(Node(id=f"n{at}", kind=kind, host="h") for at, kind in enumerate(kinds)),
            edges=tuple(
                Edge(tail=a, head=b, units=u, link=LinkClass.pcie) for x, y, u in ends for a, b in ((x, y), (y, x))
            ),
            size=2,
        )

    assert len(direct(box(300)).chunks) == 4
    assert len(direct(box(90)).chunks) == 2


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus lies outside the repository")
@pytest.mark.parametrize("name", HARD)
def test_the_hardest_real_machines_are_near_the_bound(name: str) -> None:
    assert share_of_bound(flow_based(graph_of(read_topology(CORPUS / name)))) >= 0.99
