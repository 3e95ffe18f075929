"""Verbs that plan and start nothing: `estimate`, `plan`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Problem, UserError
from orchestrator.outputs import write_and_say, write_whole
from orchestrator.verbs.emit import emit

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def made_plan(config: RunConfig, *, download: bool = False, by_name: bool = False, run_id: str = "") -> tuple[Any, Any]:
    """Plan a run; returns the plan and what it was made of, after saying the notes on it.

    Args:
        config: of the run.
        download: whether a model that is not here is fetched.
        by_name: whether a model that is not here may be one of the known ones.
        run_id: of the run; empty makes one up.
    """
    from orchestrator.inputs import gather
    from orchestrator.planning import plan_of

    inputs = gather(config, download=download, by_name=by_name)
    made = plan_of(config, inputs, run_id or f"plan-{time.strftime('%Y%m%d-%H%M%S')}", os.environ)
    for note in inputs.notes:
        print(f"note: {note}", file=sys.stderr)
    return made, inputs


def estimate(config: RunConfig) -> int:
    """Show memory and time of the chosen strategy, term by term."""
    from orchestrator.planner.explain import explain_estimate
    from orchestrator.planner.plan import to_json

    made, _ = made_plan(config, by_name=True)
    whole = to_json(made)
    emit(config, {**whole["chosen"], "calibration": whole["calibration"]}, explain_estimate(made))
    return 0


def plan(config: RunConfig) -> int:
    """Show every strategy; with a run directory, leave the plan there for ranks started by hand."""
    from orchestrator import run_dir
    from orchestrator.planner.explain import explain
    from orchestrator.planner.plan import dumps, to_json

    if config.preview:
        from orchestrator.verbs.preview import preview

        return preview(config)
    run = run_dir.choose(config) if config.run_dir or config.resume else None
    made, inputs = made_plan(config, by_name=True, run_id=run.name if run else "")
    if config.picture:
        _draw(config, inputs, made)
    if run is not None and not run.resuming:
        from topology.codec import to_json as machine_json

        write_whole(run.path / "plan.json", dumps(made), "run_dir")
        # Ranks build the schedule of their gradients from it.
        write_whole(run.path / "topology.json", json.dumps(machine_json(inputs.topology), indent=2) + "\n", "run_dir")
    emit(config, to_json(made), explain(made))
    return 0


def _draw(config: RunConfig, inputs: Any, made: Any) -> None:  # noqa: ANN401 - imported where it is used
    from orchestrator.planner.solve import Asked
    from orchestrator.planner.view import view_of
    from orchestrator.report.plan_svg import plan_svg

    if not config.picture.lower().endswith(".svg"):
        found = f"found {config.picture}"
        raise UserError(Problem(where="picture", found=found, remedy="Pictures are SVG: give a name in .svg."))
    view = view_of(Asked(config=config, topology=inputs.topology, model=inputs.model, data=inputs.data))
    if view is not None:
        write_and_say(Path(config.picture), plan_svg(made, view), "picture")


def compare(trials: Sequence[Any], folder: Path) -> None:
    """End a sweep of plans with one table, and leave it as CSV beside their results."""
    from orchestrator.report.sweep import csv_text, rows_of, table_text

    rows = rows_of(trials)
    path = folder / "sweep.csv"
    write_whole(path, csv_text(rows), "sweep")
    stream = sys.stderr if any(item == "format=json" for item in trials[0].overrides) else sys.stdout
    print(f"\n{table_text(rows)}\nThis table: {path}", file=stream)
