"""A run that was killed, stopped or moved to another number of ranks goes on as if nothing had been."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def same_adapter(one: Path, other: Path) -> bool:
    left, right = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("victim", ["command", "rank"])
def test_killed_run_resumes_bitwise(
    runs: Any,
    ddp: str,
    demo: tuple[str, ...],
    wait_for: Callable[..., None],
    ranks_of: Callable[[Path], list[psutil.Process]],
    victim: str,
) -> None:
    name = f"killed_{victim}"
    folder = runs.root / name
    process = runs.start("train", *demo, "engine=ddp", "checkpoint.keep=9", f"run_dir={folder}")
    wait_for((folder / "checkpoints" / "step-00000002").is_dir, process=process)
    if victim == "command":
        process.kill()
        process.wait(10)
        wait_for(lambda: not ranks_of(folder), seconds=20)
    else:
        ranks_of(folder)[-1].kill()  # the last one started; the launcher is among them, too
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 4, said
        assert "rank 1 was ended by SIGKILL" in said
        assert runs.summary(name)["status"] == "failed"
    process.communicate()
    (folder / "checkpoints" / "incomplete-step-00000009").mkdir()
    resumed = runs.run("train", *demo, "engine=ddp", "checkpoint.keep=9", f"run_dir={folder}", "resume=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "ignoring incomplete checkpoint" in resumed.stdout
    assert "resuming at step" in resumed.stdout
    assert runs.losses(name) == runs.losses(ddp)
    assert same_adapter(folder, runs.root / ddp)
    assert runs.summary(name)["eval_loss_before"] == runs.summary(ddp)["eval_loss_before"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_number_of_ranks(runs: Any, ddp: str, ranks: int) -> None:
    folder = runs.copy_at(ddp, f"ranks_{ranks}", step=4)
    resumed = runs.run("train", f"resume={folder}", f"devices={ranks}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.summary(folder.name)["world_size"] == ranks
    # The same rows in the same order: only the order of additions differs.
    for step, loss in runs.losses(ddp).items():
        assert runs.losses(folder.name)[step] == pytest.approx(loss, rel=1e-5)


def test_other_engine(runs: Any, ddp: str) -> None:
    folder = runs.copy_at(ddp, "to_zero3", step=4)
    resumed = runs.run("train", f"resume={folder}", "engine=zero3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for step, loss in runs.losses(ddp).items():
        assert runs.losses("to_zero3")[step] == pytest.approx(loss, rel=1e-4)


def test_killed_after_the_last_checkpoint(runs: Any, ddp: str) -> None:
    folder = runs.copy_at(ddp, "no_adapter", step=6)
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert same_adapter(folder, runs.root / ddp)
    assert runs.summary("no_adapter")["eval_loss_after"] == runs.summary(ddp)["eval_loss_after"]


def test_more_steps_reopen_a_finished_run(runs: Any, ddp: str) -> None:
    folder = runs.root / "reopened"
    shutil.copytree(runs.root / ddp, folder)
    resumed = runs.run("train", f"resume={folder}", "batch.max_steps=8")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert max(runs.losses("reopened")) == 8
    again = runs.run("train", f"resume={folder}")
    assert again.returncode == 0
    assert "already finished" in again.stderr


def test_stop_saves_and_says_resumable(
    runs: Any, ddp: str, demo: tuple[str, ...], wait_for: Callable[..., None]
) -> None:
    folder = runs.root / "stopped"
    process = runs.start("train", *demo, "engine=ddp", "batch.max_steps=60", f"run_dir={folder}")
    wait_for((folder / "metrics.jsonl").is_file, process=process)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert f"trainmaster train resume={folder}" in said
    summary = runs.summary("stopped")
    assert summary["status"] == "stopped"
    assert (folder / "checkpoints" / f"step-{summary['steps']:08d}").is_dir()


def test_damaged_newest_checkpoint_falls_back(runs: Any, ddp: str) -> None:
    folder = runs.root / "damaged"
    shutil.copytree(runs.root / ddp, folder)
    (folder / "summary.json").unlink()
    newest = folder / "checkpoints" / "step-00000006" / "moments.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "ignoring incomplete checkpoint step-00000006" in resumed.stdout
    assert "resuming at step 4" in resumed.stdout
    assert same_adapter(folder, runs.root / ddp)


def test_other_data_is_refused(runs: Any, ddp: str, tmp_path: Path) -> None:
    folder = runs.copy_at(ddp, "other_data", step=4)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {n}", "completion": f"{n} {n}"}) + "\n" for n in range(40)))
    plan = (folder / "plan.json").read_text()
    refused = runs.run("train", f"resume={folder}", f"data={rows}")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert (folder / "plan.json").read_text() == plan, "a refused command leaves the run as it was"
    assert "resume (data)" in refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr


def mounts() -> bool:
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not mounts(), reason="needs the right to mount a small file system")
def test_full_disk_keeps_the_last_checkpoint(runs: Any, demo: tuple[str, ...], tmp_path: Path) -> None:
    # A file system that holds one checkpoint (3.6 MB) but not two, in a mount namespace of its own.
    script = (
        f"mount -t tmpfs -o size=6m none {tmp_path} && "
        + " ".join(runs.command("train", *demo, "engine=ddp", f"run_dir={tmp_path}/run"))
        + f"; code=$?; ls {tmp_path}/run/checkpoints; exit $code"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], cwd=runs.root, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "could not write the checkpoint" in done.stderr
    assert "MiB free" in done.stderr
    assert "last good checkpoint is kept" in done.stderr
    assert "step-00000002" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
