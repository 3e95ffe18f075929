"""Copies data to one GPU for a while, in a process of its own: `python -m orchestrator.doctor.load UUID SECONDS`.

Prints lines of JSON: {"event": "stage", "stage": "torch"} before torch is imported, the same with "cuda" before CUDA
is started, {"event": "start", ...} when the copies begin, {"event": "end", "bytes_per_second": ...} when they are done,
and {"event": "failed", "reason": ...} where torch raises. The parent looks at the link between start and end. Host
memory is pinned, so that the link is what limits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import IO, Any

from launch.parent_death import die_with_parent

_BUFFER_BYTES = 256 * 2**20
_WARM_UP = 3
_IN_FLIGHT = 4  # copies queued between two looks at the clock


_MOST_LETTERS = 300


def main(arguments: list[str]) -> int:
    """Copy for the seconds given; returns the exit code, 1 where torch cannot use the GPU."""
    die_with_parent()
    uuid, seconds = arguments[0], float(arguments[1])
    # Libraries that greet on standard output must not get between our lines.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as lines:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            _copy(uuid, seconds, lines)
        except Exception as error:  # noqa: BLE001 - whatever torch raises is what the parent wants to know
            # CUDA errors go over many lines, of which the last says nothing.
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_LETTERS]
            _say(lines, event="failed", reason=reason)
            return 1
    return 0


def _copy(uuid: str, seconds: float, lines: IO[str]) -> None:
    # Set before CUDA starts: it then sees this GPU only, whatever the order and the user's own choice.
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    _say(lines, event="stage", stage="torch")
    import torch

    _say(lines, event="stage", stage="cuda")
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU {uuid}{_why_none(torch)}")
    host = torch.empty(_BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_BUFFER_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(_WARM_UP):
        device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    _say(lines, event="start", archs=torch.cuda.get_arch_list())
    begin, copies = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(_IN_FLIGHT):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        copies += _IN_FLIGHT
    elapsed = time.perf_counter() - begin
    _say(lines, event="end", bytes_per_second=copies * _BUFFER_BYTES / elapsed)


def _why_none(torch: Any) -> str:  # noqa: ANN401 - the module, or what stands in for it
    """`is_available` keeps the reason to itself; starting CUDA tells it."""
    try:
        torch.cuda.init()
    except AttributeError:
        return ""
    except Exception as error:  # noqa: BLE001 - any kind of refusal
        return f": {error}"
    return ""


def _say(lines: IO[str], **fields: Any) -> None:  # noqa: ANN401 - any part of JSON
    print(json.dumps(fields), file=lines, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
