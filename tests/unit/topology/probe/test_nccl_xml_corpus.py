from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from topology.codec import from_json, to_json
from topology.errors import TopologyError
from topology.model import SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe.nccl_xml import parse_nccl_xml, recognises

CORPUS = Path(__file__).parents[5] / "shared/corpus/nccl_xml"
# Counts of the index that no honest reading can place: NVLinks that end at their own GPU, and a rate of 200 Tb/s.
SELF_LINKED = {"azure/ncv4-topo.xml": 48}
NO_RATE = {f"cxi{at}": 200_000_000 for at in range(4)}


def index() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load((CORPUS / "index.yaml").read_text(encoding="utf-8"))
    return entries


def must_refuse(entry: dict[str, Any]) -> bool:
    return not entry["complete"] or entry.get("kind") == "graphs" or "NEGATIVE" in entry["file"]


def mistakes(entry: dict[str, Any], topology: Topology) -> list[str]:
    text = (CORPUS / entry["file"]).read_text(encoding="utf-8")
    by_class = 0 if "<gpu" in text else text.count('class="0x03')
    nvlinks = sum(int(link.kind[2:]) for link in topology.links if link.kind.startswith("NV"))
    if not any(switch.kind is SwitchKind.nvswitch for switch in topology.switches):
        nvlinks *= 2
    xgmi = 2 * sum(int(link.kind[4:]) for link in topology.links if link.kind.startswith("XGMI"))
    nets = {nic.name: nic.bytes_per_second for nic in topology.nics}
    asked = dict(name.rsplit(":", 1) for name in entry.get("nets", []))
    rates = {name: None if NO_RATE.get(name) == int(speed) else int(speed) * 125_000.0 for name, speed in asked.items()}
    sockets = [switch for switch in topology.switches if switch.kind is SwitchKind.socket]
    pcie = [switch for switch in topology.switches if switch.kind is SwitchKind.pcie]
    unclassed = text.count("<pci ") - text.count("class=")
    labels = pcie_labels(topology)
    apart = [pair for pair in topology.pairs if not pair.is_nvlink and labels[frozenset((pair.a, pair.b))] != pair.kind]
    silent = [link for link in topology.links if link.kind in {"PCIe", "SYS"} and not link.capacity_bytes_per_second]
    found = {
        "pairs the tree labels otherwise": (len(apart), 0),
        "links without a rate to reckon with": (len(silent), 0),
        "gpus": (len(topology.gpus), entry["gpus"] or by_class),
        "cpus": (len(sockets), entry["cpus"]),
        "nvlinks": (nvlinks, entry["nvlinks"] - SELF_LINKED.get(entry["file"], 0)),
        "xgmi": (xgmi, entry["xgmi"]),
        "nets": ({name: nets.get(name) for name in asked}, rates),
        "pairs": (len(topology.pairs), len(topology.gpus) * (len(topology.gpus) - 1) // 2),
    }
    if "pci_devices" in entry:
        found["pci_devices"] = (
            len(topology.gpus) + len(topology.nics) + len(pcie) + unclassed,
            entry["pci_devices"],
        )
    return [f"{what}: {got}, index {wanted}" for what, (got, wanted) in found.items() if got != wanted]


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of topology files is not here")
def test_each_file_of_the_corpus_gives_the_machine_of_its_index_or_is_refused() -> None:
    rows, wrong = [], []
    for entry in index():
        content = (CORPUS / entry["file"]).read_bytes()
        try:
            topology = parse_nccl_xml(content, host="box")
        except TopologyError as error:
            state = "refused" if must_refuse(entry) and error.found.startswith("line ") else "wrong"
            rows.append((state, entry["file"], error.found))
        else:
            assert recognises(content)
            assert from_json(to_json(topology)) == topology
            faults = ["not refused"] if must_refuse(entry) else mistakes(entry, topology)
            told = f"{len(topology.gpus)} GPUs, {len(topology.nics)} NICs, {len(topology.warnings)} warnings"
            rows.append(("wrong" if faults else "parsed", entry["file"], "; ".join(faults) or told))
    for state, name, told in rows:
        print(f"{state:8} {name:56} {told[:120]}")
        wrong += [f"{name}: {told}"] if state == "wrong" else []
    contents = [(CORPUS / entry["file"]).read_bytes() for entry in index()]
    started = time.perf_counter()
    for content in contents:
        with contextlib.suppress(TopologyError):
            parse_nccl_xml(content, host="box")
    print(f"all {len(contents)} files in {1000 * (time.perf_counter() - started):.0f} ms")
    print({state: sum(row[0] == state for row in rows) for state in ("parsed", "refused", "wrong")})
    assert not wrong
