"""When a run saves, what becomes of a save that fails or is slow, and that a snapshot stays as it was."""

import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from orchestrator.config import CheckpointConfig
from orchestrator.engines.ddp import DdpEngine
from orchestrator.errors import RunStopped
from orchestrator.recovery.event import FAULT_PREFIX
from orchestrator.train import state
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore, WriteError, Written
from orchestrator.train.compression import Compression
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import EventLog, read_json_lines
from orchestrator.train.saving import Saver
from orchestrator.train.sparse_moments import SparseMoments

ALONE = MetricsGroup(cast("Any", SimpleNamespace(world_size=1)))


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step=step, parameters={"a": torch.full((2,), float(step))}, moments={}, rng={}, state={})


class Disk(CheckpointStore):
    """A store whose disk can be made slow or full."""

    def __init__(self, root: Path, keep: int = 9) -> None:
        super().__init__(root, keep)
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_full = False

    def write(self, checkpoint: Checkpoint) -> Written:
        assert self.goes_on.wait(20)
        if self.is_full:
            raise WriteError(Path("x"), "disk_full", "No space left on device", self.last_good())
        return super().write(checkpoint)


class Loop:
    """Calls a saver as the steps of a run do."""

    def __init__(self, root: Path, config: CheckpointConfig, last: int = 10**9) -> None:
        self.root, self.last = root, last
        self.disk = Disk(root / "checkpoints")
        self.said: list[str] = []
        events = EventLog(root, enabled=True)
        self.saver = Saver(config, self.disk, ALONE, events, is_main=True, say=self.said.append, beat=lambda: None)
        self.step = 0

    def steps(self, count: int, seconds: float = 1.0, *, settle: bool = True) -> None:
        """Run steps; with `settle`, what is written is on the disk before the next step ends."""
        for _ in range(count):
            self.step += 1
            due, lost = self.saver.flags(self.step, seconds)
            if lost:
                self.saver.end_if_lost(True)
            if due or self.step == self.last:
                self.saver.save(self.step, lambda: checkpoint(self.step), last=self.step == self.last)
            if settle:
                self.saver._writer.wait()

    def saved(self) -> list[int]:
        return [int(path.name.removeprefix("step-")) for path in self.disk.list_complete()[0]]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [record for record in read_json_lines(self.root / "events.jsonl") if record["event"] == name]


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.train.saving._GRACE_SECONDS", 0.0)


def test_every_so_many_steps_and_the_last(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=3), last=8)
    loop.steps(8)
    assert loop.saved() == [3, 6, 8]
    events = loop.events("checkpoint")
    assert [event["step"] for event in events] == [3, 6, 8]
    for event in events:
        assert event["path"].endswith(f"step-{event['step']:08d}")
        assert event["bytes"] == sum(file.stat().st_size for file in Path(event["path"]).iterdir())
        assert event["seconds_blocking"] >= 0
        assert event["seconds_writing"] > 0


def test_none_but_the_last(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=0), last=5)
    loop.steps(5)
    assert loop.saved() == [5]


def test_a_slow_disk_puts_off_what_is_due(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2))
    loop.disk.goes_on.clear()
    loop.steps(7, settle=False)
    assert loop.saved() == []
    loop.disk.goes_on.set()
    loop.saver._writer.wait()
    loop.steps(2)
    assert loop.saved() == [2, 8]
    (slow,) = loop.events("checkpoint_slow")
    assert (slow["step"], slow["put_off"]) == (2, 4)
    assert len([line for line in loop.said if "is put off" in line]) == 1


def test_the_last_one_waits_for_the_one_before(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2), last=3)
    loop.disk.goes_on.clear()
    loop.steps(2, settle=False)
    threading.Timer(0.05, loop.disk.goes_on.set).start()
    loop.steps(1)
    assert loop.saved() == [2, 3]


def test_a_failure_costs_a_line_and_the_next_one_is_tried(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2))
    loop.steps(2)
    loop.disk.is_full = True
    loop.steps(3)
    loop.disk.is_full = False
    loop.steps(2)
    assert loop.saved() == [2, 6]
    (failed,) = loop.events("checkpoint_failed")
    assert (failed["step"], failed["kind"], failed["in_a_row"]) == (4, "disk_full", 1)
    assert failed["reason"] == "No space left on device"
    assert failed["last_good"].endswith("step-00000002")
    (line,) = [line for line in loop.said if line.startswith("warning: ")]
    assert "training goes on" in line
    assert "step-00000002" in line


