"""Every nvidia-smi text of the corpus beside the repository, against what its index says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from topology.errors import TopologyError
from topology.model import SwitchKind
from topology.pcie_tree import LEVELS, pcie_labels
from topology.probe.smi import parse_smi, parse_smi_matrices, recognises
from topology.probe.smi_check import check
from topology.probe.smi_text import read_matrices
from topology.render.smi import smi_text

CORPUS = Path(__file__).resolve().parents[4].parent / "shared" / "corpus" / "smi"
LABEL = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")

pytestmark = pytest.mark.skipif(not (CORPUS / "index.yaml").is_file(), reason="the corpus lies outside the repository")


def entries() -> list[dict[str, Any]]:
    return list(yaml.safe_load((CORPUS / "index.yaml").read_text(encoding="utf-8")))


def text_of(entry: dict[str, Any]) -> str:
    return (CORPUS / f"{int(entry['id']):03d}.txt").read_text(encoding="utf-8")


def verdict(entry: dict[str, Any]) -> tuple[str, str]:
    """Whether the text was parsed as the index describes it, refused, or read wrongly; and the detail."""
    text, tags = text_of(entry), set(entry["tags"])
    if not recognises(text):
        return "wrong", "not recognised"
    try:
        topologies = parse_smi_matrices(text, host="box")
    except TopologyError as error:
        return "refused", error.problems[0]
    found = {cell for matrix in read_matrices(text) for row in matrix.cells for cell in row}
    told = {"SYS" if tag == "SOC" else tag for tag in tags if LABEL.fullmatch(tag)}
    counts = {len(topology.gpus) for topology in topologies}
    wrong = []
    if counts != {entry["gpus"]}:
        wrong.append(f"{counts} GPUs, not {entry['gpus']}")
    if not told <= found:
        wrong.append(f"the labels {sorted(told - found)} are absent")
    if len(topologies) != (2 if "two-matrices-in-one" in tags else 1):
        wrong.append(f"{len(topologies)} matrices")
    if "nic-legend" in tags and any(nic.name.startswith("NIC") for nic in topologies[0].nics):
        wrong.append("a NIC without its name")
    if any(tag.startswith("nic") for tag in tags) and not topologies[0].nics:
        wrong.append("no NICs")
    if len(topologies[-1].pairs) != entry["gpus"] * (entry["gpus"] - 1) // 2:
        wrong.append("pairs are missing")
    return ("wrong", "; ".join(wrong)) if wrong else ("parsed", " ".join(sorted(found - {"X"})))


def test_the_whole_corpus() -> None:
    table = {str(entry["id"]): (entry, *verdict(entry)) for entry in entries()}
    for name, (entry, outcome, detail) in table.items():
        print(f"{name:>3}  {outcome:<8}  {'whole' if entry['complete'] else 'cut':<6}  {detail}")
    outcomes = [outcome for _, outcome, _ in table.values()]
    print({outcome: outcomes.count(outcome) for outcome in ("parsed", "refused", "wrong")})
    for name, (entry, outcome, detail) in table.items():
        bad = not entry["complete"] or "non-nvidia" in entry["tags"]
        assert outcome == ("refused" if bad else "parsed"), f"{name}: {detail}"


def test_every_pcie_label_is_in_the_tree() -> None:
    labels = 0
    for entry in entries():
        try:
            topology = parse_smi(text_of(entry), host="box")
        except TopologyError:
            continue
        matrix = read_matrices(text_of(entry))[0]
        devices = (device.id for device in topology.gpus)
        nics = (nic.id for nic in topology.nics)
        ids = [next(devices) if at in matrix.gpus else next(nics) for at in range(len(matrix.names))]
        found = pcie_labels(topology)
        for (a, b), label in check(matrix).labels.items():
            if label in LEVELS:
                labels += 1
                assert found[frozenset((ids[a], ids[b]))] == label, f"{entry['id']}: {ids[a]} - {ids[b]}"
    print(f"{labels} labels")
    assert labels > 1000


def test_every_machine_with_nvswitches_has_one_bundle_for_each_gpu() -> None:
    for entry in entries():
        if not entry["complete"] or "non-nvidia" in entry["tags"]:
            continue
        topology = parse_smi(text_of(entry), host="box")
        switches = [switch.id for switch in topology.switches if switch.kind is SwitchKind.nvswitch]
        ends = [link.b for link in topology.links if link.kind.startswith("NV")]
        if "nvswitch" in entry["tags"]:
            assert switches == ["box/nvswitch"], entry["id"]
            assert ends == switches * entry["gpus"], entry["id"]
        elif switches:
            assert "NV18" in entry["tags"], entry["id"]  # four GPUs that a container or a tray shows
        else:
            joined = [pair for pair in topology.pairs if pair.is_nvlink]
            assert len(ends) == len(joined), entry["id"]


def test_every_machine_is_written_as_it_was_read() -> None:
    for entry in entries():
        if not entry["complete"] or "non-nvidia" in entry["tags"]:
            continue
        topology = parse_smi(text_of(entry), host="box")
        text = smi_text(topology)
        again = parse_smi(text, host="box")
        assert again.pairs == topology.pairs, entry["id"]
        assert pcie_labels(again) == pcie_labels(topology), entry["id"]
        assert [device.numa for device in again.gpus] == [device.numa for device in topology.gpus], entry["id"]
        assert again.nics == topology.nics, entry["id"]
        assert smi_text(again) == text, entry["id"]


def test_every_file_has_its_entry() -> None:
    assert {f"{int(entry['id']):03d}.txt" for entry in entries()} == {path.name for path in CORPUS.glob("*.txt")}


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_whole_text_cut_inside_its_rows_is_refused(part: float) -> None:
    for entry in entries():
        text = text_of(entry)
        if not entry["complete"] or "non-nvidia" in entry["tags"] or "two-matrices-in-one" in entry["tags"]:
            continue
        last = max(read_matrices(text)[0].lines)
        lines = text.splitlines()[: max(1, int(last * part))]
        with pytest.raises(TopologyError):
            parse_smi_matrices("\n".join(lines), host="box")
