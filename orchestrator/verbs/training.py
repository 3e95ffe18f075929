"""The verb `train`: plan, launch, watch and report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.verbs.emit import emit, stream_of
from orchestrator.verbs.planning import made_plan

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def sweep(arguments: Sequence[str]) -> int | None:
    """Run a sweep of trainings, if these words ask for one."""
    from orchestrator.hydra_flags import is_sweep

    if not is_sweep(arguments):
        return None
    from orchestrator.sweeps.run import run_sweep

    return run_sweep(list(arguments))


def train(config: RunConfig) -> int:
    """Train, or resume; nothing where the run has been finished."""
    from orchestrator import run_dir, supervise
    from orchestrator.planner.plan import to_json

    if config.preview:
        from orchestrator.verbs.preview import preview

        return preview(config)
    run = run_dir.choose(config)
    summary = run.summary if run.resuming else None
    if summary is not None and run_dir.is_finished(config, run, summary):
        print(f"already finished: {run.path}", file=sys.stderr)
        emit(config, summary, f"Nothing to do. Adapter: {run.path / 'adapter'}\n")
        return 0
    plan, inputs = made_plan(config, download=not config.dry_run, run_id=run.name)
    topology = inputs.topology
    if run.resuming:
        plan, topology = _resumed_plan(config, plan, inputs, run)
    attempt = supervise.make_attempt(plan, topology, run)
    if config.dry_run:
        emit(config, {"plan": to_json(plan), **supervise.dry_run_json(attempt)}, supervise.dry_run_text(attempt))
        return 0
    return _run_and_report(config, plan, inputs, topology, attempt, run)


def _resumed_plan(config: RunConfig, plan: Any, inputs: Any, run: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """What the run has met before it was ended still counts: memory that ran out, devices that are left out."""
    from orchestrator.planner.plan import loads
    from orchestrator.quarantine import quarantined, words
    from orchestrator.replanning import resumed

    saved = loads((run.path / "plan.json").read_text(encoding="utf-8"))
    found = resumed(config, plan, inputs, saved, quarantined(run.path), os.environ)
    if found is None:
        return plan, inputs.topology
    for line in (*words(run.path), *found.changes):
        print(f"note: {line}", file=sys.stderr)
    return found.plan, found.topology


def _run_and_report(config: RunConfig, plan: Any, inputs: Any, topology: Any, attempt: Any, run: Any) -> int:  # noqa: ANN401
    from orchestrator import harness
    from orchestrator.live_view import viewed
    from orchestrator.report.text import summary_text
    from orchestrator.supervisor import supervise

    stream = stream_of(config)

    def say(line: str) -> None:
        print(line, file=stream, flush=True)

    say(f"{plan.machine}\n{plan.workload.text}\nchosen: {plan.chosen.strategy.label}\nrun directory: {run.path}")
    if plan.data is not None:
        from orchestrator.planner.explain_data import data_text

        say(data_text(plan.data))
    if config.launch.backend.value == "slurm":
        from orchestrator.slurm_follow import run_as_job

        body = run_as_job(attempt.launch, run, say, submits=config.launch.submit, follows=config.launch.follow)
        if body["status"] != "done":
            emit(config, body, "")
            return 0
        if harness.is_wanted(config):
            say(f"for the harness, on a host with a device: {' '.join(harness.command_of(run.path))}")
    else:
        try:
            with viewed(run.path, stream) as say_above:
                plan, body = supervise(config, plan, inputs, run, say_above, topology=topology)
            if harness.is_wanted(config):
                body = harness.run_harness(run.path, body, say)
        finally:
            _leave_page(run.path, say)
    emit(config, body, "\n" + summary_text(plan, body, run.path))
    return 0


def _leave_page(path: Path, say: Callable[[str], None]) -> None:
    """Leave the report of a run, however it ended."""
    from orchestrator.reporting import leave_page

    page = leave_page(path)
    if page is not None:
        say(f"report: {page}")
