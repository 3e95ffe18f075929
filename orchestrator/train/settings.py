"""What one rank needs to know, derived once from the plan and the launcher's variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from orchestrator.errors import UserError
from orchestrator.planner.plan import Plan
from orchestrator.train.sampler import even_shares, num_micro_steps
from orchestrator.train.started import size_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The plan as one rank sees it.

    Attributes:
        shares: rows of a global batch for each rank; they sum to the global batch.
        micro: most rows in one forward pass, for each rank.
        accumulation: forward passes per optimizer step, the same on every rank.
        recomputed_layers: how many layers, from the first on, `checkpointing` is for; None for all.
    """

    run_dir: Path
    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    engine: str
    precision: str
    adapter_dtype: str
    quant_storage: str
    checkpointing: str
    shares: tuple[int, ...]
    micro: tuple[int, ...]
    accumulation: int
    recomputed_layers: int | None = None

    @property
    def is_zero3(self) -> bool:
        """Whether DeepSpeed partitions the parameters."""
        return self.engine == "zero3"

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.rank == 0

    @property
    def global_batch(self) -> int:
        """Rows per optimizer step over all ranks."""
        return sum(self.shares)


def settings_from(plan: Plan, run_dir: Path) -> TrainSettings:
    """Combine the plan with the launcher's variables.

    A user may start another number of ranks than planned: the global batch is kept and shared
    out again.

    Raises:
        UserError: the plan cannot be run by so many ranks.
    """
    strategy = plan.chosen.strategy
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    shares, micro = tuple(strategy.shares), tuple(strategy.micro)
    problem = size_problem(plan, world_size)
    if problem is not None:
        raise UserError(problem)
    if world_size != len(shares):
        shares = even_shares(sum(shares), world_size)
        micro = (max(strategy.micro),) * world_size
    on_gpu = plan.device_kind == "gpu"
    return TrainSettings(
        run_dir=run_dir,
        rank=int(os.environ.get("RANK", "0")),
        local_rank=local_rank,
        world_size=world_size,
        device=torch.device("cuda", local_rank) if on_gpu else torch.device("cpu"),
        engine=strategy.engine.value,
        precision=strategy.precision,
        adapter_dtype=strategy.adapter_dtype,
        quant_storage=strategy.quant_storage,
        checkpointing=strategy.checkpointing.value,
        shares=shares,
        micro=micro,
        accumulation=num_micro_steps(shares, micro),
        recomputed_layers=None if strategy.recomputed is None else strategy.recomputed.layers,
    )
