"""Checkpoints of real runs: damaged ones are passed over, and any engine goes on at any number of ranks."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == name]


def test_each_checkpoint_is_told_with_its_cost(runs: Any, ddp: str) -> None:
    told = events(runs.root / ddp, "checkpoint")
    assert [event["step"] for event in told] == [2, 4, 6]
    for event in told:
        files = list(Path(event["path"]).iterdir())
        assert event["bytes"] == sum(file.stat().st_size for file in files)
        assert 0 < event["seconds_blocking"] < 30
        assert 0 < event["seconds_writing"] < 30
    state = json.loads((Path(told[0]["path"]) / "state.json").read_text())
    assert {name for name, held in state["files"].items() if held["xxh3_128"]} == {
        "parameters.safetensors",
        "moments.safetensors",
        "rng.safetensors",
    }


def test_a_truncated_and_a_flipped_one_are_passed_over(runs: Any, ddp: str) -> None:
    folder = runs.root / "two_damaged"
    shutil.copytree(runs.root / ddp, folder)
    (folder / "summary.json").unlink()
    checkpoints = folder / "checkpoints"
    os.truncate(checkpoints / "step-00000006" / "parameters.safetensors", 1000)
    flipped = checkpoints / "step-00000004" / "moments.safetensors"
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    said = resumed.stdout.splitlines()
    for name, why in (("step-00000006", "has 1000 bytes"), ("step-00000004", "does not match its checksum")):
        (line,) = [line for line in said if line.startswith(f"skipping damaged checkpoint {name}: ")]
        assert why in line
        assert line.endswith(f"(kept as damaged-{name})")
        assert (checkpoints / f"damaged-{name}").is_dir()
    assert "resuming at step 2 of 6" in resumed.stdout
    assert runs.losses(folder.name) == runs.losses(ddp)
    skipped = {Path(event["path"]).name for event in events(folder, "checkpoint_skipped")}
    assert skipped == {"step-00000006", "step-00000004"}


@pytest.mark.slow
def test_all_damaged_means_from_the_start(runs: Any, ddp: str) -> None:
    folder = runs.copy_at(ddp, "all_damaged", step=6)
    (folder / "checkpoints" / "step-00000006" / "state.json").write_text("no JSON")
    resumed = runs.run("train", f"resume={folder}", "eval.before=false")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "no whole checkpoint: starting at step 0" in resumed.stdout
    assert runs.losses(folder.name) == runs.losses(ddp)


@pytest.mark.slow
def test_from_engine_to_engine_and_from_two_ranks_to_one_to_three(
    runs: Any, ddp: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The legs: ddp on 2 ranks to step 2, streamed on 1 to step 4, zero3 on 3 to step 6; then back to ddp on 2."""
    cache = str(tmp_path_factory.mktemp("cache"))
    folder = runs.copy_at(ddp, "leg_streamed", step=2)
    resumed = runs.run("train", f"resume={folder}", "engine=streamed", "devices=1", XDG_CACHE_HOME=cache)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    summary = runs.summary(folder.name)
    assert (summary["engine"], summary["world_size"]) == ("streamed", 1)

    folder = runs.copy_at(folder.name, "leg_zero3", step=4)
    resumed = runs.run("train", f"resume={folder}", "engine=zero3", "devices=3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    summary = runs.summary(folder.name)
    assert (summary["engine"], summary["world_size"]) == ("zero3", 3)
    for step, loss in runs.losses(ddp).items():
        assert runs.losses(folder.name)[step] == pytest.approx(loss, rel=1e-4), step

    folder = runs.copy_at(folder.name, "leg_ddp", step=6)
    resumed = runs.run("train", f"resume={folder}", "engine=ddp", "devices=2")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.summary("leg_ddp")["eval_loss_after"] == pytest.approx(runs.summary(ddp)["eval_loss_after"], rel=1e-4)


@pytest.mark.slow
def test_unsent_gradients_are_dropped_with_a_word_where_none_are_sent(runs: Any) -> None:
    """Residuals of two ranks, and a run that goes on with one."""
    runs.train("sparse_ddp", "engine=ddp", "compress=topk", "compress.refresh=0.9", "checkpoint.keep=9")
    folder = runs.copy_at("sparse_ddp", "sparse_one", step=4)
    resumed = runs.run("train", f"resume={folder}", "devices=1", "compress=none")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert any("what had not been sent is dropped" in str(event) for event in events(folder, "compression"))
    assert runs.losses(folder.name).keys() == runs.losses("sparse_ddp").keys()


def mounts() -> bool:
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and done.returncode == 0


def on_small_disk(runs: Any, root: Path, size: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a file system of this size, in a mount namespace of its own, and list what it left."""
    line = " ".join(runs.command("train", *arguments, f"run_dir={root}/run"))
    script = f"mount -t tmpfs -o size={size} none {root} && {line}; code=$?; ls {root}/run/checkpoints; "
    script += f"cat {root}/run/events.jsonl; exit $code"
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script], cwd=runs.root, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.skipif(not mounts(), reason="needs the right to mount a small file system")
def test_a_disk_that_is_full_at_the_end_keeps_the_last_and_says_resumable(
    runs: Any, demo: tuple[str, ...], tmp_path: Path
) -> None:
    # It holds one checkpoint (3.6 MB) but not two: step 4 costs a warning, step 6 is the last one.
    done = on_small_disk(runs, tmp_path, "6m", *demo, "engine=ddp")
    assert done.returncode == 75, done.stdout + done.stderr
    assert done.stdout.count("training goes on") == 1
    assert "could not write the checkpoint: " in done.stderr
    assert "No space left on device" in done.stderr
    assert "MiB free" in done.stderr
    assert "last good checkpoint is kept" in done.stderr
    assert "step-00000002" in done.stdout
    assert '"event": "checkpoint_failed"' in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not mounts(), reason="needs the right to mount a small file system")
def test_a_disk_that_is_nearly_full_keeps_fewer(runs: Any, demo: tuple[str, ...], tmp_path: Path) -> None:
    done = on_small_disk(runs, tmp_path, "10500k", *demo, "engine=ddp", "checkpoint.keep=9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"removed": ["step-00000002"' in done.stdout
    assert '"event": "checkpoint_failed"' not in done.stdout
