"""What happens around the steps: time, metrics, evaluation, checkpoints, an agreed stop."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from orchestrator.config import FaultPhase
from orchestrator.faults.inject import Injector
from orchestrator.monitor.beat import Heart
from orchestrator.train.finite import FiniteCheck
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import EventLog, append_json_line
from orchestrator.train.saving import Saver
from orchestrator.train.settings import TrainSettings
from orchestrator.train.trainer import PlannedTrainer, TokenMeter

_WARM_UP_STEPS = 2  # the first steps pay for allocation, tracing and thread start
STOP_FILE = "stop"


class StopFlag:
    """Whether this rank was asked to stop: by a signal, or by a file in the run directory."""

    def __init__(self, run_dir: Path) -> None:
        """Remember SIGTERM instead of dying from it."""
        self._path = run_dir / STOP_FILE
        self._signalled = False
        signal.signal(signal.SIGTERM, self._remember)

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True

    def obeyed(self) -> None:
        """Take the file away, so that the run can be continued."""
        self._path.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """Return whether this rank has seen a request."""
        return self._signalled or self._path.exists()


class StepClock:
    """Seconds of each step, without the pauses for evaluation and saving."""

    def __init__(self) -> None:
        """Start with no step."""
        self.seconds: list[float] = []
        self.tokens: list[float] = []
        self._began = time.perf_counter()

    def restart(self) -> None:
        """Leave a pause out of the step that follows."""
        self._began = time.perf_counter()

    def stop(self) -> float:
        """End a step; the next one begins."""
        now = time.perf_counter()
        self.seconds.append(now - self._began)
        self._began = now
        return self.seconds[-1]

    def typical_seconds(self) -> float:
        """Return the median after warm-up."""
        steady = self.seconds[_WARM_UP_STEPS:] or self.seconds
        return statistics.median(steady) if steady else math.nan

    def tokens_per_second(self) -> float:
        """Return the tokens of all ranks over the seconds of the steady steps."""
        steady = slice(_WARM_UP_STEPS if len(self.seconds) > _WARM_UP_STEPS else 0, None)
        seconds = sum(self.seconds[steady])
        return sum(self.tokens[steady]) / seconds if seconds else math.nan


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Drives everything of ours at the boundaries of the steps of transformers' loop."""

    def __init__(  # noqa: PLR0913 - one for each thing that is made before
        self,
        *,
        settings: TrainSettings,
        group: MetricsGroup,
        events: EventLog,
        saver: Saver,
        heart: Heart,
        faults: Injector,
        num_steps: int,
        num_rows: int,
        eval_every: int,
    ) -> None:
        """Take the schedule; the trainer and the hooks are attached when they exist."""
        self.settings = settings
        self.group = group
        self.events = events
        self.saver = saver
        self.heart = heart
        self.faults = faults
        self._micro = 0
        self.num_steps = num_steps
        self.num_rows = num_rows
        self.eval_every = eval_every
        self.clock = StepClock()
        self.stop = StopFlag(settings.run_dir)
        self.stopped = False
        self.losses: dict[int, float] = {}
        self._accuracy = math.nan
        self.trainer: PlannedTrainer | None = None
        self.finite = FiniteCheck(settings)
        self.on_start: Callable[[], None] = lambda: None
        self.on_first_step: Callable[[], None] = lambda: None
        self.on_step: Callable[[float], dict[str, float]] = lambda _: {}
        self.on_clock: Callable[[float], None] = lambda _: None
        self.on_logged: Callable[[int, float, dict[str, float]], None] = lambda *_: None
        self.on_gradients: Callable[[], None] = lambda: None
        self.on_decide: Callable[[int, float], bool] = lambda *_: False
        self._own_tokens = 0.0
        self._besides: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Resume or evaluate first, then start the clock."""
        self.on_start()
        self.clock.restart()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Let a fault come that was asked for."""
        self.faults.reached(FaultPhase.training, state.global_step + 1)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Beat within a step, which may take minutes."""
        self._micro += 1
        self.heart.beat(micro=self._micro)
        self.faults.reached(FaultPhase.training, state.global_step + 1, self._micro)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Look at the gradients of the whole step."""
        self.on_gradients()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Measure, agree on a stop, and say what the loop must do next."""
        seconds = self.clock.stop()
        self.on_clock(seconds)
        step = state.global_step
        self._micro = 0
        self.heart.beat("training", step=step)
        self.faults.reached(FaultPhase.training, step)
        if len(self.clock.seconds) == 1:
            self.on_first_step()
        self._besides = self.on_step(seconds)
        wishes = [float(self.stop.is_set()), *self.saver.flags(step, seconds)]
        asked, due, lost, tokens, label_tokens, correct = self.group.sum([*wishes, *self._meter()])
        self.clock.tokens.append(tokens)
        self._accuracy = correct / max(label_tokens, 1.0)
        last = step >= self.num_steps
        if asked > 0 and not last:
            self.stopped = True
            control.should_training_stop = True
            control.should_save = True
            self.events.add("stop_agreed", step=step)
        if lost > 0 and not last:
            self.saver.end_if_lost(True)  # noqa: FBT003
        if last or due > 0:
            control.should_save = True
        if not last and self.eval_every and step % self.eval_every == 0:
            control.should_evaluate = True

    def _meter(self) -> list[float]:
        if self.trainer is None:
            return [0.0, 0.0, 0.0]
        meter, self.trainer.meter = self.trainer.meter, TokenMeter()
        self._own_tokens = float(meter.tokens)
        return [self._own_tokens, float(meter.label_tokens), float(meter.correct)]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Write the step to `metrics.jsonl` and say it on the console (rank 0).

        Raises:
            NotFinite: on all ranks, before a checkpoint could keep what is no number.
        """
        if logs is None or "loss" not in logs:
            return
        self.on_logged(state.global_step, self._own_tokens, logs)
        self.finite.check(state.global_step, logs["loss"], logs.get("grad_norm"))
        if self.on_decide(state.global_step, logs["loss"]):
            control.should_training_stop = True  # only this call of the loop: see `resizing`
        if not self.settings.is_main:
            return
        step, seconds = state.global_step, self.clock.seconds[-1]
        record = {
            "time": time.time(),
            "step": step,
            "loss": logs["loss"],
            "grad_norm": logs.get("grad_norm"),
            "learning_rate": logs.get("learning_rate"),
            "token_accuracy": self._accuracy,
            "samples": step * self.settings.global_batch,
            "epoch": step * self.settings.global_batch / max(self.num_rows, 1),
            "step_seconds": seconds,
            "tokens_per_second": self.clock.tokens[-1] / seconds,
            "world_size": self.settings.world_size,
            **self._besides,
        }
        self.losses[step] = logs["loss"]
        append_json_line(self.settings.run_dir / "metrics.jsonl", record)
        self._say(record)

    def _say(self, record: dict[str, Any]) -> None:
        step = record["step"]
        left_seconds = (self.num_steps - step) * self.clock.typical_seconds()
        rate = record["learning_rate"] or 0.0
        print(
            f"step {step:>{len(str(self.num_steps))}}/{self.num_steps}"
            f"  loss {record['loss']:.4f}  lr {rate:.2e}"
            f"  {record['tokens_per_second']:,.0f} tokens/s  {record['step_seconds']:.2f} s/step"
            f"  {clock(left_seconds)} left",
            flush=True,
        )


def clock(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are any."""
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
