"""A run that was killed, stopped or moved to another number of ranks goes on as if nothing had been."""

import json
import os
import shutil
import signal
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


def test_killed_command_resumes_bitwise(
    runs: Any,
    ddp: str,
    demo: tuple[str, ...],
    wait_for: Callable[..., None],
    ranks_of: Callable[[Path], list[psutil.Process]],
) -> None:
    folder = runs.root / "killed_command"
    process = runs.start("train", *demo, "engine=ddp", "checkpoint.keep=9", f"run_dir={folder}")
    wait_for((folder / "checkpoints" / "step-00000002").is_dir, process=process)
    process.kill()
    process.wait(10)
    # Told to stop by the kernel, they do so at a step, with a checkpoint.
    wait_for(lambda: not ranks_of(folder), seconds=90)
    process.communicate()
    (folder / "checkpoints" / "incomplete-step-00000009").mkdir()
    resumed = runs.run("train", *demo, "engine=ddp", "checkpoint.keep=9", f"run_dir={folder}", "resume=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "ignoring incomplete checkpoint" in resumed.stdout
    assert "resuming at step" in resumed.stdout
    assert runs.losses(folder.name) == runs.losses(ddp)
    assert same_adapter(folder, runs.root / ddp)
    assert runs.summary(folder.name)["eval_loss_before"] == runs.summary(ddp)["eval_loss_before"]


def test_killed_rank_goes_on_by_itself_and_ends_with_the_same_bits(
    runs: Any,
    ddp: str,
    demo: tuple[str, ...],
    wait_for: Callable[..., None],
    ranks_of: Callable[[Path], list[psutil.Process]],
) -> None:
    folder = runs.root / "killed_rank"
    process = runs.start("train", *demo, "engine=ddp", "checkpoint.keep=9", f"run_dir={folder}")
    wait_for((folder / "checkpoints" / "step-00000002").is_dir, process=process)
    ranks_of(folder)[-1].kill()  # the last one started; the launcher is among them, too
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "rank 1 was ended by SIGKILL" in said
    assert "starting again" in said
    assert said.count("preparing the rows") == 1
    assert runs.losses(folder.name) == runs.losses(ddp)
    assert same_adapter(folder, runs.root / ddp)
    assert runs.summary(folder.name)["eval_loss_before"] == runs.summary(ddp)["eval_loss_before"]
    assert len(list(folder.glob("plan.[0-9]*.json"))) == 2


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_other_number_of_ranks(runs: Any, ddp: str, ranks: int) -> None:
    folder = runs.copy_at(ddp, f"ranks_{ranks}", step=4)
    resumed = runs.run("train", f"resume={folder}", f"devices={ranks}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.summary(folder.name)["world_size"] == ranks
    # The same rows in the same order: only the order of additions differs.
    for step, loss in runs.losses(ddp).items():
        assert runs.losses(folder.name)[step] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_other_engine(runs: Any, ddp: str) -> None:
    folder = runs.copy_at(ddp, "to_zero3", step=4)
    resumed = runs.run("train", f"resume={folder}", "engine=zero3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for step, loss in runs.losses(ddp).items():
        assert runs.losses("to_zero3")[step] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_killed_after_the_last_checkpoint(runs: Any, ddp: str) -> None:
    folder = runs.copy_at(ddp, "no_adapter", step=6)
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert same_adapter(folder, runs.root / ddp)
    assert runs.summary("no_adapter")["eval_loss_after"] == runs.summary(ddp)["eval_loss_after"]


@pytest.mark.slow
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
    assert "skipping damaged checkpoint step-00000006: moments.safetensors has 1000 bytes" in resumed.stdout
    assert "resuming at step 4" in resumed.stdout
    assert same_adapter(folder, runs.root / ddp)


@pytest.mark.slow
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
