"""Between loading and the first step: gradients get their way, a checkpoint is restored, a rehearsal is held."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.train import rehearsal, state
from orchestrator.train.answers import keep_samples_until
from orchestrator.train.checkpoint import Checkpoint
from orchestrator.train.compression import compress_gradients
from orchestrator.train.gradients import sum_gradients
from orchestrator.train.model import trainable
from orchestrator.train.newest import open_newest
from orchestrator.train.packet_routes import packet_transport
from orchestrator.train.run_files import keep_steps_until

if TYPE_CHECKING:
    from orchestrator.train.loop import Run


def begin(run: Run) -> None:
    """Resume from the newest whole checkpoint, or evaluate the base before the first step."""
    _send_gradients(run)
    run.telemetry.attach(run.trainer, run.group, [parameter for _, parameter in trainable(run.trainer.model)])
    run.note_memory("load")
    newest = run.opened
    if newest is None:
        newest = open_newest(run.store, run.group, run.events, is_main=run.settings.is_main, say=run.say)
    run.opened = None  # it is as large as adapters and moments
    metrics = run.settings.run_dir / "metrics.jsonl"
    if newest is not None:
        path, checkpoint = newest
        run.resizing.before_restore()
        state.restore(run.trainer, run.engine, checkpoint, run.keys)
        settings = run.settings
        residuals, before = checkpoint.residuals, checkpoint.state
        done = run.compression.restore(residuals, before, settings.rank, settings.world_size)
        if done:
            run.events.add("compression", step=checkpoint.step, residuals=done)
        if run.settings.is_main:
            keep_steps_until(metrics, checkpoint.step)
            keep_samples_until(run.settings.run_dir, checkpoint.step)
        run.say(f"resuming at step {checkpoint.step} of {run.sampler.num_steps}")
        run.events.add("resumed", step=checkpoint.step, checkpoint=str(path), attempt=run.heart.attempt)
        run.resizing.restored()
        _rehearse(run)
    else:
        _rehearse(run)
        if metrics.exists():
            run.say("no whole checkpoint: starting at step 0")
        run.group.barrier()
        metrics.unlink(missing_ok=True)
        if run.settings.is_main:
            keep_samples_until(run.settings.run_dir, -1)
        if run.config.eval.before:
            run.evaluate_now()
    run.meter.reset()
    run.telemetry.restart()
    run.heart.beat("training", step=run.trainer.state.global_step)


def begin_again(run: Run, checkpoint: Checkpoint) -> None:
    """Go on from a state in memory, with a model whose adapters have other ranks and that was wrapped anew."""
    if run.compression.is_on:
        run.compression.leave()
        _send_gradients(run)
    else:
        run.gradients.follow(run.trainer.model_wrapped)
    run.telemetry.follow(run.trainer.model_wrapped, [parameter for _, parameter in trainable(run.trainer.model)])
    run.resizing.before_restore()
    state.restore(run.trainer, run.engine, checkpoint, run.keys)
    run.compression.restore(checkpoint.residuals, checkpoint.state, run.settings.rank, run.settings.world_size)
    run.resizing.restored()
    run.go_on()


def _rehearse(run: Run) -> None:
    """Try what needs most memory, where that is wanted."""
    if not rehearsal.is_wanted(run.config, run.plan):
        return
    why = rehearsal.conflict(run.settings)
    if why:
        run.events.add("rehearsal_skipped", why=why)
        return
    run.say("rehearsing the longest batch, an evaluation step and a save")
    done = rehearsal.rehearse(
        run.trainer,
        (run.train_batcher, run.sampler),
        run.eval_batcher,
        run.config,
        capture=partial(state.capture, run.trainer, run.engine, run.group, run.keys, run.compression),
        beat=run.heart.beat,
        answers=partial(_rehearse_answers, run),
    )
    run.events.add("rehearsed", attempt=run.heart.attempt, **asdict(done))
    run.go_on()


def _rehearse_answers(run: Run) -> None:
    if run.answers.is_wanted:
        run.heart.beat("evaluating")
        run.answers.rehearse(run.trainer.model)


def _send_gradients(run: Run) -> None:
    """Settle how gradients travel: sparse, by a schedule of ours, or by torch's own all-reduce."""
    model, scaler = run.trainer.model_wrapped, run.trainer.accelerator.scaler
    run.compression = compress_gradients(
        run.plan.chosen.strategy.compression,
        run.group,
        model,
        scale=None if scaler is None else scaler.get_scale,
        step_of=lambda: int(run.trainer.state.global_step),
        transport=packet_transport(run.plan, run.settings.run_dir, run.group),
    )
    wrapped: Any = run.trainer.optimizer  # by accelerate
    optimizer = getattr(wrapped, "optimizer", wrapped)
    run.compression.follow(optimizer, dict(trainable(run.trainer.model)))
    if not run.compression.is_on:  # a model takes one hook
        run.gradients = sum_gradients(run.plan, run.settings.run_dir, run.group, model)
        run.events.add("gradients", why=run.gradients.why)
    run.events.add("compression", why=run.compression.why)
