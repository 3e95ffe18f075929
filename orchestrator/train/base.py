"""Who holds the base of a run, and loading it: the same one on all ranks."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from orchestrator.config import RunConfig
from orchestrator.engines.base import Engine
from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.zero3 import Zero3Engine
from orchestrator.errors import Problem, UserError
from orchestrator.lower import deepspeed_json
from orchestrator.planner.plan import Plan
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.identity import base_checksum
from orchestrator.train.model import load_base
from orchestrator.train.run_files import EventLog
from orchestrator.train.settings import TrainSettings
from orchestrator.train.streamed import Stream, make_streamed, plan_for


def make_engine(plan: Plan, settings: TrainSettings, group: MetricsGroup) -> Engine:
    """Return the engine of the chosen strategy; all ranks call this.

    Raises:
        UserError: on all ranks, if one of them cannot build the plan's schedule.
    """
    streamed = plan.chosen.strategy.streamed
    if streamed is not None:
        return make_streamed(plan_for(streamed, settings.world_size), plan.chosen.strategy, settings, group)
    if settings.engine != "zero3":
        return DdpEngine()
    body = deepspeed_json(plan)
    # Another number of ranks than planned changes these two; the global batch stays.
    body["train_micro_batch_size_per_gpu"] = max(settings.micro)
    body["gradient_accumulation_steps"] = settings.accumulation
    return Zero3Engine(body)


def load_same_base(
    config: RunConfig,
    settings: TrainSettings,
    group: MetricsGroup,
    *,
    stream: Stream | None,
    key: str,
    say: Callable[[str], None],
    events: EventLog,
) -> PreTrainedModel:
    """Load the base, and make sure that all ranks hold the same one, since nothing is broadcast; collective.

    Args:
        config: which base.
        settings: how this rank holds it.
        group: of all ranks.
        stream: loads it in shards; None for whole ones.
        key: of the files, as this rank's host has them.
        say: told the progress.
        events: told the checksum.

    Raises:
        UserError: the ranks hold different ones.
    """
    base: PreTrainedModel | None = None
    if stream is None:
        base = load_base(config.model, config.base, settings)
        key = base_checksum(base)
    # A rank that streams holds pieces only, so the files that they are cut from must be the same ones.
    sums = group.gather(key)
    if len(set(sums)) > 1:
        raise UserError(
            Problem(
                where="model.path",
                found=f"the ranks loaded different weights from {config.model.path}",
                remedy="Give every host the same files, or a revision of the hub id.",
            )
        )
    if base is None and stream is not None:
        base = stream.load(config, say)
    if base is None:
        raise RuntimeError("no base was loaded")
    events.add("base_loaded", checksum=sums[0], world_size=settings.world_size)
    return base
