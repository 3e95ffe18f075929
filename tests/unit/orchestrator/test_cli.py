"""The command line: exit codes, streams, speed, and what it must not import."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.outputs import write_whole

HEAVY = ("torch", "transformers", "trl", "peft", "deepspeed", "bitsandbytes", "accelerate", "datasets", "pandas")


def command(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where bytecode is kept, as that of an installed package is, whatever this process does with its own."""
    return {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode")), "PYTHONDONTWRITEBYTECODE": ""}


_YARDSTICK = "import hydra.utils, numpy, omegaconf, yaml"  # what every verb loads before its own work
_YARDSTICK_SECONDS = 0.38  # on an idle core of the machine that the limits are for


def best_seconds(*arguments: str, cwd: Path, env: dict[str, str]) -> float:
    """The best of six, of which the first compiles, in seconds of that machine: a busy one is slower at all it does."""
    found, yards = [], []
    for _ in range(6):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", _YARDSTICK], cwd=cwd, env={**os.environ, **env}, check=True)
        between = time.perf_counter()
        assert command(*arguments, cwd=cwd, **env).returncode == 0
        found.append(time.perf_counter() - between)
        yards.append(between - began)
    return min(found) / max(1.0, min(yards) / _YARDSTICK_SECONDS)


def test_help_is_quick(tmp_path: Path, compiled: dict[str, str]) -> None:
    assert best_seconds("--help", cwd=tmp_path, env=compiled) < 0.4


def test_plan_is_quick(tmp_path: Path, compiled: dict[str, str]) -> None:
    assert best_seconds("plan", "experiment=demo", cwd=tmp_path, env=compiled) < 1.5


def test_plan_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from orchestrator.cli import main; code = main(['plan', 'experiment=demo', 'format=json']);"
        f"print([name for name in {(*HEAVY, 'scipy.optimize')!r} if name in sys.modules], file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert json.loads(done.stdout)["chosen"]["step_seconds"] > 0


def test_json_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "experiment=demo", "format=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    phase_keys = {"allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes", "terms"}
    for strategy in [plan["chosen"], *plan["ranked"]]:
        assert strategy["tokens_per_second"] > 0
        for phase in ("load", "train", "save"):
            assert phase_keys <= set(strategy["memory"][phase])
            assert all({"name", "bytes", "why"} == set(term) for term in strategy["memory"][phase]["terms"])
    assert all({"strategy", "reason"} == set(entry) for entry in plan["rejected"])
    assert main(["probe", "format=json"]) == 0
    topology = json.loads(capsys.readouterr().out)
    assert {"schema", "fingerprint", "hosts", "links", "pairs", "warnings"} <= set(topology)


def test_a_saved_topology_plans_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "topology.json"
    assert main(["probe", f"save={saved}"]) == 0
    capsys.readouterr()
    assert main(["plan", "experiment=demo", f"topology={saved}", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["strategy"]["engine"] == "ddp"


@pytest.mark.parametrize("verb", ["plann", "trian", "xyz"])
def test_unknown_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb]) == 2
    assert "no such verb" in capsys.readouterr().err


def test_bad_inputs_come_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a", \n')
    assert main(["train", f"model={tmp_path}/none", f"data={rows}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{tmp_path}/none" in said.err
    assert "rows.jsonl, line 2: malformed JSON at column 17" in said.err
    assert "Traceback" not in said.err


def test_dry_run_shows_the_request_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", "experiment=demo", "engine=zero3", f"run_dir={folder}", "dry_run=true"]) == 0
    text = capsys.readouterr().out
    assert not folder.exists()
    for name in ("plan.json", "plan.1.json", "topology.json", "config.yaml", "deepspeed.json"):
        assert f"{folder}/{name}" in text
    assert "orchestrator.train.prepare" in text
    assert "torch.distributed.run" in text
    assert "--max-restarts" in text
    assert "DS_ACCELERATOR=cpu" in text
    assert main(["train", "experiment=demo", f"run_dir={folder}", "dry_run=true", "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["launch"]["argv"][0] == sys.executable
    assert dict(body["launch"]["env"])["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize(("users", "ours"), [(None, "WARN"), ("INFO", None)])
def test_dry_run_shows_the_levers_and_leaves_the_users_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    users: str | None,
    ours: str | None,
) -> None:
    if users is None:
        monkeypatch.delenv("NCCL_DEBUG", raising=False)
    else:
        monkeypatch.setenv("NCCL_DEBUG", users)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    asked = ["train", "experiment=demo", "topology=dgx_h100", "devices=4", "dry_run=true", f"run_dir={tmp_path}/run"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert ("NCCL_DEBUG=WARN \\\n" in text) is (ours is not None)
    assert "NCCL_P2P_DISABLE=1 (environment): it ends copies over NVLink" in text
    assert main([*asked, "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    ranks = dict(body["launch"]["env"])
    assert ranks.get("NCCL_DEBUG") == ours
    assert ranks["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert len(ranks["CUDA_VISIBLE_DEVICES"].split(",")) == 4
    (debug,) = (lever for lever in body["levers"] if lever["name"] == "NCCL_DEBUG")
    assert debug["overridden_by"] == ("" if ours else "NCCL_DEBUG=INFO (environment)")


@pytest.mark.parametrize("flag", ["--help", "--cfg"])
def test_hydra_flags(tmp_path: Path, flag: str) -> None:
    arguments = [flag, "job"] if flag == "--cfg" else [flag]
    done = command("plan", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "optimizer" in done.stdout


def test_sweep_runs_each_trial_apart(tmp_path: Path) -> None:
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "__init__.py").write_text("raise RuntimeError('shadowed')")
    done = command("plan", "-m", "experiment=demo", "seed=1,2", "format=json", cwd=tmp_path, PYTHONSAFEPATH="1")
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert [trial["result"]["config"]["seed"] for trial in trials] == [1, 2], "one document for the whole sweep"
    assert [(trial["exit_code"], trial["overrides"][1]) for trial in trials] == [(0, "seed=1"), (0, "seed=2")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "adapter.rank=[4"], "adapter.rank=[4"),
        (["--cfg", "job", "precision=fp8"], "precision"),
        (["--config-name", "nope"], "KEY=VALUE"),
        (["-m", "seed=1,2", "engin=ddp"], "engine"),
        (["adapter.rank=1,2"], "adapter.rank=1,2"),
        (["~optimizer.lr"], "optimizer.lr"),
        (["model="], "no value given"),
    ],
)
def test_wrong_flags_and_overrides_are_bad_input(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = command("plan", "experiment=demo", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_save_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "experiment=demo", f"run_dir={tmp_path}/run", f"save={tmp_path}"]) == 2
    assert "save=" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_closed_pipe(tmp_path: Path) -> None:
    script = f"{sys.executable} -m orchestrator.cli plan experiment=demo | head -1"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_own_folders_do_not_shadow(tmp_path: Path) -> None:
    for name in ("launch", "topology", "orchestrator"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('shadowed')")
    script = Path(sys.executable).with_name("trainmaster")
    if not script.exists():
        pytest.skip("the command is not installed in this environment")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([script, "probe"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_own_folders_on_the_path_do_not_shadow(tmp_path: Path) -> None:
    for name in ("topology", "launch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    done = command("probe", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("host ")


def test_closed_output(tmp_path: Path) -> None:
    line = f"{sys.executable} -m orchestrator.cli probe >&-"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "t.json", tmp_path / "link.json"
    path.write_text("before")
    link.symlink_to(path)

    def cut(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        with pytest.raises(UserError, match="No space left"):
            write_whole(link, "after", "save")
    assert path.read_text() == "before"
    write_whole(link, "after", "save")
    assert (path.read_text(), link.is_symlink()) == ("after", True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.json", "t.json"]


def test_what_is_written_is_told_with_the_folders_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, saved = tmp_path / "new" / "deep" / "plan.svg", tmp_path / "plan.json"
    assert main(["plan", "experiment=demo", f"picture={picture}", f"save={saved}"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert f"picture: wrote {picture} (new folder {tmp_path / 'new'})" in told
    assert f"save: wrote {saved}" in told
    assert main(["probe", "topology=cpu", f"save={tmp_path / 'other' / 'topology.json'}"]) == 0
    assert f"save: wrote {tmp_path}/other/topology.json (new folder {tmp_path / 'other'})" in capsys.readouterr().err
    assert main(["plan", "experiment=demo", "save=/dev/null"]) == 0
    assert "wrote" not in capsys.readouterr().err
