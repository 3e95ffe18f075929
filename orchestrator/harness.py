"""After a run: the LM evaluation harness in a process of its own, whose failure does not fail the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.config import RunConfig
from orchestrator.run_dir import read_json

MODULE: Final = "orchestrator.train.harness"
_ERROR: Final = "trainmaster-error: "  # as the ranks write it, too


def is_wanted(config: RunConfig) -> bool:
    """Whether tasks are asked for."""
    return config.eval.lm_eval != ("none",)


def command_of(run_dir: Path) -> list[str]:
    """The command that evaluates a finished run, here or on another host."""
    return [sys.executable, "-m", MODULE, str(run_dir / "plan.json")]


def run_harness(run_dir: Path, summary: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Evaluate the run's adapter; returns its summary with the result under `lm_eval`.

    What the process prints goes to `logs/lm_eval.log`; of a failure the reason is said, and how to try again.
    """
    log = run_dir / "logs" / "lm_eval.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"running the LM evaluation harness (log: {log})")
    command = command_of(run_dir)
    with log.open("w", encoding="utf-8") as stream:
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False, env=environment).returncode  # noqa: S603
    if code == 0:
        found = read_json(run_dir / "summary.json")
        return dict(summary) if found is None else found
    say(f"the harness failed: {_reason(log)}\nthe run itself is done; again: {' '.join(command)}")
    return dict(summary)


def _reason(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for line in lines:
        if line.startswith(_ERROR):
            problems = json.loads(line.removeprefix(_ERROR))["problems"]
            return "; ".join(f"{one['where']}: {one['found']}. {one['remedy']}" for one in problems)
    return lines[-1] if lines else "it said nothing"
