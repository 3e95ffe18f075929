"""What TAB completes, asked of the function and of real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.verbs.complete import candidates, key_types
from orchestrator.verbs.table import VERBS

LIMIT_SECONDS = 0.3


def texts(*words: str) -> list[str]:
    return [found.text for found in candidates(words)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "plan.json").write_text("{}")
    (tmp_path / "data dir").mkdir()
    (tmp_path / "data dir" / "rows.jsonl").write_text("")
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "long.yaml").write_text("")
    return tmp_path


def test_verbs_and_flags() -> None:
    assert texts("pl") == ["plan"]
    assert set(texts("")) == {*(verb.name for verb in VERBS), "--help", "--version", "--completion"}
    assert texts("--completion", "") == ["bash", "fish", "zsh"]
    assert texts("plan", "--c") == ["--cfg"]
    assert texts("plan", "--cfg", "") == ["all", "hydra", "job"]
    assert texts("plann", "") == []
    assert texts("faults", "") != []
    assert {"list", "run"} <= set(texts("faults", ""))


def test_keys_come_a_level_at_a_time() -> None:
    assert {"adapter=", "adapter.", "seed=", "report_to="} <= set(texts("plan", ""))
    assert not any("." in text[:-1] for text in texts("plan", "") if not text.startswith("hydra"))
    assert {"adapter.rank=", "adapter.alpha="} <= set(texts("plan", "adapter."))
    assert texts("plan", "optimizer.l") == ["optimizer.lr="]
    assert texts("plan", "+optimizer.l") == ["+optimizer.lr="]
    assert len(key_types()) > 100
    assert "batch.global" in key_types()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("engine=", ["auto", "ddp", "streamed", "zero3"]),
        ("topology=dgx_h", ["dgx_h100", "dgx_h200"]),
        ("precision=b", ["bf16"]),
        ("monitor.enabled=", ["false", "true"]),
        ("data.packing=", ["auto", "false", "true"]),
        ("adapter.rank=a", ["auto"]),
        ("engine=ddp,s", ["ddp,streamed"]),
        ("report_to=wandb,", ["wandb,mlflow", "wandb,none", "wandb,tensorboard"]),
        ("monitor.report_to=[ten", ["[tensorboard"]),
        ("bench.only=ge", ["gemm"]),
        ("faults.only=kill_rank,kill_s", ["kill_rank,kill_supervisor"]),
        ("hydra/sweeper=", ["basic", "optuna"]),
        ("seed=", []),
    ],
)
def test_values(typed: str, found: list[str]) -> None:
    key = typed.partition("=")[0]
    assert texts("train", typed) == [f"{key}={text}" for text in found]


def test_files_and_runs(here: Path) -> None:
    assert texts("plan", "data=da") == ["data=data dir/"]
    assert texts("plan", "data=data dir/") == ["data=data dir/rows.jsonl"]
    assert texts("plan", f"save={here}/mi") == [f"save={here}/mine.yaml"]
    folders = ["data dir/", "experiments/", "runs/", "runs/first"]
    assert texts("status", "") == sorted([*folders, "follow=", "format=", "run_dir=", "save="])
    assert texts("status", "runs/f") == ["runs/first"]
    assert {"resume=true", "resume=runs/first"} <= set(texts("train", "resume="))
    assert {"experiment=demo", "experiment=long", "experiment=mine.yaml"} <= set(texts("train", "experiment="))
    assert texts("plan", "experiment=runs/first/") == []
    assert texts("plan", "data=/nowhere/") == []


def test_bash(here: Path) -> None:
    script = f"""
eval "$({sys.executable} -P -m orchestrator.cli --completion bash)"
trainmaster() {{ {sys.executable} -P -m orchestrator.cli "$@"; }}
try() {{
    COMP_LINE="$1" COMP_POINT=${{#1}}
    _trainmaster trainmaster "" ""
    (IFS='|'; echo "${{COMPREPLY[*]}}")
}}
try "trainmaster pl"
try "trainmaster plan engine="
try "trainmaster plan engine=ddp topology=dgx_h"
try "trainmaster plan data=da"
try "trainmaster plan data='data dir/r"
try "trainmaster status runs/"
try "trainmaster plan adapter.al"
complete -p trainmaster
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, env=environment(), timeout=50
    )
    assert done.stdout.splitlines() == [
        "plan",
        "auto|ddp|streamed|zero3",
        "dgx_h100|dgx_h200",
        "data\\ dir/",
        "data\\ dir/rows.jsonl",
        "runs/first",
        "adapter.alpha=|adapter.alpha_pattern=",
        "complete -o nospace -F _trainmaster trainmaster",
    ]


def environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[4])
    return {**os.environ, "PYTHONPATH": root, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_fish(here: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    if shutil.which("trainmaster", path=environment()["PATH"]) is None:
        pytest.skip("the command is not installed in this environment")
    script = (
        'trainmaster --completion fish | source; complete -C "trainmaster plan engine=s"; complete -C "trainmaster sta"'
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], capture_output=True, text=True, check=True, env=environment(), timeout=50
    )
    assert done.stdout.splitlines() == ["engine=streamed", "status\thow far a run is, here or under SLURM"]


def test_zsh_takes_the_script() -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script = f'compdef() {{ echo "$@"; }}; eval "$({sys.executable} -P -m orchestrator.cli --completion zsh)"'
    done = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, check=True, env=environment(), timeout=50
    )
    assert done.stdout == "_trainmaster trainmaster\n"


def test_a_tab_is_quick(tmp_path: Path) -> None:
    env = {**environment(), "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    words = [sys.executable, "-P", "-m", "orchestrator.cli", "--complete", "plan", "engine="]
    taken = []
    for _ in range(6):  # of CPU time, since others may be at work here; the first compiles
        before = os.times()
        subprocess.run(words, check=True, capture_output=True, env=env)
        after = os.times()
        taken.append(after[2] + after[3] - before[2] - before[3])
    assert min(taken) < LIMIT_SECONDS


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from orchestrator.cli import main; main(['--complete', 'plan', 'engine=']);"
        "print([name for name in ('torch', 'hydra', 'omegaconf', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_goes_wrong_is_not_printed_into_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_words: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("orchestrator.verbs.complete.candidates", broken)
    assert main(["--complete", "plan", ""]) == 1
    assert capsys.readouterr() == ("", "")
