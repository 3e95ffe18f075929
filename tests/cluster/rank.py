"""A rank that needs no model: tells where it is, adds up with the others, and does what MODE says.

It imports torch only where ranks add up. Files go to the working directory, the run directory.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from launch.parent_death import die_with_parent

NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG",
    "OMP_NUM_THREADS",
    "GLOO_SOCKET_IFNAME", "SLURMD_NODENAME", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID",
)  # fmt: skip


def main(mode: str) -> None:
    """Do as told.

    `add`, `tell`, `wait` (for ever, whatever signal comes), `once` (wait in the first start only) or `stop` (in the
    first start wait to be asked, as a training rank does at the boundary of a step).
    """
    die_with_parent()
    body = {name: os.environ.get(name) for name in NAMES}
    body["addresses"] = [item.address for found in psutil.net_if_addrs().values() for item in found]
    body["pid"] = os.getpid()
    if mode == "add":
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        body["sum"] = value.item()
        dist.destroy_process_group()
    restart = body["SLURM_RESTART_COUNT"] or "0"
    path = Path(f"rank-{body['RANK']}.{restart}.json")
    path.with_suffix(".new").write_text(json.dumps(body))
    path.with_suffix(".new").rename(path)
    print(f"rank {body['RANK']} of {body['WORLD_SIZE']} on {body['SLURMD_NODENAME'] or 'a host'}", flush=True)
    if mode == "wait" or (mode == "once" and restart == "0"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    if mode == "stop" and restart == "0":
        wait_to_be_asked()
        Path("summary.json").write_text(json.dumps({"status": "stopped", "steps": 1, "planned_steps": 2}, indent=2))
    elif body["RANK"] == "0":
        Path("summary.json").write_text(json.dumps({"status": "done"}, indent=2))


def wait_to_be_asked() -> None:
    """Return after SIGTERM, or when the stop file is there."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    while not asked and not Path("stop").exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
