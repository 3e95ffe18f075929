"""Sums the gradients of a run as its plan says: by torch's own all-reduce, or by a schedule of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.collectives.execute import Executor, Pieces
from orchestrator.collectives.hook import attach, mean_of_bucket
from orchestrator.engines.gradient_route import schedule_of
from orchestrator.errors import Problem, UserError
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.planner.plan import Plan
from orchestrator.train.groups import TIMEOUT, MetricsGroup
from topology.codec import from_json
from topology.errors import TopologyError
from topology.model import Topology
from topology.routing.software import Runner

Built = TypeVar("Built")

TOPOLOGY_FILE: Final = "topology.json"


class GradientSum:
    """Who sums this rank's gradients, and what that took."""

    def __init__(self, route: GradientRoute | None, note: str = "", executor: Executor | None = None) -> None:
        """Take the plan's route, why it is not followed (if so), and the executor that follows it."""
        self.route, self.note, self.executor = route, note, executor
        self.seconds: float | None = None

    @property
    def why(self) -> str:
        """Who sums them, and why, in one sentence."""
        return self.note or ("one rank" if self.route is None else self.route.why)

    def follow(self, model: nn.Module) -> None:
        """Go on with a model that was wrapped anew; all ranks call this."""
        if self.executor is not None and isinstance(model, DistributedDataParallel):
            model.register_comm_hook(self.executor, mean_of_bucket)

    def end(self, group: MetricsGroup) -> None:
        """End the executor after the last step, and learn what all sums took; all ranks call this.

        A rank that is early waits for the others: of each sum, the shortest time of a rank counts.
        """
        if self.executor is not None:
            self.executor.close()
            taken = self.executor.run_seconds
            self.seconds = -sum(group.max([-seconds for seconds in taken])) if taken else None

    def summary(self, num_steps: int) -> dict[str, Any] | None:
        """Return route, prediction and measured seconds of a step's gradients; None for one rank."""
        if self.route is None:
            return None
        executor = self.executor
        is_followed = executor is not None or self.route.runner is not Runner.executor
        measured = self.seconds / num_steps if self.seconds is not None and num_steps else None
        return {
            "runner": (Runner.builtin if executor is None else Runner.executor).value,
            "algorithm": self.route.algorithm if is_followed else "",
            "pieces": self.route.pieces if executor is not None else None,
            "why": self.why,
            "gradient_bytes": self.route.nbytes or None,
            "predicted_seconds": self.route.seconds if is_followed else None,
            "predicted_builtin_seconds": self.route.builtin_seconds,
            "measured_seconds": measured,
            "buffer_bytes": executor.pool_bytes if executor is not None else 0,
        }


def sum_gradients(plan: Plan, run_dir: Path, group: MetricsGroup, model: nn.Module) -> GradientSum:
    """Make the wrapped model's gradients go the plan's way, from the next backward pass on; all ranks call this.

    Raises:
        UserError: on all ranks, if one of them cannot build the plan's schedule.
    """
    strategy = plan.chosen.strategy
    route = strategy.gradient_route
    if route is None or route.runner is not Runner.executor:
        return GradientSum(route)
    if group.world_size != strategy.world_size or not isinstance(model, DistributedDataParallel):
        note = f"{group.world_size} ranks run, {strategy.world_size} were planned: torch's own all-reduce is used"
        return GradientSum(route, note)
    schedule = agreed(partial(schedule_of, strategy), run_dir / TOPOLOGY_FILE, group, "engine.gradient_route")
    # A group of its own: other collectives must not come between the sends of a schedule.
    own = dist.new_group(timeout=TIMEOUT)
    return GradientSum(route, executor=attach(model, schedule, own, Pieces(piece_bytes=route.piece_bytes)))


def agreed(build: Callable[[Topology], Built], path: Path, group: MetricsGroup, key: str) -> Built:
    """What this rank makes of the run's topology; a rank that cannot ends all of them, before they wait for it.

    Args:
        build: from the run's topology.
        path: of that.
        group: of all ranks.
        key: of the configuration, that leaves schedules of ours out.

    Raises:
        UserError: on all ranks, if one of them cannot.
    """
    built: Built | None = None
    problems: tuple[Problem, ...] = ()
    try:
        built = build(from_json(json.loads(path.read_text(encoding="utf-8"))))
    except UserError as error:
        problems = error.problems
    except (OSError, ValueError, TopologyError) as error:
        found = getattr(error, "strerror", None) or str(error)
        remedy = f"Write it with `trainmaster plan run_dir=RUN_DIR`, or use {key}=library"
        problems = (Problem(where=str(path), found=found, remedy=remedy),)
    told = dict.fromkeys(problem for each in group.gather(problems) for problem in each)
    if told or built is None:
        raise UserError(*told)
    return built
