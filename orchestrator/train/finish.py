"""What happens after the last step: the result is evaluated, the adapter and the summary are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import transformers

from orchestrator.config import AdapterInit
from orchestrator.errors import UserError
from orchestrator.train.adapter_init import kept_or_none, start_key
from orchestrator.train.evaluate import record_logits
from orchestrator.train.export import save_adapter
from orchestrator.train.model import trainable
from orchestrator.train.run_files import write_json
from orchestrator.train.summary import summarise

if TYPE_CHECKING:
    from orchestrator.train.loop import Run


def finish(run: Run, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """Evaluate the result, write adapter and summary."""
    run.heart.beat("finishing")
    run.note_memory("train")
    run.gradients.end(run.group)
    run.compression.end(run.group)
    if run.compression.is_on:
        run.live["compress_residual"] = run.compression.residual_bytes
    if run.compression.not_finite:
        run.say(f"{run.compression.not_finite} compressed steps had gradients that are no numbers")
        run.events.add("compression", not_finite_steps=run.compression.not_finite)
    if run.stream is not None:
        run.streamed = run.stream.summary()
    run.meter.reset()
    stopped = run.callback.stopped
    if not stopped:
        run.evaluate_now()
        run.heart.beat("finishing")  # an evaluation ends in training
        _save_adapter(run, tokenizer)
    run.note_memory("save")
    run.telemetry.flush(run.events)
    if run.settings.is_main:
        body = summarise(run, status="stopped" if stopped else "done")
        write_json(run.settings.run_dir / "summary.json", body)
        run.callback.stop.obeyed()
        run.events.add(body["status"], step=run.trainer.state.global_step)
    run.group.barrier()
    run.telemetry.end()
    if run.stream is not None:
        run.stream.close()


def _save_adapter(run: Run, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """Write the adapter for PEFT, and what the evaluation saw, to check it against."""
    parameters = {name: run.engine.parameter(parameter).cpu() for name, parameter in trainable(run.trainer.model)}
    if run.eval_batcher is not None:
        path = run.settings.run_dir / "eval" / "logits.safetensors"
        record_logits(run.trainer.model, run.eval_batcher, run.settings, path)
    failure: UserError | None = None
    if run.settings.is_main:
        try:
            folder = run.settings.run_dir
            initial = (
                kept_or_none(folder, start_key(run.config)) if run.config.adapter.init is AdapterInit.pissa else None
            )
            save_adapter(run.trainer.model, tokenizer, parameters, folder / "adapter", initial)
        except UserError as error:
            failure = error
    problems = run.group.from_main(failure.problems if failure else ())
    if problems:
        raise UserError(*problems)
