"""The checkpoint format on disk."""

import contextlib
import json
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ExitCode
from orchestrator.train import rng
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore, WriteError
from orchestrator.train.run_files import append_json_line, keep_steps_until, read_json_lines


def checkpoint(step: int, *, residuals: bool = False) -> Checkpoint:
    return Checkpoint(
        step=step,
        parameters={"a": torch.full((2, 3), float(step)), "nan": torch.tensor(float("nan"))},
        moments={"a@exp_avg": torch.ones(2, 3), "a@step": torch.tensor(3)},
        rng={"0.torch": torch.arange(64, dtype=torch.uint8)},
        state={"samples": step * 16},
        residuals={"0.a": torch.ones(3)} if residuals else {},
    )


def test_round_trip_and_rotation(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (5, 10, 100):
        store.write(checkpoint(step))
    whole, ignored = store.list_complete()
    assert [path.name for path in whole] == ["step-00000010", "step-00000100"]
    assert not ignored
    read = store.read(whole[-1])
    assert read.step == 100
    assert torch.equal(read.parameters["a"], torch.full((2, 3), 100.0))
    assert read.state["samples"] == 1600


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: os.truncate(path / "moments.safetensors", 9), "moments.safetensors has 9 bytes"),
    "missing": (lambda path: (path / "parameters.safetensors").unlink(), "parameters.safetensors is missing"),
    "no state": (lambda path: (path / "state.json").unlink(), "state.json is missing"),
    "half a state": (lambda path: os.truncate(path / "state.json", 30), "state.json makes no sense"),
    "foreign": (lambda path: (path / "state.json").write_text("[1, 2]"), "state.json makes no sense"),
    "foreign object": (lambda path: (path / "state.json").write_text('{"schema": 2}'), "makes no sense: KeyError"),
    "other schema": (lambda path: edit(path, schema=9), "its schema 9 is not the known 2"),
    "other step": (lambda path: edit(path, step=3), "state.json does not match its checksum"),
    "a bit": (lambda path: flip_bit(path / "moments.safetensors", -1), "moments.safetensors does not match"),
    "a folder": (lambda path: to_folder(path / "rng.safetensors"), "rng.safetensors"),
}


def edit(path: Path, **changes: object) -> None:
    state = path / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), **changes}))


