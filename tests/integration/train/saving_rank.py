"""One of two ranks whose saver has a disk that rank 0 alone sees fail: `saving_rank.py FOLDER`."""

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist

from orchestrator.config import CheckpointConfig
from orchestrator.errors import RunStopped
from orchestrator.train.checkpoint import Checkpoint, CheckpointStore
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.newest import open_newest
from orchestrator.train.run_files import EventLog
from orchestrator.train.saving import Saver


def main(root: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    group = MetricsGroup(cast("Any", SimpleNamespace(world_size=dist.get_world_size())))
    store = CheckpointStore(root / "checkpoints", keep=2)
    config = CheckpointConfig(every=2, max_lost_minutes=1)
    events = EventLog(root, enabled=rank == 0)
    is_main = rank == 0
    said: list[str] = []
    saver = Saver(config, store, group, events, is_main=is_main, say=said.append, beat=lambda: None)
    try:
        for step in range(1, 100):
            due, lost = group.sum(saver.flags(step, 10.0))
            if lost:
                saver.end_if_lost(True)
            if due:
                saver.save(step, partial(checkpoint, step), last=False)
            if is_main:
                saver._writer.wait()
            if step == 4:
                break_disk(root / "checkpoints")
    except RunStopped as error:
        print(f"rank {rank} ended at step {step}: {error}", flush=True)
    if is_main:
        (root / "checkpoints").unlink()
        (root / "kept").rename(root / "checkpoints")
    found = open_newest(store, group, events, is_main=is_main, say=said.append)
    print(f"rank {rank} goes on from {found and found[1].step}", flush=True)
    dist.destroy_process_group()


def checkpoint(step: int) -> Checkpoint:
    """Both ranks take part, as with a sharded engine."""
    total = torch.tensor([float(step)])
    dist.all_reduce(total)
    return Checkpoint(step=step, parameters={"a": total}, moments={}, rng={}, state={})


def break_disk(folder: Path) -> None:
    """From now on the folder is a file, in which nothing can be written."""
    if dist.get_rank() == 0:
        folder.rename(folder.with_name("kept"))
        folder.write_text("")
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
