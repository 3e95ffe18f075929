"""After a run: the LM evaluation harness in a process of its own, whose failure does not fail the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Final

from launch import environment
from launch.spec import DeviceKind, LaunchSpec
from orchestrator.config import RunConfig
from orchestrator.errors import UserError
from orchestrator.planner.plan import Plan, loads
from orchestrator.run_dir import read_json

MODULE: Final = "orchestrator.train.harness"
_ERROR: Final = "trainmaster-error: "  # as the ranks write it, too
_PLACE: Final = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
_UUIDS: Final = ("GPU-", "MIG-")


def is_wanted(config: RunConfig) -> bool:
    """Whether tasks are asked for."""
    return config.eval.lm_eval != ("none",)


def command_of(run_dir: Path) -> list[str]:
    """The command that evaluates a finished run, here or on another host."""
    return [sys.executable, "-m", MODULE, str(run_dir / "plan.json")]


def environment_of(plan: Plan, run_dir: Path, users: Mapping[str, str]) -> dict[str, str]:
    """The variables of its process: those of a run's only rank, on the first device of the plan.

    Of several hosts the one that launches need not be the first, so its first device is taken, as the user shows it.
    """
    strategy, is_gpu = plan.chosen.strategy, plan.device_kind == "gpu"
    first = strategy.device_ids[:1] if is_gpu and strategy.num_nodes == 1 else ()
    spec = LaunchSpec(
        module=MODULE,
        run_dir=str(run_dir.absolute()),
        processes_per_node=1,
        env=(("PYTORCH_ALLOC_CONF", strategy.allocator),) if strategy.allocator else (),
        python=sys.executable,
        name="lm_eval",
        device_kind=DeviceKind.gpu if is_gpu else DeviceKind.cpu,
        device_ids=tuple(each for each in first if each.startswith(_UUIDS)),
        threads_per_process=strategy.threads_of(0),
    )
    return environment.merge(environment.build(spec), users)[0]


def _environment(run_dir: Path) -> dict[str, str]:
    try:
        plan = loads((run_dir / "plan.json").read_text(encoding="utf-8"))
    except (OSError, UserError):  # the process tells what is wrong with it
        return {**os.environ, "PYTHONSAFEPATH": "1"}
    return environment_of(plan, run_dir, os.environ)


def run_harness(run_dir: Path, summary: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Evaluate the run's adapter; returns its summary with the result under `lm_eval`.

    What the process prints goes to `logs/lm_eval.log`; of a failure the reason is said, and how to try again.
    """
    log = run_dir / "logs" / "lm_eval.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"running the LM evaluation harness (log: {log})")
    command, variables = command_of(run_dir), _environment(run_dir)
    with log.open("w", encoding="utf-8") as stream:
        code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False, env=variables).returncode  # noqa: S603
    if code == 0:
        found = read_json(run_dir / "summary.json")
        return dict(summary) if found is None else found
    place = [f"{name}={quote(variables[name])}" for name in _PLACE if variables.get(name)]
    say(f"the harness failed: {_reason(log)}\nthe run itself is done; again: {' '.join([*place, *command])}")
    return dict(summary)


def _reason(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for line in lines:
        if line.startswith(_ERROR):
            problems = json.loads(line.removeprefix(_ERROR))["problems"]
            return "; ".join(f"{one['where']}: {one['found']}. {one['remedy']}" for one in problems)
    return lines[-1] if lines else "it said nothing"
