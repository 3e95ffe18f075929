"""Copies data to one GPU for a while, in a process of its own: `python -m orchestrator.doctor.load UUID SECONDS`.

Prints two lines of JSON: {"event": "start", ...} when the copies begin, {"event": "end", "bytes_per_second": ...} when
they are done. The parent looks at the link between the two. Host memory is pinned, so that the link is what limits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from launch.parent_death import die_with_parent

_BUFFER_BYTES = 256 * 2**20
_WARM_UP = 3
_IN_FLIGHT = 4  # copies queued between two looks at the clock


def main(arguments: list[str]) -> int:
    """Copy for the seconds given; returns the exit code, 1 where torch cannot use the GPU."""
    die_with_parent()
    uuid, seconds = arguments[0], float(arguments[1])
    # Set before CUDA starts: it then sees this GPU only, whatever the order and the user's own choice.
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    import torch

    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU {uuid}", file=sys.stderr)
        return 1
    host = torch.empty(_BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_BUFFER_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(_WARM_UP):
        device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    _say(event="start", archs=torch.cuda.get_arch_list())
    begin, copies = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(_IN_FLIGHT):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        copies += _IN_FLIGHT
    elapsed = time.perf_counter() - begin
    _say(event="end", bytes_per_second=copies * _BUFFER_BYTES / elapsed)
    return 0


def _say(**fields: Any) -> None:  # noqa: ANN401 - any part of JSON
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