def test_the_last_one_must_not_fail(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2), last=5)
    loop.steps(4)
    loop.disk.is_full = True
    with pytest.raises(RunStopped, match="No space left") as caught:
        loop.steps(1)
    assert "step-00000004" in caught.value.problems[0].remedy
    (fault,) = [json.loads(line.removeprefix(FAULT_PREFIX)) for line in loop.said if line.startswith(FAULT_PREFIX)]
    assert (fault["kind"], fault["what"], fault["phase"], fault["step"]) == ("disk", "disk_full", "saving", 5)


def test_work_at_risk_ends_the_run_after_three_failures(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2, max_lost_minutes=1))
    loop.steps(2, 10.0)
    loop.disk.is_full = True
    loop.steps(6, 10.0)  # 60 s since the good one, and two failures are known
    with pytest.raises(RunStopped):
        loop.steps(1, 10.0)
    assert len(loop.events("checkpoint_failed")) == 3
    patient = Loop(tmp_path / "patient", CheckpointConfig(every=2, max_lost_minutes=30))
    (tmp_path / "patient").mkdir()
    patient.disk.is_full = True
    patient.steps(100, 10.0)


def test_auto_measures_at_the_second_step_and_then_follows(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=None, max_lost_minutes=10))
    loop.steps(2, 1.0)
    assert loop.saved() == [2]
    loop.saver._blocking_seconds = 0.5  # sqrt(2 * 0.5 s * 8000 h) are 89 minutes: more than may be lost
    loop.steps(597, 1.0)
    assert loop.saved() == [2]
    (cadence,) = loop.events("cadence")
    assert cadence["steps"] in {598, 599}
    loop.steps(3, 1.0)
    assert len(loop.saved()) == 2


def test_auto_tries_again_within_a_minute_when_the_first_fails(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=None))
    loop.disk.is_full = True
    loop.steps(5, 10.0)
    loop.disk.is_full = False
    loop.steps(5, 10.0)
    assert loop.saved() == [8]


def test_another_error_of_the_thread_reaches_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2))

    def broken(_: Checkpoint) -> Written:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.disk, "write", broken)
    with pytest.raises(KeyboardInterrupt):
        loop.steps(3)


def test_close_lets_a_write_come_to_its_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=2))
    loop.disk.goes_on.clear()
    loop.steps(2, settle=False)
    threading.Timer(0.05, loop.disk.goes_on.set).start()
    loop.saver.close()
    assert loop.saved() == [2]
    assert [event["step"] for event in loop.events("checkpoint")] == [2]


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()


def test_later_steps_do_not_change_what_is_written(tmp_path: Path) -> None:
    """A real optimizer goes on while the disk holds the snapshot back."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    sparse = SparseMoments(optimizer, dict(model.named_parameters()), lambda: False)
    trained(model, optimizer)
    trainer: Any = SimpleNamespace(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        accelerator=SimpleNamespace(scaler=torch.amp.GradScaler("cpu")),
        state=SimpleNamespace(global_step=2),
        settings=SimpleNamespace(global_batch=4, world_size=1),
    )
    loop = Loop(tmp_path, CheckpointConfig(every=2))
    loop.disk.goes_on.clear()
    found: list[Checkpoint] = []

    def capture() -> Checkpoint:
        found.append(state.capture(trainer, DdpEngine(), ALONE, {}, Compression(None)))
        return found[0]

    since = sparse.state()
    since_then = {name: value.clone() for name, value in since.items()}
    loop.saver.save(2, capture, last=False)
    expected = {name: value.detach().clone() for name, value in model.named_parameters()}
    moments = {
        name: value["exp_avg_sq"].clone() for name, value in zip(expected, optimizer.state.values(), strict=True)
    }
    generator = torch.get_rng_state()
    trained(model, optimizer)
    trainer.state.global_step = 5
    loop.disk.goes_on.set()
    loop.saver._writer.wait()
    read = loop.disk.read(loop.disk.list_complete()[0][0])
    assert read.step == 2
    assert since
    for name, value in expected.items():
        assert torch.equal(read.parameters[name], value)
        assert not torch.equal(read.parameters[name], dict(model.named_parameters())[name])
        assert torch.equal(read.moments[f"{name}@exp_avg_sq"], moments[name])
        assert float(read.moments[f"{name}@step"]) == 3
        assert torch.equal(since[name], since_then[name])
        assert since[name].data_ptr() != sparse._since[dict(model.named_parameters())[name]].data_ptr()
    assert torch.equal(read.rng["0.torch"], generator)


def test_no_step_time_is_known_at_first(tmp_path: Path) -> None:
    loop = Loop(tmp_path, CheckpointConfig(every=None), last=1)
    loop.steps(1, math.inf)
    assert loop.saved() == [1]
