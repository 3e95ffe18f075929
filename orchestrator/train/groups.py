"""Process groups by purpose, and the few collectives the loop needs for itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.train.settings import TrainSettings

TIMEOUT = timedelta(minutes=30)


class MetricsGroup:
    """Small host-side collectives in a group of their own, apart from gradients and gathers."""

    def __init__(self, settings: TrainSettings) -> None:
        """Open a gloo group over all ranks when there is more than one."""
        self.world_size = settings.world_size
        self._group = dist.new_group(backend="gloo") if settings.world_size > 1 else None

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums over ranks, in double precision."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: list[float]) -> list[float]:
        """Return the maxima over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: list[float], op: Any) -> list[float]:  # noqa: ANN401
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op, group=self._group)
        return [float(value) for value in tensor]

    def gather(self, value: object) -> list[Any]:
        """Return one picklable value of each rank, in rank order, on every rank."""
        if self._group is None:
            return [value]
        out: list[Any] = [None] * self.world_size
        dist.all_gather_object(out, value, group=self._group)
        return out

    def from_main(self, value: object) -> Any:  # noqa: ANN401
        """Return rank 0's value on every rank."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def barrier(self) -> None:
        """Wait for every rank."""
        if self._group is not None:
            dist.barrier(group=self._group)


def open_process_group(settings: TrainSettings) -> None:
    """Join the default group from the launcher's variables."""
    if settings.world_size == 1 or dist.is_initialized():
        return
    on_gpu = settings.device.type == "cuda"
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        timeout=TIMEOUT,
        device_id=settings.device if on_gpu else None,
    )


def close_process_group() -> None:
    """Leave the groups, so that no rank warns about leaked ones."""
    if dist.is_initialized():
        dist.destroy_process_group()