def flip_bit(path: Path, index: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1 << bit
    path.write_bytes(data)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_ones_are_skipped_with_a_reason_and_kept(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    first = store.write(checkpoint(1)).path
    broken = store.write(checkpoint(2)).path
    act, why = DAMAGE[damage]
    act(broken)
    newest, skipped = store.newest_whole()
    assert newest == first
    assert [why in str(item) for item in skipped] == [True], skipped
    assert str(skipped[0]).startswith("skipping damaged checkpoint step-00000002: ")
    assert str(skipped[0]).endswith("(kept as damaged-step-00000002)")
    assert not broken.exists()
    assert (tmp_path / "damaged-step-00000002").is_dir()
    assert store.newest_whole() == (first, [])


def test_an_unfinished_one_is_ignored(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    first = store.write(checkpoint(1)).path
    store.write(checkpoint(2)).path.rename(tmp_path / "incomplete-step-00000002")
    newest, skipped = store.newest_whole()
    assert newest == first
    assert [str(item) for item in skipped] == [
        "ignoring incomplete checkpoint incomplete-step-00000002: it was being written when the run ended"
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bit_of_any_file_counts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A flip in `state.json` may leave its meaning as it was: the case of a letter in an escape."""
    root = tmp_path_factory.mktemp("bits")
    store = CheckpointStore(root, keep=2)
    whole = store.write(checkpoint(7, residuals=True)).path
    before = store.read(whole)
    name = data.draw(st.sampled_from(sorted(path.name for path in whole.iterdir())))
    size = (whole / name).stat().st_size
    flip_bit(whole / name, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
    newest, skipped = store.newest_whole()
    if newest is None:
        assert len(skipped) == 1
    else:
        assert name == "state.json"
        after = store.read(newest)
        assert (after.step, after.state) == (before.step, before.state)
    shutil.rmtree(root)


def test_several_damaged_ones_fall_back_to_the_third(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    paths = [store.write(checkpoint(step)).path for step in (1, 2, 3)]
    flip_bit(paths[1] / "parameters.safetensors", -2)
    os.truncate(paths[2] / "parameters.safetensors", 100)
    newest, skipped = store.newest_whole()
    assert newest == paths[0]
    assert sorted(item.path.name for item in skipped) == ["step-00000002", "step-00000003"]
    assert store.read(paths[0]).step == 1


def test_damaged_ones_are_bounded_and_their_end_is_told(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    whole = store.write(checkpoint(5)).path
    for count in range(1, 5):
        broken = tmp_path / f"step-{count:08d}"
        shutil.copytree(whole, broken)
        (broken / "state.json").write_text("")
        newest, (skipped,) = store.newest_whole()
        assert newest == whole
        os.utime(skipped.kept_as, (count, count))
    assert len(list(tmp_path.glob("damaged-*"))) == 4, "reading removes nothing"
    removed = store.write(checkpoint(6)).removed
    assert sorted(removed) == ["damaged-step-00000001", "damaged-step-00000002", "step-00000005"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["damaged-step-00000003", "damaged-step-00000004", "step-00000006"]


def test_the_schema_without_checksums_can_still_be_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = store.write(checkpoint(4, residuals=True)).path
    sizes = {file.name: file.stat().st_size for file in path.glob("*.safetensors")}
    body = {"schema": 1, "step": 4, "sizes": sizes, "state": {"samples": 64}}
    (path / "state.json").write_text(json.dumps(body))
    assert store.newest_whole() == (path, [])
    read = store.read(path)
    assert (read.step, read.state) == (4, {"samples": 64})
    assert torch.equal(read.residuals["0.a"], torch.ones(3))
    os.truncate(path / "rng.safetensors", 20)
    assert store.newest_whole()[0] is None


def test_what_the_system_refuses_to_read_stays_where_it_is(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = store.write(checkpoint(4)).path
    to_folder(path / "rng.safetensors")
    (path / "rng.safetensors").rmdir()
    (path / "rng.safetensors").symlink_to("rng.safetensors")  # too many levels of symbolic links
    newest, (skipped,) = store.newest_whole()
    assert newest is None
    assert skipped.kept_as == path
    assert path.is_dir()
    assert "cannot be read" in str(skipped)


class Crash(BaseException):
    """The power goes; nothing after it happens."""


CALLS = [(os, "fsync"), (Path, "rename"), (Path, "mkdir"), (shutil, "rmtree"), (os, "unlink"), (os, "rmdir")]


@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step"])
@pytest.mark.parametrize("keep", [1, 2])
def test_a_crash_at_any_moment_leaves_as_many_good_ones(tmp_path: Path, keep: int, again: bool) -> None:
    """Crash before each call that changes the disk in turn, until one write gets through."""
    for moment in range(200):
        root = tmp_path / str(moment)
        store = CheckpointStore(root, keep=keep)
        for step in range(1, keep + 1):
            store.write(checkpoint(step))
        crashed = write_and_crash(store, checkpoint(keep if again else keep + 1), moment)
        fresh = CheckpointStore(root, keep=keep)
        good, skipped = fresh.list_complete()
        assert len(good) >= keep
        assert all(item.path.name.startswith("incomplete-") for item in skipped), skipped
        newest, _ = fresh.newest_whole()
        assert newest is not None
        assert fresh.read(newest).step in {keep, keep + 1}
        fresh.write(checkpoint(keep + 2))
        names = sorted(path.name for path in root.iterdir())
        assert names[-1] == f"step-{keep + 2:08d}"
        assert len(names) == keep, "what a crash left is cleaned up"
        if not crashed:
            assert moment > 10
            return
    raise AssertionError("no write got through")


def write_and_crash(store: CheckpointStore, state: Checkpoint, moment: int) -> bool:
    left = moment
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CALLS:
            plain = getattr(owner, name)

            def call(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Crash
                left -= 1
                return _plain(*args, **kwargs)

            patch.setattr(owner, name, call)
        try:
            store.write(state)
        except Crash:
            return True
    return False


@contextlib.contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond; a write that would ends with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_write_keeps_the_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.write(checkpoint(1))
    with largest_file(200), pytest.raises(WriteError, match="File too large") as caught:
        store.write(checkpoint(2))
    assert caught.value.kind == "disk_full"
    assert caught.value.exit_code is ExitCode.RESUMABLE
    assert "step-00000001" in caught.value.problems[0].remedy
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_what_cannot_be_written_as_json_is_told_as_a_failed_write(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    with pytest.raises(WriteError, match="not JSON serializable") as caught:
        store.write(replace(checkpoint(1), state={"odd": {1, 2}}))
    assert caught.value.kind == "disk_failed"
    assert "No checkpoint yet" in str(caught.value)


def test_a_disk_that_gives_back_something_else_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=1)

    def damage(path: Path) -> None:
        if path.name == "moments.safetensors":
            flip_bit(path, -3)

    monkeypatch.setattr("orchestrator.train.checkpoint_files.sync", damage)
    with pytest.raises(WriteError, match="read back with another a@exp_avg"):
        store.write(checkpoint(1))
    assert not list(tmp_path.iterdir())


def test_generators_continue() -> None:
    rng.seed_rank(3, 1)
    states = rng.capture()
    drawn = (random.random(), np.random.rand(), torch.rand(2))
    random.random(), np.random.randn(), torch.rand(9)
    rng.restore(states)
    again = (random.random(), np.random.rand(), torch.rand(2))
    assert drawn[:2] == again[:2]
    assert torch.equal(drawn[2], again[2])


def test_metrics_are_json_even_when_a_loss_is_not_a_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_json_line(path, {"step": 1, "loss": float("nan"), "grad_norm": float("inf")})
    assert path.read_text() == '{"step": 1, "loss": null, "grad_norm": null}\n'


def test_metrics_after_a_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in range(5):
        append_json_line(path, {"step": step})
    with path.open("a") as stream:
        stream.write('{"step": 5, "lo')  # killed in the middle of a line
    keep_steps_until(path, 2)
    assert [record["step"] for record in read_json_lines(path)] == [0, 1, 2]
