"""`probe` and `doctor` from the command line: what they print and write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from orchestrator.cli import main

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-7\nGPU1\t{0}\t X \t0-7\n"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["probe", *arguments, "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert isinstance(body, dict)
    return body


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    return told.err


def test_the_document_tells_class_and_islands(capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "topology=rtx3090_nvlink_pair")
    assert body["hosts"][0]["class"] == "NVLink pairs"  # type: ignore[index]
    assert [len(group) for group in body["islands"]["NV"]] == [2]  # type: ignore[index]
    assert {"a", "b", "kind", "bytes_per_second", "source"} <= body["links"][0].keys()  # type: ignore[index]


@pytest.mark.parametrize("name", ["t.json", "t.xml", "t.txt"])
def test_a_machine_is_saved_in_the_format_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    before = shown(capsys, "topology=dgx1_v100", f"save={path}")
    after = shown(capsys, f"topology={path}")
    kinds = [sorted(pair["kind"] for pair in body["pairs"]) for body in (before, after)]  # type: ignore[attr-defined]
    assert kinds[0] == kinds[1]
    if name == "t.json":
        assert before == after


def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "t.svg"
    shown(capsys, "topology=dgx_h100", "nodes=2", f"picture={path}")
    assert ET.parse(path).getroot().tag.endswith("svg")
    assert "in .svg" in refused(capsys, "probe", f"picture={tmp_path / 't.png'}")


def test_readings_are_kept_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "readings.json"
    live = shown(capsys, f"save_readings={path}")
    again = shown(capsys, f"topology={path}")
    assert again["fingerprint"] == live["fingerprint"]
    assert "another" in refused(capsys, "probe", "topology=dgx_h100", f"save_readings={path}")


def test_nodes_and_network_of_a_drawn_machine(capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "topology=DGX-H100", "nodes=4", "network=leaf_spine", "network.hosts_per_leaf=2")
    assert len(body["hosts"]) == 4  # type: ignore[arg-type]
    assert "nodes" in refused(capsys, "train", "experiment=demo", "topology=dgx_h100", "nodes=4", "dry_run=true")


def test_a_folder_and_one_of_several_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hosts"
    folder.mkdir()
    (folder / "a.txt").write_text(MATRIX.format("NV4"))
    (folder / "b.txt").write_text(MATRIX.format("SYS"))
    body = shown(capsys, f"topology={folder}")
    assert [host["name"] for host in body["hosts"]] == ["a", "b"]  # type: ignore[attr-defined]
    both = tmp_path / "both.txt"
    both.write_text("before\n" + MATRIX.format("NV4") + "\nafter\n" + MATRIX.format("PHB"))
    assert [pair["kind"] for pair in shown(capsys, f"topology={both}")["pairs"]] == ["NV4"]  # type: ignore[attr-defined]
    second = shown(capsys, f"topology={both}", "topology.matrix=2")
    assert [pair["kind"] for pair in second["pairs"]] == ["PHB"]  # type: ignore[attr-defined]


def test_names_that_are_nothing_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'dgx_h100'" in refused(capsys, "probe", "topology=dgx_h10")
    assert "No such file" in refused(capsys, "probe", f"topology={tmp_path / 'gone.txt'}")
    assert "save_readings" in refused(capsys, "probe", "save_readings=/proc/x")


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    shown(capsys, "topology=2x24gb-pcie", f"save={path}")
    body = json.loads(path.read_text())
    body["hosts"][0]["devices"][0]["name"] = "A\x1b[2J\nGPU9  forged\u202e"
    path.write_text(json.dumps(body))
    assert main(["probe", f"topology={path}", f"save={tmp_path / 't.xml'}", f"picture={tmp_path / 't.svg'}"]) == 0
    out = capsys.readouterr().out
    assert "A\\x1b[2J\\nGPU9  forged\\u202e" in out
    assert not {"\x1b", "\u202e"} & set(out)
    path.write_text('{"schema": "a\\u001b[2J"}')
    assert "\x1b" not in refused(capsys, "probe", f"topology={path}")


def test_a_bare_path_is_no_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert "topology=dgx_h100" in refused(capsys, "probe", "dgx_h100")
    assert "one line" not in refused(capsys, "doctor", "runs/first")
    assert refused(capsys, "doctor", "topology=dgx_h100")


def test_many_hosts_are_saved_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "topology=mixed_a100_h100", f"save={tmp_path / 'hosts' / 'x.txt'}")
    body = shown(capsys, f"topology={tmp_path / 'hosts'}")
    assert len(body["hosts"]) == 2  # type: ignore[arg-type]
    assert "in a file of its own" in refused(
        capsys, "probe", "topology=h100", "nodes=300", f"save={tmp_path / 'x.xml'}"
    )


def test_names_of_outputs_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "probe", f"save={tmp_path / 'x.yaml'}", f"picture={tmp_path / 'x.png'}")
    assert ".json, .xml, .txt" in told
    assert "in .svg" in told
    both = tmp_path / "x.json"
    assert "two outputs" in refused(capsys, "probe", f"save={both}", f"save_readings={both}")


def test_more_hosts_than_described_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.txt"
    path.write_text(MATRIX.format("NV4"))
    assert "4 hosts asked for, 1 described" in refused(capsys, "probe", f"topology={path}", "nodes=4")


def test_doctor_tells_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "findings.json"
    assert main(["doctor", "load=false", f"save={path}"]) == 0
    assert re.search(r"\d+ errors?, \d+ warnings?, \d+ notes?, \d+ ok", capsys.readouterr().out)
    body = json.loads(path.read_text())
    assert body["schema"] == "trainmaster.doctor/1"
    assert all({"check", "severity", "title", "evidence", "remedy"} <= finding.keys() for finding in body["findings"])
