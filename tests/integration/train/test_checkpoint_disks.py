"""Checkpoints on real file systems that are full or read only."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from orchestrator.config import CheckpointConfig
from orchestrator.errors import RunStopped
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore, WriteError
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import EventLog, append_json_line, read_json_lines
from orchestrator.train.saving import Saver

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MIB = 2**20
Mount = Callable[..., None]


def mounted(path: Path, options: str) -> bool:
    line = ["mount", "-t", "tmpfs", "-o", options, "none", str(path)]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB that nothing else is on."""
    path = tmp_path / "small"
    path.mkdir()
    if not mounted(path, "size=8m"):
        pytest.skip("needs the right to mount a small file system")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def read_only(path: Path, *, on: bool) -> None:
    subprocess.run(["mount", "-o", f"remount,{'ro' if on else 'rw'}", str(path)], check=True)


def checkpoint(step: int, mib: int = 3) -> Checkpoint:
    weights = torch.full((mib * MIB // 4,), float(step))
    return Checkpoint(step=step, parameters={"a": weights}, moments={}, rng={}, state={"samples": step})


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_full_disk_keeps_what_is_there(small: Path) -> None:
    store = CheckpointStore(small, keep=5)
    store.write(checkpoint(1, mib=5))
    with pytest.raises(WriteError, match="No space left on device") as caught:
        store.write(checkpoint(2, mib=5))
    assert caught.value.kind == "disk_full"
    assert caught.value.last_good == small / "step-00000001"
    assert names(small) == ["step-00000001"]
    assert store.newest_whole() == (small / "step-00000001", [])


def test_a_full_disk_gives_room_by_our_own_oldest(small: Path) -> None:
    store = CheckpointStore(small, keep=5)
    store.write(checkpoint(1))
    store.write(checkpoint(2))
    assert store.write(checkpoint(3)).removed == ("step-00000001",)
    assert names(small) == ["step-00000002", "step-00000003"]
    assert float(store.read(small / "step-00000003").parameters["a"][0]) == 3


def test_room_that_is_not_enough_is_not_made(small: Path) -> None:
    store = CheckpointStore(small, keep=5)
    store.write(checkpoint(1, mib=1))
    store.write(checkpoint(2))
    with pytest.raises(WriteError):
        store.write(checkpoint(3, mib=7))
    assert names(small) == ["step-00000001", "step-00000002"]


def test_a_read_only_disk_keeps_what_is_there(small: Path) -> None:
    store = CheckpointStore(small, keep=1)
    store.write(checkpoint(1))
    read_only(small, on=True)
    with pytest.raises(WriteError, match="Read-only file system") as caught:
        store.write(checkpoint(2))
    assert caught.value.kind == "disk_read_only"
    assert names(small) == ["step-00000001"]
    read_only(small, on=False)
    store.write(checkpoint(2))
    assert names(small) == ["step-00000002"]


def test_damaged_ones_on_a_read_only_disk_are_skipped_where_they_are(small: Path) -> None:
    store = CheckpointStore(small, keep=2)
    store.write(checkpoint(1, mib=1))
    (store.write(checkpoint(2, mib=1)).path / "moments.safetensors").unlink()
    read_only(small, on=True)
    newest, (skipped,) = store.newest_whole()
    assert newest == small / "step-00000001"
    assert skipped.kept_as == skipped.path
    assert "kept as" not in str(skipped)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_run_outlives_a_disk_that_takes_no_more_for_a_while(small: Path, recovers: bool) -> None:
    """Steps go on, lines are lost; the last checkpoint decides."""
    said: list[str] = []
    store = CheckpointStore(small / "checkpoints", keep=2)
    alone = MetricsGroup(cast("Any", SimpleNamespace(world_size=1)))
    events = EventLog(small, enabled=True)
    saver = Saver(CheckpointConfig(every=2), store, alone, events, is_main=True, say=said.append, beat=lambda: None)

    def steps(first: int, last: int) -> None:
        for step in range(first, last + 1):
            due, lost = saver.flags(step, 1.0)
            assert not lost
            append_json_line(small / "metrics.jsonl", {"step": step})
            if due or step == 8:
                saver.save(step, partial(checkpoint, step, mib=1), last=step == 8)
                saver._writer.wait()

    steps(1, 3)
    read_only(small, on=True)
    steps(4, 7)
    assert len([line for line in said if line.startswith("warning: could not write")]) == 2
    if not recovers:
        with pytest.raises(RunStopped, match="Read-only file system") as caught:
            steps(8, 8)
        assert "step-00000002" in str(caught.value)
        read_only(small, on=False)
        return
    read_only(small, on=False)
    steps(8, 8)
    assert names(small / "checkpoints") == ["step-00000002", "step-00000008"]
    assert [line["step"] for line in read_json_lines(small / "metrics.jsonl")] == [1, 2, 3, 8]
    assert [line["step"] for line in read_json_lines(small / "events.jsonl")] == [2, 8]
