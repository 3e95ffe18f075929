"""One rank of a whole run: `python planned_rank.py PLAN...`, one run after the other, with the engine in its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launch.parent_death import die_with_parent
from orchestrator.engines.base import Engine
from orchestrator.engines.streamed import StreamedEngine, cut_of_shares
from orchestrator.planner.plan import Plan
from orchestrator.train import loop
from orchestrator.train.rank import run_rank
from orchestrator.train.settings import TrainSettings
from orchestrator.train.worker import quiet_libraries, read_plan, set_environment
from orchestrator.weights.cut import Tier

SHARES = ({Tier.device: 50, Tier.host: 20}, {Tier.device: 30})


def streamed(_plan: Plan, settings: TrainSettings, _group: object) -> Engine:
    return StreamedEngine(cut_of_shares(SHARES), 2, device=settings.device, group=dist.new_group(backend="gloo"))


def main() -> None:
    die_with_parent()
    port = int(os.environ["MASTER_PORT"])
    plain: Any = loop.make_engine
    for at, argument in enumerate(sys.argv[1:]):
        path = Path(argument)
        plan = read_plan(path)
        set_environment(plan)
        quiet_libraries()
        os.environ["MASTER_PORT"] = str(port + at)
        loop.make_engine = streamed if "streamed" in path.parent.name else plain
        torch.manual_seed(0)
        run_rank(plan, path.parent)


if __name__ == "__main__":
    main()
