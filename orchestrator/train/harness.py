"""The LM evaluation harness on a run's base and adapter: `python -m orchestrator.train.harness RUN_DIR/plan.json`.

One process and one device, after the ranks have ended: the harness drives the model by itself and knows nothing of
layers that other ranks hold. The base is loaded as it was trained (4-bit and so on), so both numbers are of what a
quantised deployment would answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from launch.parent_death import die_with_parent
from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.planner.plan import Plan
from orchestrator.train.worker import plan_path, quiet_libraries, read_plan, report, set_environment

RESULT: Final = "lm_eval.json"
_STDERR: Final = "_stderr"


def run_harness(plan: Plan, run_dir: Path) -> dict[str, Any]:
    """Evaluate the base without and with its adapter; returns {tasks, before, after}, metrics by task.

    Raises:
        UserError: the harness is not installed, a task is unknown to it, or the run has no adapter.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UserError(
            Problem(
                where="eval.lm_eval",
                found=f"the LM evaluation harness cannot be imported ({error})",
                remedy="Install it with `pip install 'trainmaster[harness]'`.",
            )
        ) from error
    config = plan.run_config.eval
    tasks = list(config.lm_eval)
    manager = TaskManager(include_path=config.lm_eval_folder or None)
    _check_tasks(manager, tasks)
    print(f"loading base and adapter for {', '.join(tasks)}", flush=True)
    model, tokenizer = _load(plan, run_dir)
    found: dict[str, Any] = {"tasks": tasks, "limit": config.lm_eval_limit or None}
    if config.before:
        print("harness: the base", flush=True)
        with model.disable_adapter():
            found["before"] = _evaluate(model, tokenizer, manager, plan)
    print("harness: with the adapter", flush=True)
    found["after"] = _evaluate(model, tokenizer, manager, plan)
    return found


def _check_tasks(manager: Any, tasks: list[str]) -> None:  # noqa: ANN401 - the harness has no types
    import difflib

    known = set(manager.all_tasks)
    problems = []
    for task in tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=3)
            remedy = f"Did you mean {' or '.join(near)}?" if near else "List them with `lm-eval ls tasks`."
            problems.append(Problem(where="eval.lm_eval", found=f"no task {task!r}", remedy=remedy))
    if problems:
        raise UserError(*problems)


def _load(plan: Plan, run_dir: Path) -> tuple[Any, Any]:
    import torch
    from peft import PeftModel

    from orchestrator.train.model import load_base
    from orchestrator.train.rows import load_tokenizer
    from orchestrator.train.settings import TrainSettings

    adapter = run_dir / "adapter"
    if not adapter.is_dir():
        remedy = "Let the run end first, or continue it with resume=true."
        raise UserError(Problem(where=str(adapter), found="the run has written no adapter", remedy=remedy))
    strategy, config = plan.chosen.strategy, plan.run_config
    settings = TrainSettings(
        run_dir=run_dir,
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cuda", 0) if plan.device_kind == "gpu" else torch.device("cpu"),
        engine="ddp",
        precision=strategy.precision,
        adapter_dtype=strategy.adapter_dtype,
        quant_storage="uint8",
        checkpointing="none",
        shares=(1,),
        micro=(1,),
        accumulation=1,
    )
    model = PeftModel.from_pretrained(load_base(config.model, config.base, settings), str(adapter))
    return model.eval(), load_tokenizer(config)


def _evaluate(model: Any, tokenizer: Any, manager: Any, plan: Plan) -> dict[str, dict[str, float]]:  # noqa: ANN401
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    config = plan.run_config.eval
    rows = config.batch or min(plan.chosen.strategy.micro)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=rows, max_length=plan.chosen.strategy.seq_len)
    found = simple_evaluate(
        lm,
        tasks=list(config.lm_eval),
        task_manager=manager,
        limit=config.lm_eval_limit or None,
        log_samples=False,
        bootstrap_iters=0,
        random_seed=plan.run_config.seed,
    )
    results: Mapping[str, Mapping[str, Any]] = {} if found is None else found["results"]
    return {task: _numbers(metrics) for task, metrics in results.items()}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics by name: `acc,none` is `acc`, and a filter that is not `none` stays in it."""
    return {
        name.removesuffix(",none"): float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and "," in name and _STDERR not in name
    }


def main() -> int:
    """Evaluate and write `lm_eval.json`; the summary of the run gets the same under `lm_eval`."""
    die_with_parent()
    try:
        path = plan_path(sys.argv[1:])
        plan = read_plan(path)
        set_environment(plan)
        quiet_libraries()
        from orchestrator.train.run_files import write_json

        found = run_harness(plan, path.parent)
        write_json(path.parent / RESULT, found)
        _into_summary(path.parent, found)
    except UserError as error:
        os.environ["RANK"] = "0"
        report(error)
        return int(ExitCode.BAD_INPUT)
    return 0


def _into_summary(run_dir: Path, found: Mapping[str, Any]) -> None:
    from orchestrator.run_dir import read_json
    from orchestrator.train.run_files import write_json

    summary = read_json(run_dir / "summary.json")
    if summary is not None:
        write_json(run_dir / "summary.json", {**summary, "lm_eval": dict(found)})


if __name__ == "__main__":
    sys.exit(main())
