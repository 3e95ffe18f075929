"""One search from start to end: configuration, machine, model and data to what fits."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Padding, RunConfig
from orchestrator.planner.evaluate import Job
from orchestrator.planner.search import Found, search
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.world import World
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import DataStats, batch_shape
from orchestrator.workload.model import ModelShape
from topology.model import Topology

_USUAL_LENGTH = 2048  # tokens a row is cut at unless the user or the model says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that a search depends on."""

    config: RunConfig
    topology: Topology
    model: ModelShape
    data: DataStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was searched, where, and what was found; the first of `worlds` is the largest."""

    job: Job
    worlds: tuple[World, ...]
    found: Found


def job_of(asked: Asked) -> Job:
    """Adapters and batches in numbers.

    Raises:
        UserError: a target of the adapters names no module.
    """
    config = asked.config
    seq_len = sequence_length(config, asked.model)
    batch = batch_shape(
        asked.data,
        seq_len=seq_len,
        packing=config.data.packing,
        pads_to_seq_len=config.data.seq_len is not None,
        static=config.data.padding is Padding.static,
    )
    adapter = adapter_shape(asked.model, config.adapter)
    return Job(config=config, model=asked.model, adapter=adapter, batch=batch, seq_len=seq_len)


def solve(asked: Asked) -> Solution:
    """Search all parts of the machine.

    Raises:
        UserError: what was asked for is not there (devices, module names), or contradicts itself.
    """
    worlds = choose_worlds(asked.config, asked.topology)
    job = job_of(asked)
    return Solution(job=job, worlds=worlds, found=search(job, worlds))


def sequence_length(config: RunConfig, model: ModelShape) -> int:
    """Tokens a row is cut at: the user's number, or 2048 where the model takes as many.

    Estimated lengths have no say in it, or a low estimate would cut rows.
    """
    if config.data.seq_len is not None:
        return config.data.seq_len
    return min(_USUAL_LENGTH, model.max_positions or _USUAL_LENGTH)
