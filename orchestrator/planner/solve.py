"""One search from start to end: configuration, machine, model and data to what fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.calibration_file import Calibration
from orchestrator.config import Engine, RunConfig
from orchestrator.estimate.base import whole_bytes
from orchestrator.estimate.calibration import DEVICE_FILL
from orchestrator.planner.evaluate import Job
from orchestrator.planner.explore import Refused
from orchestrator.planner.rank_lists import with_rank_lists
from orchestrator.planner.rates import memory_of
from orchestrator.planner.search import Found, search
from orchestrator.planner.setback_worlds import with_setbacks
from orchestrator.planner.setbacks import Setbacks
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.variants import closed_of, jobs_of
from orchestrator.planner.world import World
from orchestrator.workload.batch import DataStats
from orchestrator.workload.model import ModelShape
from topology.model import DeviceKind, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that a search depends on; without a `calibration`, tables tell what devices reach."""

    config: RunConfig
    topology: Topology
    model: ModelShape
    data: DataStats
    calibration: Calibration | None = None
    counts: tuple[int, ...] = ()  # ranks of each host, where the user says so
    setbacks: Setbacks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was searched, where, and what was found.

    Attributes:
        jobs: one for each choice of packing and optimizer that was open.
        worlds: parts of the machine; the first is the largest.
        found: what fits, and what does not.
    """

    jobs: tuple[Job, ...]
    worlds: tuple[World, ...]
    found: Found

    @property
    def job(self) -> Job:
        """That of the best point; the first one where nothing fits."""
        return self.jobs[0] if self.found.job is None else self.found.job


def cannot_fit(asked: Asked) -> bool:
    """Whether a search is needless: a whole copy on each GPU is asked for, and the base alone is larger than any.

    Rows, adapters and all else come on top, so nothing that fits is missed.
    """
    devices = [device for host in asked.topology.hosts for device in host.devices if device.kind is DeviceKind.gpu]
    if asked.config.engine.name is not Engine.ddp or not devices:
        return False
    wanted = asked.config.base
    least = whole_bytes(asked.model, wanted.quant, wanted.double_quant)
    return least > DEVICE_FILL.value * max(memory_of(device) for device in devices)


def solve(asked: Asked) -> Solution:
    """Search all parts of the machine, with every choice of packing and optimizer that is open.

    Raises:
        UserError: what was asked for is not there (devices, module names), or contradicts itself.
    """
    config, model, data = asked.config, asked.model, asked.data
    worlds = with_rank_lists(config, choose_worlds(config, asked.topology, asked.calibration, asked.counts))
    worlds = with_setbacks(worlds, asked.setbacks)
    jobs = jobs_of(config, model, data, is_gpu=worlds[0].is_gpu)
    found = search(jobs, worlds)
    closed = tuple(Refused(strategy=entry.choice, reason=entry.reason) for entry in closed_of(config, model, data))
    return Solution(jobs=jobs, worlds=worlds, found=replace(found, refused=(*found.refused, *closed)))
