"""`trainmaster faults`: help, the list, and what is refused before anything runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.fault_runs import command
from orchestrator.faults.fault import KINDS


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "--help"], ["help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", *words]) == 0
    assert capsys.readouterr().out == command.HELP


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "list"]) == 0
    text = capsys.readouterr().out
    assert main(["faults", "list", "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [entry["fault"] for entry in body["faults"]] == [fault.value for fault in KINDS]
    assert all(entry["text"] in text for entry in body["faults"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rum"], "Did you mean 'run'?"),
        (
            ["run", "experiment=demo", "faults.only=kil_rank"],
            "faults.only: no fault 'kil_rank'. Did you mean 'kill_rank'?",
        ),
        (["run", "experiment=demo", "faults.only=[slurm_preempt]"], "faults.only=slurm_preempt: needs launch=slurm."),
        (["run", "experiment=demo", "faults=hang"], "Write faults.only=hang"),
        (["run", "experiment=demo", "dry_run=true"], "dry_run: faults run has none"),
        (["run", "experiment=demo", "resume=true"], "resume: faults run starts new runs"),
        (["run", "experiment=demo", "run_dir=."], "run_dir=.: it is not an empty folder"),
        (["run", "-m", "experiment=demo", "seed=1,2"], "-m: faults run is no sweep"),
    ],
)
def test_refusals(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["faults", *words]) == 2
    assert told in capsys.readouterr().err


def test_nothing_of_it_imports_torch() -> None:
    code = "import sys, orchestrator.fault_runs.run, orchestrator.faults.inject; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "False"
