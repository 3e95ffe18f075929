from __future__ import annotations

import contextlib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.model import SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe.nccl_xml import parse_nccl_xml

DATA = Path(__file__).parent / "data"
Tree = tuple[str, str, list[Any]]


def parse(*cpus: str, version: int = 1) -> Topology:
    text = f'<system version="{version}">\n' + "\n".join(cpus) + "\n</system>\n"
    return parse_nccl_xml(text.encode(), host="box")


def cpu(*inside: str, numa: int = 0, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n' + "\n".join(inside) + "\n</cpu>"


def pci(address: str, *inside: str, kind: str = "0x060400", speed: str = "16 GT/s", width: str = "16") -> str:
    head = f'<pci busid="{address}" class="{kind}" link_speed="{speed}" link_width="{width}">'
    return head + "".join(inside) + "</pci>"


def gpu(address: str, *links: str, sm: int = 80, speed: str = "16 GT/s", width: str = "16") -> str:
    inside = f'<gpu dev="{int(address[5:7], 16)}" sm="{sm}" rank="0" gdr="1">' + "".join(links) + "</gpu>"
    return pci(address, inside, kind="0x030200", speed=speed, width=width)


def nvlink(target: str, count: int, tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def net(name: str, speed: object = 100_000, port: int = 1) -> str:
    return f'<nic><net name="{name}" dev="0" speed="{speed}" port="{port}" guid="0x1" maxconn="1" gdr="1"/></nic>'


def kinds(topology: Topology) -> dict[frozenset[str], str]:
    return {frozenset((pair.a, pair.b)): pair.kind for pair in topology.pairs}


def refused(content: bytes) -> str:
    with pytest.raises(TopologyError) as caught:
        parse_nccl_xml(content, host="box")
    return caught.value.found


def draw_tree(draw: st.DrawFn, depth: int, addresses: list[str]) -> Tree:
    # Three slots a bus, so that some roots share one.
    at = len(addresses)
    address = f"{draw(st.integers(0, 1)):04x}:{at // 3:02x}:{at % 3:02x}.0"
    addresses.append(address)
    role = draw(st.sampled_from(["gpu", "nic", "switch", "switch"] if depth < 4 else ["gpu", "nic"]))
    num_below = draw(st.integers(0, 3)) if role == "switch" else 0
    return role, address, [draw_tree(draw, depth + 1, addresses) for _ in range(num_below)]


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[list[Tree]], dict[frozenset[str], int]]:
    addresses: list[str] = []
    nodes = [[draw_tree(draw, 0, addresses) for _ in range(draw(st.integers(0, 4)))] for _ in range(3)]
    gpus = [spot[-1] for spot in spots(nodes)]
    bundles, free = {}, dict.fromkeys(gpus, 12)
    for a, b in combinations(gpus, 2):
        count = draw(st.integers(0, min(free[a], free[b], 4)))
        if count and draw(st.booleans()):
            bundles[frozenset((a, b))] = count
            free[a], free[b] = free[a] - count, free[b] - count
    return nodes, bundles


def spots(nodes: list[list[Tree]], wanted: str = "gpu") -> list[tuple[str, ...]]:
    # Each part of one role as the chain of names that leads to it.
    found: list[tuple[str, ...]] = []

    def visit(tree: Tree, above: tuple[str, ...]) -> None:
        role, address, below = tree
        if role == wanted:
            found.append((*above, address))
        for child in below:
            visit(child, (*above, address))

    for at, trees in enumerate(nodes):
        for tree in trees:
            visit(tree, (str(at),))
    return found


def expected(a: tuple[str, ...], b: tuple[str, ...]) -> str:
    if a[0] != b[0]:
        return "SYS"
    if a[1][:7] == b[1][:7] and a[1] != b[1]:
        return "PHB"
    if a[1] != b[1]:
        return "NODE"
    return "PIX" if a[:-1] == b[:-1] else "PXB"


def written(tree: Tree, bundles: dict[frozenset[str], int]) -> str:
    role, address, below = tree
    if role == "switch":
        return pci(address, *(written(child, bundles) for child in below))
    if role == "nic":
        return pci(address, net(f"mlx5_{address}"), kind="0x020700")
    links = [nvlink(other, count) for pair, count in bundles.items() if address in pair for other in pair - {address}]
    return gpu(address, *links)


@settings(max_examples=60, deadline=None)
@given(machines())
def test_a_drawn_tree_reads_back_with_the_same_counts_and_pair_kinds(
    machine: tuple[list[list[Tree]], dict[frozenset[str], int]],
) -> None:
    nodes, bundles = machine
    cpus = [cpu(*(written(tree, bundles) for tree in trees), numa=at) for at, trees in enumerate(nodes)]
    topology = parse(*cpus)
    gpus = spots(nodes)
    assert {device.pci for device in topology.gpus} == {spot[-1] for spot in gpus}
    assert {nic.pci for nic in topology.nics} == {spot[-1] for spot in spots(nodes, "nic")}
    switches = [switch.id for switch in topology.switches if switch.kind is SwitchKind.pcie]
    assert sorted(switches) == sorted(f"box/{spot[-1]}" for spot in spots(nodes, "switch"))
    wanted = {}
    for a, b in combinations(gpus, 2):
        count = bundles.get(frozenset((a[-1], b[-1])))
        wanted[frozenset((f"box/{a[-1]}", f"box/{b[-1]}"))] = f"NV{count}" if count else expected(a, b)
    assert kinds(topology) == wanted
    labels = pcie_labels(topology)
    assert {pair: labels[pair] for pair, kind in wanted.items() if not kind.startswith("NV")} == {
        pair: kind for pair, kind in wanted.items() if not kind.startswith("NV")
    }
    pcie = [link for link in topology.links if link.kind == "PCIe"]
    assert len(pcie) == len(gpus) + len(topology.nics) + len(switches)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_cut_or_change_of_a_file_is_read_or_refused(data: st.DataObject) -> None:
    content = (DATA / "nccl_small_rccl.xml").read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    changed = content[:at] + data.draw(st.binary(max_size=3)) + content[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(TopologyError):  # anything else would be a crash
        parse_nccl_xml(changed, host="box")
    if at < len(content) - 12:
        assert "line " in refused(content[:at])
