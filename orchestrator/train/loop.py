"""One rank from plan to summary: load, resume or evaluate, train, evaluate, export."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transformers

from orchestrator.config import FaultPhase, RunConfig
from orchestrator.dataset.cache import Cached
from orchestrator.engines.live import Named, base_bytes
from orchestrator.engines.streamed import StreamedEngine
from orchestrator.errors import Problem, UserError
from orchestrator.faults.inject import Injector
from orchestrator.monitor.beat import Heart
from orchestrator.planner.plan import Plan
from orchestrator.train import rng, state
from orchestrator.train.adalora import allocators
from orchestrator.train.answers import Answers
from orchestrator.train.base import load_same_base, make_engine
from orchestrator.train.begin import begin, begin_again
from orchestrator.train.callbacks import RunCallback
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore
from orchestrator.train.compression import Compression
from orchestrator.train.evaluate import EvalResult
from orchestrator.train.evaluating import evaluate_now
from orchestrator.train.finish import finish
from orchestrator.train.gradients import GradientSum
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.guard import guard_base
from orchestrator.train.identity import resume_keys
from orchestrator.train.meter import MemoryMeter
from orchestrator.train.model import trainable
from orchestrator.train.out_of_memory import named_tensors
from orchestrator.train.resizing import Resizing
from orchestrator.train.rows import (
    RowBatcher,
    make_batcher,
    make_loader,
    make_sampler,
)
from orchestrator.train.run_files import EventLog
from orchestrator.train.saving import Saver
from orchestrator.train.settings import TrainSettings
from orchestrator.train.start import adapters_of
from orchestrator.train.started import check_started
from orchestrator.train.streamed import Stream
from orchestrator.train.telemetry import RankTelemetry, host_of
from orchestrator.train.trainer import Batch, PlannedTrainer, training_arguments


class Run:
    """One rank's run; `execute` reads from top to bottom."""

    def __init__(
        self, plan: Plan, config: RunConfig, settings: TrainSettings, cached: Cached, pad: int, heart: Heart
    ) -> None:
        """Take what is known before the model is loaded."""
        self.heart = heart
        self.plan, self.config, self.settings = plan, config, settings
        self.began = time.perf_counter()
        self.group = MetricsGroup(settings)
        self.meter = MemoryMeter(settings.device)
        self.events = EventLog(settings.run_dir, enabled=settings.is_main)
        self.faults = Injector(
            config.faults,
            settings.run_dir,
            rank=settings.rank,
            world_size=settings.world_size,
            attempt=heart.attempt,
            device=str(settings.device),
            local_rank=settings.local_rank,
            host=host_of(plan, settings),
        )
        self.telemetry = RankTelemetry(plan, config, settings)
        self.engine = make_engine(plan, settings, self.group)
        self.stream: Stream | None = None
        if isinstance(self.engine, StreamedEngine) and plan.chosen.strategy.streamed is not None:
            self.stream = Stream(self.engine, plan.chosen.strategy.streamed, settings, self.group)
        self.store = CheckpointStore(settings.run_dir / "checkpoints", config.checkpoint.keep)
        self.saver = Saver(
            config.checkpoint,
            self.store,
            self.group,
            self.events,
            is_main=settings.is_main,
            say=self.say,
            beat=lambda: heart.beat("saving"),
        )
        seq_len = plan.chosen.strategy.seq_len
        rows = cached.rows["train"]
        self.train_batcher = make_batcher(config, seq_len, rows, pad, packed=bool(config.data.packing))
        self.eval_batcher: RowBatcher | None = None
        if "eval" in cached.rows:
            held_out = cached.rows["eval"]
            self.eval_batcher = make_batcher(config, seq_len, held_out, pad, packed=False)
        self.parts = cached.parts
        self.sampler = make_sampler(config, rows, cached.parts.get("train", ()))
        self.keys = resume_keys(config, self.train_batcher.rows, cached.parts.get("train", ()), heart.beat)
        self.gradients = GradientSum(None)
        self.compression = Compression(None)
        self.evals: dict[int, EvalResult] = {}
        self.scores: dict[int, dict[str, Any]] = {}
        self.live: dict[str, int] = {}
        self.streamed: Mapping[str, Any] | None = None
        self.memory: dict[str, dict[str, int]] = {}
        self.resizing = Resizing(self)
        self.opened: tuple[Path, Checkpoint] | None = None

    def execute(self, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
        """Load, train, evaluate, export and summarise."""
        # 1. model and trainer
        self.answers = Answers(
            self.config,
            self.settings,
            self.group,
            tokenizer,
            seq_len=self.plan.chosen.strategy.seq_len,
            rows=(self.eval_batcher or self.train_batcher).rows,
            beat=partial(self.heart.beat, "evaluating"),
        )
        check_started(self.plan, self.settings.world_size, self.group.gather, self.say)
        self.heart.beat("loading")
        self.faults.reached(FaultPhase.loading, 0)
        others = "".join(f", {pattern}:{kind.value}" for pattern, kind in self.config.base.quant_pattern)
        self.say(f"loading the base: {self.config.base.quant.value}{others}, {self.settings.engine}")
        arguments = training_arguments(self.config, self.settings, self.engine, self.sampler.num_steps)
        base = load_same_base(
            self.config,
            settings=self.settings,
            group=self.group,
            stream=self.stream,
            key=self.keys["base"],
            say=self.say,
            events=self.events,
        )
        rng.seed_rank(self.config.seed, self.settings.rank)
        model = adapters_of(self, base)
        if not trainable(model):
            raise UserError(
                Problem(
                    where="adapter.targets",
                    found="no parameter would be trained",
                    remedy="Use adapter.targets=all-linear or name modules the model has.",
                )
            )
        self.callback = self.make_callback()
        self.trainer = PlannedTrainer(
            model=model,
            config=self.config,
            settings=self.settings,
            engine=self.engine,
            arguments=arguments,
            loader=make_loader(self.sampler, self.train_batcher, self.settings),
            tokenizer=tokenizer,
            callbacks=[self.callback, *allocators(self.config.adapter, model)],
        )
        self.attach()
        # 2. steps (`on_start` resumes or evaluates the untouched base first)
        self.opened = self.resizing.open()
        self.trainer.train()
        while self.resizing.is_pending and not self.callback.stopped:
            self.resizing.carry_out()
            self.trainer.train()
        # 3. results
        finish(self, tokenizer)

    def named_tensors(self) -> Named:
        """What is alive, by the terms of the estimate; as far as there is a model."""
        trainer = getattr(self, "trainer", None)
        return {} if trainer is None else named_tensors(self.engine, trainer.model_wrapped, trainer.optimizer)

    def say(self, message: str) -> None:
        """Say a phase on the console, once."""
        if self.settings.is_main:
            print(message, flush=True)

    def make_callback(self) -> RunCallback:
        """Return the callback with the schedule of this run."""
        return RunCallback(
            settings=self.settings,
            group=self.group,
            events=self.events,
            saver=self.saver,
            heart=self.heart,
            faults=self.faults,
            num_steps=self.sampler.num_steps,
            num_rows=self.sampler.num_rows,
            eval_every=self.config.eval.every,
        )

    def attach(self) -> None:
        """Connect the hooks of the loop."""
        self.callback.trainer = self.trainer
        self.faults.parameters = lambda: [parameter for _, parameter in trainable(self.trainer.model)]
        self.callback.on_start = partial(begin, self)
        self.callback.on_first_step = self.first_step
        self.callback.on_step = self.step_ended
        self.callback.on_gradients = self.resizing.before_step
        self.callback.on_decide = self.resizing.logged
        self.callback.on_clock = self.telemetry.step_ended
        self.callback.on_logged = self.record
        self.trainer.save_hook = self.save
        self.trainer.eval_hook = self.evaluate_now

    def begin_again(self, checkpoint: Checkpoint) -> None:
        """Go on in the same process with adapters of other ranks."""
        begin_again(self, checkpoint)

    def step_ended(self, seconds: float) -> dict[str, float]:
        """End a step; return what its line in the metrics says besides."""
        told = {} if self.stream is None else self.stream.step(seconds)
        return {**told, **self.resizing.metrics()}

    def first_step(self) -> None:
        """Measure what is alive once the engine has done a whole step, the largest over ranks."""
        model, optimizer = self.trainer.model_wrapped, self.trainer.optimizer
        # Asked for anew each time: adapters of other ranks have another optimizer.
        own = self.telemetry.first_live(
            lambda: self.engine.live_bytes(self.trainer.model_wrapped, self.trainer.optimizer)
        )
        guard_base(self.plan, self.settings, self.group, self.events, self.engine.live_tensors(model, optimizer))
        largest = self.group.max([float(held) for held in own.values()])
        self.live = {name: int(held) for name, held in zip(own, largest, strict=True)}
        step = self.trainer.state.global_step
        port = int(os.environ.get("MASTER_PORT", "0"))
        self.events.add(
            "first_step", step=step, attempt=self.heart.attempt, port=port, live_base_bytes=base_bytes(self.live)
        )

    def evaluate_now(self) -> None:
        """Score the held-out rows, answer the questions, and write the result beside the steps."""
        evaluate_now(self)

    def beating(self, batcher: RowBatcher) -> Callable[[Sequence[int]], Batch]:
        """Return a source of batches that beats for each."""

        def collate(indices: Sequence[int]) -> Batch:
            self.heart.beat("evaluating")
            return batcher(indices)

        return collate

    def go_on(self) -> None:
        """Leave a pause out of the step that follows."""
        self.heart.beat("training")
        if self.stream is not None:
            self.stream.discard()
        self.callback.clock.restart()
        self.telemetry.restart()

    def record(self, step: int, tokens: float, logs: Mapping[str, float]) -> None:
        """Record what this rank knows of a step."""
        self.telemetry.record(
            step,
            tokens=tokens,
            loss=logs["loss"],
            grad_norm=logs.get("grad_norm"),
            prefetch_seconds=None if self.stream is None else self.stream.own_wait_seconds,
        )

    def save(self) -> None:
        """Take a snapshot, which is written beside the steps; the last one is awaited."""
        self.heart.beat("saving")
        self.faults.reached(FaultPhase.saving, self.trainer.state.global_step)
        step = self.trainer.state.global_step
        last = self.callback.stopped or step >= self.sampler.num_steps
        capture = partial(
            state.capture,
            self.trainer,
            self.engine,
            self.group,
            self.keys,
            self.compression,
            also=self.resizing.state(),
        )
        self.saver.save(step, capture, last=last)
        self.go_on()

    def note_memory(self, phase: str) -> None:
        """Keep the peaks of a phase, the largest over ranks."""
        own = self.meter.read()
        keys = list(own.__dataclass_fields__)
        peaks = self.group.max([float(getattr(own, key)) for key in keys])
        self.memory[phase] = {key: int(peak) for key, peak in zip(keys, peaks, strict=True)}
