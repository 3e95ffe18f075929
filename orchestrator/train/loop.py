"""One rank from plan to summary: load, resume or evaluate, train, evaluate, export."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from orchestrator.config import FaultPhase, RunConfig
from orchestrator.config_codec import parse_config
from orchestrator.dataset.cache import Cached
from orchestrator.engines.live import Named, base_bytes
from orchestrator.engines.streamed import StreamedEngine
from orchestrator.errors import Problem, UserError
from orchestrator.faults.inject import Injector
from orchestrator.monitor.beat import Heart
from orchestrator.planner.plan import Plan
from orchestrator.train import rehearsal, rng, state
from orchestrator.train.base import load_same_base, make_engine
from orchestrator.train.callbacks import RunCallback
from orchestrator.train.checkpoint import CheckpointStore
from orchestrator.train.compression import Compression, compress_gradients
from orchestrator.train.evaluate import EvalResult, evaluate, record_logits
from orchestrator.train.export import save_adapter
from orchestrator.train.gradients import GradientSum, sum_gradients
from orchestrator.train.groups import MetricsGroup, close_process_group, open_process_group
from orchestrator.train.guard import guard_base
from orchestrator.train.identity import resume_keys
from orchestrator.train.meter import MemoryMeter
from orchestrator.train.model import add_adapters, trainable
from orchestrator.train.newest import open_newest
from orchestrator.train.out_of_memory import named_tensors, told_of
from orchestrator.train.packet_routes import packet_transport
from orchestrator.train.rows import (
    RowBatcher,
    load_tokenizer,
    make_batcher,
    make_loader,
    make_sampler,
    prepare_rows,
)
from orchestrator.train.run_files import EventLog, append_json_line, keep_steps_until, write_json
from orchestrator.train.saving import Saver
from orchestrator.train.settings import TrainSettings, settings_from
from orchestrator.train.started import check_started
from orchestrator.train.streamed import Stream
from orchestrator.train.summary import summarise
from orchestrator.train.telemetry import RankTelemetry, host_of
from orchestrator.train.trainer import Batch, PlannedTrainer, training_arguments


def run_rank(plan: Plan, run_dir: Path, heart: Heart) -> None:
    """Do this rank's part of the run, and beat where there is progress.

    Raises:
        UserError: for what the user can mend; anything else is a fault of the run.
    """
    settings = settings_from(plan, run_dir)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(_num_threads(plan, settings.rank))
    if settings.device.type == "cuda":
        torch.cuda.set_device(settings.device)
    config = parse_config(plan.config)
    tokenizer = load_tokenizer(config)
    # Before the process group exists: a slow tokenisation must not run into its time-out.
    cached = prepare_rows(config, plan.rows_tokens, run_dir, tokenizer)
    if cached.chat_template is not None:
        tokenizer.chat_template = cached.chat_template
    open_process_group(settings)
    try:
        run = Run(plan, config, settings, cached, tokenizer.pad_token_id, heart)
        with (
            closing(run.saver),  # whatever ends the run: a checkpoint that is being written is worth a moment
            told_of(heart, run_dir, settings.device, run.named_tensors),
        ):
            run.execute(tokenizer)
    finally:
        close_process_group()


def _num_threads(plan: Plan, rank: int) -> int:
    """Take the user's OMP_NUM_THREADS where it is a number, else the plan's."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",", maxsplit=1)[0]
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else plan.chosen.strategy.threads_of(rank)


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
        self.sampler = make_sampler(config, rows)
        self.keys = resume_keys(config, self.train_batcher.rows)
        self.gradients = GradientSum(None)
        self.compression = Compression(None)
        self.evals: dict[int, EvalResult] = {}
        self.live: dict[str, int] = {}
        self.streamed: Mapping[str, Any] | None = None
        self.memory: dict[str, dict[str, int]] = {}

    def execute(self, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
        """Load, train, evaluate, export and summarise."""
        # 1. model and trainer
        check_started(self.plan, self.settings.world_size, self.group.gather, self.say)
        self.heart.beat("loading")
        self.faults.reached(FaultPhase.loading, 0)
        self.say(f"loading the base: {self.config.base.quant.value}, {self.settings.engine}")
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
        model = add_adapters(base, self.config.adapter, self.config.seed)
        if not trainable(model):
            raise UserError(
                Problem(
                    where="adapter.targets",
                    found="no parameter would be trained",
                    remedy="Use adapter.targets=all-linear or name modules the model has.",
                )
            )
        if self.stream is not None:
            self.stream.measure_adapters(model)
        self.callback = self.make_callback()
        self.trainer = PlannedTrainer(
            model=model,
            config=self.config,
            settings=self.settings,
            engine=self.engine,
            arguments=arguments,
            loader=make_loader(self.sampler, self.train_batcher, self.settings),
            tokenizer=tokenizer,
            callbacks=[self.callback],
        )
        self.attach()
        # 2. steps (`on_start` resumes or evaluates the untouched base first)
        self.trainer.train()
        # 3. results
        self.finish(tokenizer)

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
        self.callback.on_start = self.start
        self.callback.on_first_step = self.first_step
        if self.stream is not None:
            self.callback.on_step = self.stream.step
        self.callback.on_clock = self.telemetry.step_ended
        self.callback.on_logged = self.record
        self.trainer.save_hook = self.save
        self.trainer.eval_hook = self.evaluate_now

    def start(self) -> None:
        """Resume from the newest whole checkpoint, or evaluate the base before the first step."""
        self.send_gradients()
        self.telemetry.attach(self.trainer, self.group, [parameter for _, parameter in trainable(self.trainer.model)])
        self.note_memory("load")
        newest = open_newest(self.store, self.group, self.events, is_main=self.settings.is_main, say=self.say)
        metrics = self.settings.run_dir / "metrics.jsonl"
        if newest is not None:
            path, checkpoint = newest
            state.restore(self.trainer, self.engine, checkpoint, self.keys)
            settings = self.settings
            residuals, before = checkpoint.residuals, checkpoint.state
            done = self.compression.restore(residuals, before, settings.rank, settings.world_size)
            if done:
                self.events.add("compression", step=checkpoint.step, residuals=done)
            if self.settings.is_main:
                keep_steps_until(metrics, checkpoint.step)
            self.say(f"resuming at step {checkpoint.step} of {self.sampler.num_steps}")
            self.events.add("resumed", step=checkpoint.step, checkpoint=str(path), attempt=self.heart.attempt)
            self.rehearse()
        else:
            self.rehearse()
            if metrics.exists():
                self.say("no whole checkpoint: starting at step 0")
            self.group.barrier()
            metrics.unlink(missing_ok=True)
            if self.config.eval.before:
                self.evaluate_now()
        self.meter.reset()
        self.telemetry.restart()
        self.heart.beat("training", step=self.trainer.state.global_step)

    def rehearse(self) -> None:
        """Try what needs most memory, where that is wanted."""
        if not rehearsal.is_wanted(self.config, self.plan):
            return
        why = rehearsal.conflict(self.settings)
        if why:
            self.events.add("rehearsal_skipped", why=why)
            return
        self.say("rehearsing the longest batch, an evaluation step and a save")
        done = rehearsal.rehearse(
            self.trainer,
            (self.train_batcher, self.sampler),
            self.eval_batcher,
            self.config,
            capture=partial(state.capture, self.trainer, self.engine, self.group, self.keys, self.compression),
            beat=self.heart.beat,
        )
        self.events.add("rehearsed", attempt=self.heart.attempt, **asdict(done))
        self.go_on()

    def send_gradients(self) -> None:
        """Settle how gradients travel: sparse, by a schedule of ours, or by torch's own all-reduce."""
        model, scaler = self.trainer.model_wrapped, self.trainer.accelerator.scaler
        self.compression = compress_gradients(
            self.plan.chosen.strategy.compression,
            self.group,
            model,
            scale=None if scaler is None else scaler.get_scale,
            step_of=lambda: int(self.trainer.state.global_step),
            transport=packet_transport(self.plan, self.settings.run_dir, self.group),
        )
        wrapped: Any = self.trainer.optimizer  # by accelerate
        optimizer = getattr(wrapped, "optimizer", wrapped)
        self.compression.follow(optimizer, dict(trainable(self.trainer.model)))
        self.callback.finite.may_skip |= self.compression.is_on
        if not self.compression.is_on:  # a model takes one hook
            self.gradients = sum_gradients(self.plan, self.settings.run_dir, self.group, model)
            self.events.add("gradients", why=self.gradients.why)
        self.events.add("compression", why=self.compression.why)

    def first_step(self) -> None:
        """Measure what is alive once the engine has done a whole step, the largest over ranks."""
        model, optimizer = self.trainer.model_wrapped, self.trainer.optimizer
        own = self.telemetry.first_live(lambda: self.engine.live_bytes(model, optimizer))
        guard_base(self.plan, self.settings, self.group, self.events, self.engine.live_tensors(model, optimizer))
        largest = self.group.max([float(held) for held in own.values()])
        self.live = {name: int(held) for name, held in zip(own, largest, strict=True)}
        step = self.trainer.state.global_step
        port = int(os.environ.get("MASTER_PORT", "0"))
        self.events.add(
            "first_step", step=step, attempt=self.heart.attempt, port=port, live_base_bytes=base_bytes(self.live)
        )

    def evaluate_now(self) -> None:
        """Score the held-out rows and write the result beside the steps."""
        if self.eval_batcher is None:
            return
        step = self.trainer.state.global_step
        self.faults.reached(FaultPhase.evaluating, step)
        self.say(f"evaluating on {len(self.eval_batcher.rows)} held-out rows")
        result = evaluate(
            self.trainer.model,
            self.beating(self.eval_batcher),
            len(self.eval_batcher.rows),
            self.settings,
            self.group,
        )
        self.evals[step] = result
        if self.settings.is_main:
            record = {"step": step, "eval_loss": result.loss, "eval_tokens": result.tokens}
            append_json_line(self.settings.run_dir / "metrics.jsonl", record)
            self.say(f"held-out loss {result.loss:.4f} over {result.tokens} tokens")
        self.go_on()

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
        capture = partial(state.capture, self.trainer, self.engine, self.group, self.keys, self.compression)
        self.saver.save(step, capture, last=last)
        self.go_on()

    def note_memory(self, phase: str) -> None:
        """Keep the peaks of a phase, the largest over ranks."""
        own = self.meter.read()
        keys = list(own.__dataclass_fields__)
        peaks = self.group.max([float(getattr(own, key)) for key in keys])
        self.memory[phase] = {key: int(peak) for key, peak in zip(keys, peaks, strict=True)}

    def finish(self, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
        """Evaluate the result, write adapter and summary."""
        self.heart.beat("finishing")
        self.note_memory("train")
        self.gradients.end(self.group)
        self.compression.end(self.group)
        if self.compression.is_on:
            self.live["compress_residual"] = self.compression.residual_bytes
        if self.compression.not_finite:
            self.say(f"{self.compression.not_finite} compressed steps had gradients that are no numbers")
            self.events.add("compression", not_finite_steps=self.compression.not_finite)
        if self.stream is not None:
            self.streamed = self.stream.summary()
        self.meter.reset()
        stopped = self.callback.stopped
        if not stopped:
            self.evaluate_now()
            self.save_adapter(tokenizer)
        self.note_memory("save")
        self.telemetry.flush(self.events)
        if self.settings.is_main:
            body = summarise(self, status="stopped" if stopped else "done")
            write_json(self.settings.run_dir / "summary.json", body)
            self.callback.stop.obeyed()
            self.events.add(body["status"], step=self.trainer.state.global_step)
        self.group.barrier()
        self.telemetry.end()
        if self.stream is not None:
            self.stream.close()

    def save_adapter(self, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
        """Write the adapter for PEFT, and what the evaluation saw, to check it against."""
        parameters = {name: self.engine.parameter(parameter).cpu() for name, parameter in trainable(self.trainer.model)}
        if self.eval_batcher is not None:
            path = self.settings.run_dir / "eval" / "logits.safetensors"
            record_logits(self.trainer.model, self.eval_batcher, self.settings, path)
        failure: UserError | None = None
        if self.settings.is_main:
            try:
                save_adapter(self.trainer.model, tokenizer, parameters, self.settings.run_dir / "adapter")
            except UserError as error:
                failure = error
        problems = self.group.from_main(failure.problems if failure else ())
        if problems:
            raise UserError(*problems)
