"""Labels make a tree, and the tree gives the labels back."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from topology.model import Device, DeviceKind, Host, Nic, Topology
from topology.pcie_tree import LEVELS, Member, PcieTree, pcie_labels, tree_from_labels, violations

WORDS = list(LEVELS)
Labels = dict[tuple[str, str], str]


def label_of(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return WORDS[len(a) - same]


@st.composite
def places(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    address = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
    names = [f"h/gpu{at}" for at in range(draw(st.integers(1, 10)))]
    return {name: draw(address) for name in names}


def all_labels(place: dict[str, tuple[int, ...]]) -> Labels:
    return {(a, b): label_of(place[a], place[b]) for a, b in combinations(place, 2)}


def with_tree(ids: list[str], tree: PcieTree) -> Topology:
    devices = tuple(Device(id=name, host="h", kind=DeviceKind.gpu, name="G", memory_bytes=None) for name in ids)
    host = Host(name="h", memory_bytes=None, cores=None, devices=devices)
    return Topology(hosts=(host,), switches=tree.switches, links=tree.links)


@given(places(), st.booleans())
def test_labels_come_back(place: dict[str, tuple[int, ...]], numa_is_known: bool) -> None:
    labels = all_labels(place)
    members = [Member(id=name, numa=at[0] if numa_is_known else None) for name, at in place.items()]
    topology = with_tree(list(place), tree_from_labels("h", members, labels))
    assert pcie_labels(topology) == {frozenset(pair): label for pair, label in labels.items()}
    assert not violations(list(place), labels)


@given(places(), st.data())
def test_a_hidden_label_changes_no_other(place: dict[str, tuple[int, ...]], data: st.DataObject) -> None:
    labels = all_labels(place)
    kept = {pair: label for pair, label in labels.items() if data.draw(st.booleans())}
    members = [Member(id=name, numa=at[0]) for name, at in place.items()]
    found = pcie_labels(with_tree(list(place), tree_from_labels("h", members, kept)))
    assert all(found[frozenset(pair)] == label for pair, label in kept.items())
    for pair, label in labels.items():
        assert LEVELS[found[frozenset(pair)]] >= LEVELS[label] or pair not in kept


@given(places(), st.data())
def test_a_label_against_the_tree_is_told(place: dict[str, tuple[int, ...]], data: st.DataObject) -> None:
    labels = all_labels(place)
    triples = [
        (a, b, c)
        for a, b, c in combinations(place, 3)
        if LEVELS[labels[a, c]] == LEVELS[labels[b, c]] and LEVELS[labels[a, b]] < LEVELS[labels[a, c]]
    ]
    if triples:
        a, b, c = data.draw(st.sampled_from(triples))
        labels[a, c] = labels[a, b]
        assert violations(list(place), labels)


def test_ports_of_one_adapter_are_near() -> None:
    members = [Member(id="h/gpu0", numa=0), Member(id="h/mlx5_0", numa=0), Member(id="h/mlx5_1", numa=1)]
    labels = {("h/gpu0", "h/mlx5_0"): "PXB", ("h/gpu0", "h/mlx5_1"): "SYS", ("h/mlx5_0", "h/mlx5_1"): "SYS"}
    tree = tree_from_labels("h", members, labels)
    nics = tuple(Nic(id=f"h/mlx5_{at}", name=f"mlx5_{at}", kind="infiniband") for at in (0, 1))
    gpu = Device(id="h/gpu0", host="h", kind=DeviceKind.gpu, name="G", memory_bytes=None)
    host = Host(name="h", memory_bytes=None, cores=None, devices=(gpu,), nics=nics)
    topology = Topology(hosts=(host,), switches=tree.switches, links=tree.links)
    assert pcie_labels(topology) == {frozenset(pair): label for pair, label in labels.items()}
    assert [switch.id for switch in topology.switches if switch.kind.value == "socket"] == ["h/node0", "h/node1"]
