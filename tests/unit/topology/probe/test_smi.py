"""nvidia-smi's matrix in hand-made wild forms, and what must be refused."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from topology.codec import from_json, to_json
from topology.errors import TopologyError
from topology.judge import judged
from topology.model import Topology
from topology.probe.smi import parse_smi, parse_smi_matrices, recognises
from topology.probe.smi_text import read_matrices

DATA = Path(__file__).parent / "data"
PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
GOOD = PAIR + "GPU0\t X \tNV4\t0-7\t0\t\tN/A\nGPU1\tNV4\t X \t8-15\t1\t\tN/A\n"


def kinds(topology: Topology) -> dict[str, str]:
    return {f"{pair.a} {pair.b}": pair.kind for pair in topology.pairs}


def numa(topology: Topology) -> list[int | None]:
    return [device.numa for device in topology.gpus]


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        parse_smi(text, host="box")
    assert all("line" in problem for problem in caught.value.problems if not problem.endswith(" more"))
    return caught.value.found


def test_a_plain_matrix() -> None:
    topology = parse_smi(GOOD, host="box")
    assert [device.id for device in topology.gpus] == ["box/gpu0", "box/gpu1"]
    assert [device.index for device in topology.gpus] == [0, 1]
    assert {device.name for device in topology.gpus} == {"unknown GPU"}
    assert kinds(topology) == {"box/gpu0 box/gpu1": "NV4"}
    assert numa(topology) == [0, 1]
    assert "unknown" in topology.warnings[0]
    assert from_json(to_json(topology)) == topology


def test_mail_with_two_matrices_a_broken_header_colours_a_fence_and_a_p2p_matrix() -> None:
    text = (DATA / "smi_mail.txt").read_text(encoding="utf-8")
    before, after = parse_smi_matrices(text, host="box")
    assert kinds(before) == {"box/gpu0 box/gpu1": "SYS"}
    assert [nic.id for nic in before.nics] == ["box/mlx5_0", "box/rocep1s0f1"]
    assert kinds(after) == {"box/gpu0 box/gpu1": "NV4"}
    assert numa(before) == numa(after) == [0, 1]
    assert read_matrices(text)[0].cells[1] == ("SYS", "X", "SYS", "PHB")
    assert "the matrix at line 4 is taken" in parse_smi(text, host="box").warnings[1]
    assert kinds(parse_smi(text, host="box", matrix=2)) == kinds(after)


def test_a_markdown_table() -> None:
    topology = parse_smi((DATA / "smi_table.md").read_text(encoding="utf-8"), host="box")
    assert list(kinds(topology).values()) == ["PXB", "SYS", "SYS"]
    assert numa(topology) == [0, 0, 1]


WILD = {
    "no leading tab": GOOD.lstrip(),
    "collapsed spaces": " ".join(GOOD.replace("\n", "\0").split(" ")).replace("\t", " ").replace("\0", "\n"),
    "underlined": GOOD.replace("GPU0", "\x1b[4mGPU0", 1).replace("ID", "ID\x1b[0m", 1),
    "caret notation": GOOD.replace("GPU0", "^[[4mGPU0", 1).replace("ID", "ID^[[0m", 1),
    "quoted": "".join(f"> > {line}\n" for line in GOOD.splitlines()),
    "glued quotes": "".join(f">{line}\n" for line in GOOD.splitlines()),
    "commented": "".join(f"# {line}\n" for line in GOOD.splitlines()),
    "log prefix": "".join(f"2024-01-02 03:04:05 node7 INFO: {line}\n" for line in GOOD.splitlines()),
    "fenced": f"```text\n{GOOD}```\n",
    "windows": "\ufeff" + GOOD.replace("\n", "\r\n"),
    "double spaced": GOOD.replace("\n", "\n\n"),
    "glued names": GOOD.replace("GPU0\tGPU1", "GPU0GPU1", 1),
    "glued affinities": GOOD.replace("Affinity\tNUMA", "AffinityNUMA", 1),
    "broken lines": GOOD.replace("GPU1\tCPU", "GPU1\nCPU", 1).replace("NV4\t0-7", "\nNV4\n0-7", 1),
    "broken lines, one word each": "\n".join(GOOD.replace("\t\t", "\t").split()),
    "broken rows with blank lines": GOOD.replace("X \tNV4", "X \n\n NV4"),
    "collapsed into one line": " ".join(GOOD.split()),
    "filled paragraph": "\n".join(textwrap.wrap(" ".join(GOOD.split()), 23)),
    "broken by a narrow terminal": "\n".join(
        line.expandtabs(8)[at : at + 45] for line in GOOD.splitlines() for at in (0, 45)
    ),
    "hard spaces and dashes": GOOD.replace("\t", "\u00a0 ").replace("-", "\u2011"),
    "full width": GOOD.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
    "entities": "<pre>" + GOOD.replace("\t", "&nbsp;&#160;").replace("\n", "<br>\n") + "</pre>",
    "quoted entities": "".join(f"&gt; {line}\n" for line in GOOD.splitlines()),
    "a string of JSON": json.dumps(GOOD),
    "lines of YAML": "".join(f'  - "{line}"\n' for line in GOOD.splitlines()),
    "commas": GOOD.replace("\t", ","),
    "quoted commas": "".join(",".join(f'"{cell}"' for cell in line.split("\t")) + "\n" for line in GOOD.splitlines()),
    "semicolons": GOOD.replace("\t", ";"),
    "bold table": "".join(f"| {' | '.join(f'**{c}**' for c in line.split(chr(9)))} |\n" for line in GOOD.splitlines()),
    "drawn table": GOOD.replace("\t", " \u2502 "),
    "script": "\x1b]0;me\x07$ nvidia-smi tpo\b\bopo -m\r\n" + GOOD.replace("\n", "\r\r\n"),
    "line numbers": "".join(f"{at:4d}  {line}\n" for at, line in enumerate(GOOD.splitlines(), start=9)),
    "added by a change": "".join(f"+{line}\n" for line in ["", *GOOD.splitlines(), "Legend:"]),
    "taken away by a change": "".join(f"-{line}\n" for line in GOOD.splitlines()),
    "a coloured change": "".join(f"\x1b[32m+{line}\x1b[m\n" for line in GOOD.splitlines()),
    "breaks of a page": f"| see | `nvidia-smi topo -m`<br><br>```<br>{GOOD.replace(chr(10), '<br>')}X = Self<br>``` |",
    "breaks in titles": GOOD.replace("CPU Affinity", "CPU<br/>Affinity").replace("\n", "<br />\n"),
    "glued labels": GOOD.replace(" X \tNV4", "XNV4").replace("NV4\t X ", "NV4X"),
    "prose about it": f"We joined GPU0 GPU1 by a bridge.\nGPU0 and GPU1:\n{GOOD}GPU1 is the hot one\n",
}


NAMES = "mlx4_0 mlx5_bond_0 bnxt_re0 rocep1s0f0 irdma0 hfi1_0 efa_0 rdmap16s27 ens1f0np0 erdma_0 ibp12s0 roce0.1"


@pytest.mark.parametrize("width", [None, 12, 40])
def test_names_of_nics_are_any(width: int | None) -> None:
    names = f"GPU2 GPU11 {NAMES}".split()
    rows = [f"{one} {' '.join('X' if one == other else 'SYS' for other in names)}" for one in names]
    lines = [" ".join([*names, "CPU Affinity"]), *rows]
    text = "\n".join(lines if width is None else [part for line in lines for part in textwrap.wrap(line, width)])
    topology = parse_smi(text, host="box")
    assert [nic.name for nic in topology.nics] == NAMES.split()
    assert [device.index for device in topology.gpus] == [2, 11]


@pytest.mark.parametrize("form", WILD)
def test_wild_forms(form: str) -> None:
    topology = parse_smi(WILD[form], host="box")
    assert recognises(WILD[form])
    assert list(kinds(topology).values()) == ["NV4"]
    assert numa(topology) == [0, 1]


def test_old_drivers_words() -> None:
    rows = "GPU0\t X \tSOC\tPIX\t0-7\nGPU1\tSOC\t X \tSOC\t8-15\nmlx4_0\tPIX\tSOC\t X \n"
    text = "\tGPU0\tGPU1\tmlx4_0\tCPU Affinity\n" + rows
    topology = parse_smi(text, host="box")
    assert list(kinds(topology).values()) == ["SYS"]
    assert [nic.name for nic in topology.nics] == ["mlx4_0"]


@pytest.mark.parametrize(
    ("columns", "tail", "node"),
    [
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t\t1\t\tN/A", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0\t1\t\tN/A", 1),
        ("CPU Affinity\tNUMA Affinity", "\t0-31\t\tN/A", None),
        ("CPU Affinity\tNUMA Affinity", "  0-11   N/A", None),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "   0-71   3,29-35   28", 3),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "   0-7, 16-23   2   N/A", 2),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "      0      N/A", None),
        ("CPU Affinity", "  0-23   2   ", 2),
        ("CPU Affinity", "  0-23", None),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0x00ff00ff\t1\t\tN/A", 1),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t<NULL>\t1\t\tN/A", 1),
        ("NUMA Affinity\tCPU Affinity", "\t1\t0-3", 1),
        ("GPU NUMA ID", "\t4", None),
        ("Node Affinity  CPU Affinity", "  6   96-111", 6),
        ("", "    NUMA 1", 1),
        ("", "", None),
        ("CPU Affinity\tNUMA Affinity", "  0-23  0  <- the new one", None),
    ],
)
def test_the_numa_node_of_a_row(columns: str, tail: str, node: int | None) -> None:
    assert numa(parse_smi(f"\tGPU0\t{columns}\nGPU0\t X {tail}\n", host="box")) == [node]


@pytest.mark.parametrize(
    ("tail", "cpus"),
    [
        ("\t0-15,32-47\t1\t\tN/A", "0-15,32-47"),
        ("\t0,2,4\t1\t\tN/A", "0,2,4"),
        ("\t\t1\t\tN/A", None),
        ("\tN/A\t1\t\tN/A", None),
        ("\t0x00ff0003\t1\t\tN/A", "0-1,16-23"),
        (",0-15,32-47,1,,N/A", "0-15,32-47"),
    ],
)
def test_the_cpus_of_a_row(tail: str, cpus: str | None) -> None:
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\tX{tail}\n"
    topology = parse_smi(text, host="box")
    assert [device.cpus for device in topology.gpus] == [cpus]
    assert numa(topology) == [1]


def matrix(*rows: str, names: str = "") -> str:
    names = names or " ".join(f"GPU{at}" for at in range(len(rows)))
    return "\n".join([f"  {names}", *(f"{name} {row}" for name, row in zip(names.split(), rows, strict=True))])


REFUSED = {
    "nothing": ("", "no matrix"),
    "prose": ("GPU0 and GPU1 are far apart", "no matrix"),
    "json": ('{"schema": 1}', "no matrix"),
    "a header alone": ("  GPU0 GPU1 CPU Affinity\n", "no matrix: line 1 may be a header"),
    "no header": ("GPU0 X NV4\nGPU1 NV4 X\n", "line 1: a row of a matrix without the header"),
    "rows missing": ("  GPU0 GPU1\nGPU0 X NV4\n", "the matrix ends without the rows GPU1"),
    "a row cut": ("  GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4\n", "line 3: row GPU1 has 1 labels for 2 columns"),
    "a label too many": (matrix("X PIX PIX", "PIX X"), "line 2: row GPU0 has 3 labels for 2"),
    "a row twice": ("  GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\nGPU1 PIX X", "line 3: row GPU0 for the second time"),
    "a row without a column": (matrix("X PIX", "PIX X") + "\nNIC0 PIX PIX", "line 4: row NIC0 has no column"),
    "a column twice": ("  GPU0 GPU0\nGPU0 X PIX\n", "line 1: a column name more than once"),
    "another vendor": (matrix("X HT", "HT X"), "line 2: row GPU0 has HT, no label"),
    "the diagonal moved": (matrix("PIX X", "X PIX"), "line 2: row GPU0 has X under GPU1 instead of under GPU0"),
    "no diagonal": (matrix("PIX PIX", "PIX X"), "X under no column"),
    "asymmetric": (matrix("X PIX", "SYS X"), "lines 2 and 3: GPU0 - GPU1 is PIX one way and SYS the other"),
    "NVLink one way": (matrix("X NV4", "SYS X"), "is NV4 one way"),
    "no tree": (matrix("X PIX SYS", "PIX X PIX", "SYS PIX X"), "line 2: GPU0 - GPU2 is SYS, but GPU0 - GPU1 - GPU2"),
    "p2p": (matrix("X OK", "OK X"), "line 1: a matrix of `nvidia-smi topo -p2p`"),
    "damaged affinity": ("  GPU0 CPU Affinity\nGPU0 X -31,64-95", "line 2: row GPU0: '-31,64-95' is no list"),
    "NIC names twice": (
        matrix("X PIX PIX", "PIX X PIX", "PIX PIX X", names="GPU0 NIC0 NIC1") + "\nNIC0: mlx5_0\nNIC1: mlx5_0",
        "line 1: two NICs of this matrix have the name mlx5_0",
    ),
    "a row the legend would complete": ("  GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4\nX    = Self\n", "row GPU1 has 1 labels"),
    "a row cut in one line": ("GPU0 GPU1 GPU0 X NV4 GPU1 NV4", "line 1: row GPU1 has 1 labels"),
    "a range backwards": ("  GPU0 CPU Affinity\nGPU0 X 9-3", "'9-3' is no list"),
    "rocm-smi": (
        "ROCm System Management Interface\n== Link Type between two GPUs ==\n  GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n",
        "line 1: 'ROCm System Management': the output of AMD's tool",
    ),
    "MetaX": (matrix("X MX", "MX X") + "\n  MX = MetaXLink", "line 4: 'MetaX': the output of MetaX's tool"),
    "more links than a GPU has": (
        matrix("X NV999", "NV999 X"),
        "line 2: row GPU0 has NV999, but no GPU has more than 36",
    ),
    "a column of the CPU": (
        matrix("X NV1 PHB", "NV1 X PHB", "PHB PHB X", names="GPU0 GPU1 CPU"),
        "line 1: column CPU, ne",
    ),
    "columns of other things": (
        matrix("X PHB PHB", "PHB X PHB", "PHB PHB X", names="GPU0 SSD0 switch1"),
        "line 1: column SSD0, switch1, neither GPU nor NIC",
    ),
    "labels glued, one lost": ("  GPU0 GPU1 NIC0\nGPU0 X NODEPIX\nGPU1 NODE XPIX\nNIC0 PIX PI X\n", "row NIC0 has PI"),
    "labels and affinities glued": ("  GPU0 GPU1 CPU Affinity\nGPU0 X NODE0-3\nGPU1 NODE X0-3\n", "GPU1 has 1 labels"),
    "lower case": (GOOD.lower(), "no matrix"),
    "a change of rows": (GOOD.replace("GPU1\tNV4", "-GPU1\tNV2\t X \t8-15\t1\n+GPU1\tNV4"), "without the rows GPU1"),
    "UTF-16": ("line\n" + "\0".join(GOOD), "line 2: a NUL character"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_line_and_the_reason(case: str) -> None:
    text, reason = REFUSED[case]
    assert reason in refusal(text)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        parse_smi(matrix("X PIX HT", "PIX X", "HT"), host="box")
    assert len(caught.value.problems) == 3


def test_a_tree_is_checked_over_nics_and_around_nvlink() -> None:
    names = "GPU0 GPU1 NIC0"
    parse_smi(matrix("X NV4 PIX", "NV4 X SYS", "PIX SYS X", names=names), host="box")  # NVLink hides a SYS
    names = "GPU0 GPU1 NIC0 NIC1"
    rows = ("X NV4 PIX SYS", "NV4 X PIX PIX", "PIX PIX X NODE", "SYS PIX NODE X")
    assert "NODE" in refusal(matrix(*rows, names=names)) or "SYS" in refusal(matrix(*rows, names=names))


def test_odd_but_possible_machines_are_read_with_a_warning() -> None:
    unequal = parse_smi(matrix("X NV12", "NV10 X"), host="box")
    assert list(kinds(unequal).values()) == ["NV10"]
    assert "smaller count" in unequal.warnings[1]


def test_what_any_topology_is_judged_by_is_told_once() -> None:
    degraded = matrix("X NV12 SYS SYS", "NV12 X SYS SYS", "SYS SYS X NV10", "SYS SYS NV10 X")
    flat = "  GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X {} 0-3 0\nGPU1 {} X 0-3 {}"
    for text, told in [
        (degraded, "10 of 12 NVLinks"),
        (flat.format("SYS", "SYS", 0), "SYS although on one NUMA node"),
        (flat.format("PHB", "PHB", 1), "nearer than SYS"),
    ]:
        warnings = judged(parse_smi(text, host="box")).warnings
        assert len([warning for warning in warnings if told in warning]) == 1
        assert not any("fewer NVLinks" in warning for warning in warnings)


def test_a_row_without_the_node_that_others_have_is_told() -> None:
    text = "  GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X PIX 0-3 0\nGPU1 PIX X 0-3"
    assert any(warning.startswith("GPU1: no NUMA node") for warning in parse_smi(text, host="box").warnings)


def test_a_label_that_a_topology_cannot_hold_leaves_its_pair_unknown() -> None:
    topology = parse_smi(matrix("X NVB", "NVB X"), host="box")
    assert topology.pairs == ()
    assert "GPU0 - GPU1: NVB" in topology.warnings[1]
