"""One rank of a model in DDP; rank 1 computes longer. Prints what each step was made of."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.train.waits import StepWaits

STEPS, MICRO = 6, 2
LONGER_SECONDS = 0.08


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    accelerator = SimpleNamespace(backward=lambda loss: loss.backward(), gather=lambda value: value)
    ones = torch.ones(1)
    group = SimpleNamespace(sum=lambda: dist.all_reduce(ones), max=lambda: None)
    waits = StepWaits(model, list(model.parameters()), torch.device("cpu"), dist.get_world_size())
    waits.attach(accelerator, group)
    steps = []
    value = torch.randn(8, 64)
    group.sum()
    waits.restart()
    began = time.perf_counter()
    for _ in range(STEPS):
        for micro in range(MICRO):
            loss = model(value).sum()
            if rank == 1:
                busy(LONGER_SECONDS / MICRO)
            if micro + 1 < MICRO:
                with model.no_sync():
                    accelerator.backward(model(value).sum())
            else:
                accelerator.backward(loss)
        now = time.perf_counter()
        seconds, communication = waits.take(now - began)
        steps.append((now - began, seconds, communication))
        began = now
        group.sum()
    print(json.dumps([rank, steps]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)
