"""Planning needs no torch, no driver and little time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
SCRIPT = """
import sys
import orchestrator.lower, orchestrator.planner.build, orchestrator.planner.explain, orchestrator.workload.headers
heavy = {"torch", "numpy", "scipy", "transformers", "deepspeed", "pynvml", "subprocess", "socket"} & set(sys.modules)
print(sorted(heavy))
"""


def test_imports_stay_light() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
