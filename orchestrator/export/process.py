"""The part of an export that needs torch, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from launch.parent_death import die_with_parent
from orchestrator.errors import Problem, RunFailed
from orchestrator.launch_inputs import told_error

MODULE: Final = "orchestrator.merge.worker"
RESULT_PREFIX: Final = "trainmaster-result: "
_LINES_SHOWN: Final = 5
_PACKAGES: Final = Path(__file__).resolve().parents[2]


def run_worker(request: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Start the worker, pass on what it says, and return its result.

    Raises:
        UserError: what it tells of.
        RunFailed: it ended without a result.
    """
    paths = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", MODULE, json.dumps(request)]
    last: list[str] = []
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads here; nothing may go on without us
    ) as process:
        try:
            for line in process.stdout or ():
                _raise_told(line)
                if line.startswith(RESULT_PREFIX):
                    result: dict[str, Any] = json.loads(line.removeprefix(RESULT_PREFIX))
                    return result
                if line.startswith("export: "):
                    say(line.rstrip())
                else:
                    last.append(line.rstrip())
        except BaseException:
            process.kill()
            raise
    raise RunFailed(_died(process.returncode, last))


def _raise_told(line: str) -> None:
    error = told_error(line)
    if error is not None:
        raise error


def _died(code: int, last: list[str]) -> Problem:
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    told = " | ".join(line for line in last[-_LINES_SHOWN:] if line.strip())
    remedy = "Nothing was left behind."
    if code == -signal.SIGKILL:
        remedy += " If memory ran out, the largest tensor in fp32, three times, is what must fit."
    return Problem(where="export", found=f"the writing process ended by {by}. Last lines: {told}", remedy=remedy)
