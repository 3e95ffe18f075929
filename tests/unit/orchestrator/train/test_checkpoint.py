"""The checkpoint format on disk."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from orchestrator.errors import UserError
from orchestrator.train import rng
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore
from orchestrator.train.run_files import append_json_line, keep_steps_until, read_json_lines


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(
        step=step,
        parameters={"a": torch.full((2, 3), float(step))},
        moments={"a@exp_avg": torch.ones(2, 3)},
        rng={"0.torch": torch.get_rng_state()},
        state={"samples": step * 16},
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


@pytest.mark.parametrize("damage", ["truncated", "missing", "state", "unfinished"])
def test_incomplete_ones_are_ignored_with_a_reason(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    store.write(checkpoint(1))
    broken = store.write(checkpoint(2))
    if damage == "truncated":
        (broken / "moments.safetensors").write_bytes(b"short")
    elif damage == "missing":
        (broken / "parameters.safetensors").unlink()
    elif damage == "state":
        (broken / "state.json").write_text('{"schema": 1, "st')
    else:
        broken.rename(tmp_path / "incomplete-step-00000002")
    whole, ignored = store.list_complete()
    assert [path.name for path in whole] == ["step-00000001"]
    assert len(ignored) == 1
    assert "step-00000002" in ignored[0]


def test_a_failed_write_keeps_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.write(checkpoint(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestrator.train.checkpoint.save_file", full)
    with pytest.raises(UserError, match="No space left") as caught:
        store.write(checkpoint(2))
    assert "step-00000001" in caught.value.problems[0].remedy
    assert [path.name for path in store.list_complete()[0]] == ["step-00000001"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


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
