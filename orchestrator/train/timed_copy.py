"""How fast bytes go from the host to the device of this rank."""

from __future__ import annotations

import time
from typing import Final

import torch

_BYTES: Final = 64 * 2**20
_COPIES: Final = 4  # the first one warms up


def copy_bytes_per_second(device: torch.device) -> float | None:
    """Time a few copies of 64 MiB and return the rate of the fastest; None where there is no room for them.

    Host memory is pinned, so that the link is what limits. On a CPU it is a copy within its memory.
    """
    on_gpu = device.type == "cuda"
    try:
        source = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=on_gpu)
        target = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    except RuntimeError:  # out of memory is one, too
        return None
    seconds = []
    for _ in range(_COPIES):
        if on_gpu:
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source, non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return _BYTES / min(seconds[1:])
