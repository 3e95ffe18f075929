"""One evaluation of a run: held-out loss, answers and their metrics, written beside the steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from orchestrator.config import FaultPhase
from orchestrator.evaluation.metrics import perplexity
from orchestrator.train.evaluate import evaluate
from orchestrator.train.run_files import append_json_line, read_json_lines
from orchestrator.train.sources import source_losses

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.train.loop import Run

_SAY_SECONDS: Final = 10.0
SOURCE_LOSSES: Final = "source_losses"  # in `metrics.jsonl`: mean loss of a label token by the name of the source
_PREFIXES: Final = ("eval_", "prompts_")


def evaluate_now(run: Run) -> None:
    """Score the held-out rows, answer the questions, and write the result beside the steps; collective."""
    if run.eval_batcher is None and not run.answers.is_wanted:
        return
    step = run.trainer.state.global_step
    run.faults.reached(FaultPhase.evaluating, step)
    run.heart.beat("evaluating")
    found: dict[str, Any] = {}
    if run.eval_batcher is not None:
        run.say(f"evaluating on {len(run.eval_batcher.rows)} held-out rows")
        rows = len(run.eval_batcher.rows)
        result = evaluate(run.trainer.model, run.beating(run.eval_batcher), rows, run.settings, run.group)
        run.evals[step] = result
        found = {
            "eval_loss": result.loss,
            "eval_tokens": result.tokens,
            "eval_perplexity": perplexity(result.loss),
        }
        if run.parts.get("eval"):
            found[SOURCE_LOSSES] = source_losses(run.parts["eval"], result)
        run.say(f"held-out loss {result.loss:.4f} over {result.tokens} tokens")
    if run.answers.is_wanted:
        found |= _answers(run, step)
    run.scores[step] = found
    if run.settings.is_main:
        append_json_line(run.settings.run_dir / "metrics.jsonl", {"step": step, **found})
    run.go_on()


def _answers(run: Run, step: int) -> dict[str, float]:
    asked = run.answers.asked()
    if not asked:
        run.say(f"no question has at most {run.plan.chosen.strategy.seq_len} tokens, so there is nothing to answer")
        return {}
    left_out = f", {run.answers.too_long} longer ones are left out" if run.answers.too_long else ""
    run.say(f"answering {len(asked)} questions{left_out}")
    said = time.monotonic()

    def beat(answered: int) -> None:
        nonlocal said
        run.heart.beat("evaluating")
        if time.monotonic() - said >= _SAY_SECONDS:
            said = time.monotonic()
            run.say(f"answered {answered} questions on rank 0")

    found = run.answers.evaluate(run.trainer.model, step, beat)
    if found:
        run.say(
            f"answered {len(asked)} questions in {found['answer_seconds']:.0f} s: {run.settings.run_dir}/samples.md"
        )
    return found


def block_of(found: dict[str, Any] | None, run_dir: Path, step: int) -> dict[str, Any] | None:
    """What `summary.json` says of one evaluation; None where there was none.

    A resumed run evaluated the base in an earlier attempt; its metrics hold the result.
    """
    found = found or _recorded(run_dir, step)
    if not found:
        return None
    block = {name.removeprefix("eval_"): value for name, value in found.items() if name.startswith("eval_")}
    prompts = {name.removeprefix("prompts_"): value for name, value in found.items() if name.startswith("prompts_")}
    return {**block, **({"prompts": prompts} if prompts else {})}


def source_losses_of(found: dict[str, Any] | None, run_dir: Path, step: int) -> dict[str, float | None]:
    """Held-out losses of one evaluation by source, of an earlier attempt, too; empty where there is none."""
    losses: dict[str, float | None] = (found or _recorded(run_dir, step) or {}).get(SOURCE_LOSSES) or {}
    return losses


def _recorded(run_dir: Path, step: int) -> dict[str, Any] | None:
    records = read_json_lines(run_dir / "metrics.jsonl")
    return next((record for record in records if record.get("step") == step and is_evaluation(record)), None)


def is_evaluation(record: dict[str, Any]) -> bool:
    """Whether a line of the metrics is of an evaluation."""
    return any(name.startswith(_PREFIXES) for name in record)
