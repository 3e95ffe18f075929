"""The guard after the first step: what of the base lives on this rank, against the plan.

Sharding and offloading fail in silence: a hook that did not fire, a threshold in the wrong unit, a library that ignores
a key. The run then trains, until memory is full or never, on more bytes than were planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.config import Engine, Offload
from orchestrator.engines.live import Named, base_by_place, base_bytes, count_bytes
from orchestrator.errors import Problem, RunFailed
from orchestrator.planner.plan import Plan
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import EventLog
from orchestrator.train.settings import TrainSettings
from topology.units import MIB, format_bytes

_TOLERANCE: Final = 0.05
_SLACK_BYTES: Final = MIB  # alignment and small tensors of a tiny model
_OFFLOADED: Final = "offloaded_base"  # term of the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of the frozen base on one rank, by where they lie.

    Attributes:
        device: on the device.
        host: in host memory, where that is another one.
    """

    device: int
    host: int = 0

    @property
    def total(self) -> int:
        """On either."""
        return self.device + self.host


def planned_base(plan: Plan, rank: int) -> Held:
    """What the plan says that a rank holds of the base between uses, and of layers that are whole meanwhile."""
    strategy, train = plan.chosen.strategy, plan.chosen.estimate.memory.train
    terms = {term.name: term.bytes for term in train.terms}
    device, host = base_bytes(terms), 0
    if strategy.streamed is not None:
        # `base_shard` is that of the tightest ranks; the cut is known for each.
        share = strategy.streamed.shares[rank]
        device += share.device + strategy.streamed.resident_bytes - terms.get("base_shard", 0)
        host = share.host
    if plan.device_kind == "gpu":
        host = max(host, sum(term.bytes for term in train.host_terms if term.name == _OFFLOADED))
    else:
        device += sum(term.bytes for term in train.host_terms if term.name == _OFFLOADED)
    return Held(device=device, host=host)


def check_base(plan: Plan, rank: int, live: Mapping[str, int], found: Held) -> Problem | None:
    """Say what is wrong with the base of a rank; None where it is as planned.

    Args:
        plan: what was planned.
        rank: whose.
        live: measured bytes by term.
        found: measured bytes of the base by place.
    """
    planned = planned_base(plan, rank)
    most = planned.device * (1 + _TOLERANCE) + _SLACK_BYTES
    if found.device <= most:
        return None
    strategy = plan.chosen.strategy
    offload = strategy.zero3 is not None and strategy.zero3.offload_param is not Offload.none
    failed = "offloading" if offload and plan.device_kind == "gpu" else "sharding"
    if strategy.engine is Engine.ddp:
        failed = "quantising"
    terms = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in live.items() if base_bytes({name: nbytes}))
    return Problem(
        where=f"rank {rank}, after the first step",
        found=f"{format_bytes(found.device)} of the base live on the device ({terms}), {format_bytes(planned.device)} "
        f"were planned: {failed} has not taken effect",
        remedy="Do not trust this plan's memory: see the versions in the log, or use engine=ddp.",
    )


def guard_base(plan: Plan, settings: TrainSettings, group: MetricsGroup, events: EventLog, named: Named) -> None:
    """Stop if the base takes more of a rank's device than was planned; collective.

    Raises:
        RunFailed: with the numbers of each such rank.
    """
    if settings.world_size != plan.chosen.strategy.world_size:
        events.add("base_not_checked", why="another number of ranks runs than was planned")
        return
    places, kind = base_by_place(named), settings.device.type
    held = Held(device=places.get(kind, 0), host=sum(places.values()) - places.get(kind, 0))
    problems = group.gather(check_base(plan, settings.rank, count_bytes(named), held))
    found = [problem for problem in problems if problem is not None]
    if found:
        raise RunFailed(*found)
    events.add("base_checked", planned_bytes=planned_base(plan, settings.rank).device, found_bytes=held.device)
