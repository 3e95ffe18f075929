"""The labels of drawn machines are those that `nvidia-smi topo -m` printed on such machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from topology.model import Topology
from topology.pcie_tree import pcie_labels
from topology.presets import preset

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
NAME = re.compile(r"(?:GPU|NIC|mlx5_)\d+")
ALL, GPUS, NICS = (0, 1, 2), (2,), (0, 1)  # how many GPUs a pair may have to be compared

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")


def printed(number: str) -> Iterator[tuple[str, str, str]]:
    names: list[str] = []
    for line in (CORPUS / "smi" / f"{number}.txt").read_text().splitlines():
        words = line.split()
        if not names and "GPU0" in line:
            names = NAME.findall(line)
        elif words and words[0] in names:
            cells = words[1 : 1 + len(names)]
            yield from ((words[0], name, cell) for name, cell in zip(names, cells, strict=False))


def drawn(topology: Topology) -> dict[frozenset[str], str]:
    labels = pcie_labels(topology) | {frozenset((pair.a, pair.b)): pair.kind for pair in topology.pairs}
    shown = {device.id: {f"GPU{at}"} for at, device in enumerate(topology.devices)}
    shown |= {nic.id: {f"NIC{at}", f"mlx5_{at}"} for at, nic in enumerate(topology.nics)}
    return {
        frozenset((one, two)): label
        for (a, b), label in ((tuple(ends), label) for ends, label in labels.items())
        for one in shown[a]
        for two in shown[b]
    }


@pytest.mark.parametrize(
    ("name", "number", "which"),
    [
        ("dgx_a100", "011", ALL),
        ("dgx_h100", "041", ALL),
        ("hgx_b200", "099", ALL),
        ("dgx1_v100", "036", GPUS),
        ("dgx1_v100", "038", NICS),  # of a DGX-1 with P100: other NVLinks, the same PCIe tree
        ("dgx2_v100", "090", ALL),
        ("gb200_nvl72", "043", GPUS),
        ("4xv100-16gb", "035", ALL),
        ("a100_sxm_x4", "003", ALL),
        ("a100_pcie_pairs_x4", "070", ALL),
        ("a100_pcie_pairs_x8", "020", ALL),
        ("h100_nvl_x8", "080", ALL),
        ("g5_12xlarge", "088", ALL),
        ("pcie_4090x8", "071", ALL),
        ("pcie_5090x8", "073", ALL),
        ("pcie_5090x2", "016", ALL),
        ("pcie_a40_x4", "055", ALL),
        ("rtx_a6000_x4", "060", ALL),
    ],
)
def test_labels_are_those_of_such_a_machine(name: str, number: str, which: tuple[int, ...]) -> None:
    labels = drawn(preset(name))
    told = 0
    for a, b, cell in printed(number):
        if a == b or sum(one.startswith("GPU") for one in (a, b)) not in which:
            continue
        told += 1
        assert labels.get(frozenset((a, b))) == cell.replace("SOC", "SYS"), f"{a} - {b}"
    assert told


@pytest.mark.parametrize(
    ("name", "file"),
    [("p4d", "aws/p4d-24xl-topo.xml"), ("ndv4", "azure/ndv4-topo.xml"), ("ndv5", "azure/ndv5-topo.xml")],
)
def test_clouds_have_the_switches_of_their_topology_files(name: str, file: str) -> None:
    told = []
    for cpu in ET.parse(CORPUS / "nccl_xml" / file).getroot().iter("cpu"):
        for switch in cpu.findall("pci"):
            classes = [part.get("class", "") for part in switch.findall("pci")]
            gpus = sum(name.startswith("0x0302") for name in classes)
            told.append((int(cpu.get("numaid", "")), gpus, len(classes) - gpus))
    topology = preset(name)
    gpus, nics = {device.id for device in topology.devices}, {nic.id: nic for nic in topology.nics}
    below: dict[str, list[str]] = {}
    for link in topology.links:
        if "/switch" in link.b:
            below.setdefault(link.b, []).append(link.a)
    numa = {switch.id: switch.numa for switch in topology.switches}
    found = [(numa[at], len(gpus & set(ends)), len(nics.keys() & set(ends))) for at, ends in below.items()]
    assert sorted(found, key=str) == sorted(told, key=str)
