"""What ended the loading of a model, from a library that keeps the causes only as text.

transformers 5 converts weights one by one, stores what each attempt raised as text in its loading report and ends
with a RuntimeError that names none of them. The report is a local of the frame that raises.
"""

from __future__ import annotations

from typing import Any

import torch

from orchestrator.planner.setbacks import DEVICE
from orchestrator.recovery.memory_errors import memory_line, where_of


def memory_error_told(error: Exception) -> Exception | None:
    """Return an error that says that memory ran out, where the report of the loading holds one."""
    line = next(filter(None, map(memory_line, _conversions(error))), None)
    if line is None:
        return None
    return torch.OutOfMemoryError(line) if where_of(RuntimeError(line)) == DEVICE else MemoryError(line)


def reason_of(error: Exception) -> str:
    """Return in one line why a model could not be loaded: what the report holds, or the error itself."""
    for told in _conversions(error):
        ends = [line.strip() for line in told.splitlines() if line and not line[0].isspace()]
        words = [line for line in ends if ": " in line and not line.startswith(("Traceback", "Error"))]
        if words:
            return words[-1]
    first = (str(error).strip().splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {first}"


def _conversions(error: Exception) -> list[str]:
    """The printed tracebacks of the conversions that failed."""
    found: Any = None
    trace = error.__traceback__
    while trace is not None:
        found = trace.tb_frame.f_locals.get("loading_info", found)
        trace = trace.tb_next
    told = getattr(found, "conversion_errors", None)
    return [str(text) for text in told.values()] if isinstance(told, dict) else []
