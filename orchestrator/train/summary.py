"""`summary.json`: what came out, predicted against measured."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from orchestrator.engines.live import base_bytes
from orchestrator.train.evaluating import block_of, source_losses_of
from orchestrator.train.run_files import read_json_lines
from orchestrator.train.sources import summary_of

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.train.loop import Run

SCHEMA = 1
# Terms of the host that are, without offload, those of the device.
_OFFLOADED = {"offloaded_base": "base_partition", "offloaded_optimizer": "optimizer"}


def summarise(run: Run, *, status: str) -> dict[str, Any]:
    """Return the summary of a finished or stopped run."""
    clock = run.callback.clock
    losses = run.callback.losses
    steps = run.trainer.state.global_step
    before, after = run.evals.get(0), run.evals.get(steps) if status == "done" else None
    return {
        "schema": SCHEMA,
        "status": status,
        "run_id": run.plan.run_id,
        "engine": run.settings.engine,
        "world_size": run.settings.world_size,
        "precision": run.settings.precision,
        "steps": steps,
        "planned_steps": run.sampler.num_steps,
        "samples": steps * run.settings.global_batch,
        "eval_loss_before": before.loss if before else _earlier_loss(run.settings.run_dir),
        "eval_loss_after": after.loss if after else None,
        "eval_before": block_of(run.scores.get(0), run.settings.run_dir, 0),
        "eval_after": block_of(run.scores.get(steps), run.settings.run_dir, steps) if status == "done" else None,
        "eval_row_losses": list(after.row_losses) if after else None,
        "sources": summary_of(
            run.config,
            run.parts,
            source_losses_of(run.scores.get(0), run.settings.run_dir, 0),
            source_losses_of(run.scores.get(steps), run.settings.run_dir, steps) if status == "done" else {},
        ),
        "train_loss_last": losses.get(steps),
        "wall_seconds": time.perf_counter() - run.began,
        "live_base_bytes": base_bytes(run.live),
        "gradient_route": run.gradients.summary(len(clock.seconds)),
        "compression": run.compression.summary(),
        "streamed": run.streamed,
        "predicted": _predicted(run),
        "measured": {
            "step_seconds": _number(clock.typical_seconds()),
            "tokens_per_second": _number(clock.tokens_per_second()),
            "memory": run.memory,
            "live": run.live,
        },
    }


def _predicted(run: Run) -> dict[str, Any]:
    estimate = run.plan.chosen.estimate
    phases = {"load": estimate.memory.load, "train": estimate.memory.train, "save": estimate.memory.save}
    keys = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")
    terms = {term.name: term.bytes for term in estimate.memory.train.terms}
    terms |= {_OFFLOADED[x.name]: x.bytes for x in estimate.memory.train.host_terms if x.name in _OFFLOADED}
    return {
        "step_seconds": estimate.step_seconds,
        "tokens_per_second": estimate.tokens_per_second,
        "memory": {name: {key: getattr(phase, key) for key in keys} for name, phase in phases.items()},
        "live": {name: terms.get(name, 0) for name in run.live},
    }


def _earlier_loss(run_dir: Path) -> float | None:
    """A resumed run evaluated the base in an earlier attempt; its metrics hold the result."""
    for record in read_json_lines(run_dir / "metrics.jsonl"):
        if record.get("step") == 0 and "eval_loss" in record:
            loss = record["eval_loss"]
            return None if loss is None else float(loss)  # null stands for NaN and infinities
    return None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value  # NaN is not JSON
