"""Places of the largest magnitudes of each chunk."""

from __future__ import annotations

from typing import Final

import torch

from orchestrator.compress import select_cpu
from orchestrator.compress.select_cpu import groups_for
from orchestrator.planner.compression import CHUNK

_MAGNITUDE: Final = 0x7FFFFFFF  # all bits of an fp32 but its sign; as a whole number it grows with the magnitude
_PLACE_BITS: Final = 12
_ROWS: Final = 1024  # at a time: 32 MiB of keys


def largest(x: torch.Tensor, kept: int) -> torch.Tensor:
    """Places of the `kept` largest magnitudes of each row, ascending; of equal ones the lower place goes first.

    Args:
        x: fp32 [chunks, 4096].
        kept: of each.

    Returns:
        int64 [chunks, kept].
    """
    if x.device.type == "cpu" and x.is_contiguous() and not torch.compiler.is_compiling():
        return torch.from_numpy(select_cpu.largest(x.detach().numpy(), kept))
    return by_keys(x, kept)


def by_keys(x: torch.Tensor, kept: int) -> torch.Tensor:
    """The same on any device, in torch operations whose sizes are known beforehand.

    Sorts keys that hold the magnitude above the place counted from the end, of which no two are equal. A kernel for one
    kind of device belongs in `largest`, before this.
    """
    if not len(x):
        return torch.empty((0, kept), dtype=torch.int64, device=x.device)
    return torch.cat([_by_keys(x[begin : begin + _ROWS], kept) for begin in range(0, len(x), _ROWS)])


def _by_keys(x: torch.Tensor, kept: int) -> torch.Tensor:
    last = CHUNK - 1
    from_end = torch.arange(last, -1, -1, device=x.device)
    key = (x.view(torch.int32) & _MAGNITUDE).to(torch.int64)
    key.bitwise_left_shift_(_PLACE_BITS).bitwise_or_(from_end)
    groups = groups_for(kept)
    top = (key if groups == CHUNK else _in_best_groups(key, groups, kept)).topk(kept, dim=1, sorted=False).values
    return (last - (top & last)).sort(dim=1).values


def _in_best_groups(key: torch.Tensor, groups: int, kept: int) -> torch.Tensor:
    """Keys of the `kept` groups with the largest tops: an element elsewhere has as many above it as are kept."""
    grouped = key.view(len(key), CHUNK // groups, groups)
    best = grouped.amax(dim=1).topk(kept, dim=1, sorted=False).indices
    return grouped.gather(2, best[:, None, :].expand(-1, CHUNK // groups, -1)).view(len(key), -1)
