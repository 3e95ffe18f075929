"""The estimate of a strategy on its devices: memory of the tightest rank, time of the slowest."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Attention, RunConfig
from orchestrator.estimate.calibration import DEVICE_FILL
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time import estimate_time
from orchestrator.estimate.values import Estimate, Memory, PhaseMemory
from orchestrator.planner.strategy import Strategy
from orchestrator.planner.world import World, machine_of, memory_of
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.model import ModelShape
from topology.units import GIB, format_bytes

_SHOWN_TERMS = 3
# transformers runs these without a fused kernel unless told otherwise (the scores are soft-capped).
_EAGER_BY_DEFAULT = frozenset({"gemma2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all strategies of one plan share."""

    config: RunConfig
    model: ModelShape
    adapter: AdapterShape
    batch: BatchShape
    world: World


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An estimate, and why it does not fit (None: it does)."""

    estimate: Estimate
    misfit: str | None


def setting_of(job: Job, strategy: Strategy, rank: int) -> Setting:
    """Return what one rank does under `strategy`."""
    config = job.config
    return Setting(
        model=job.model,
        adapter=job.adapter,
        batch=job.batch,
        quant=config.base.quant,
        double_quant=config.base.double_quant,
        engine=strategy.engine,
        world_size=strategy.world_size,
        micro=strategy.micro[rank],
        rows=strategy.shares[rank],
        accumulation=strategy.accumulation,
        compute_dtype=strategy.compute_dtype,
        load_dtype=strategy.load_dtype,
        adapter_dtype=strategy.adapter_dtype,
        checkpointing=strategy.checkpointing,
        optimizer=strategy.optimizer,
        allocator=strategy.allocator,
        eager_attention=_is_eager(job),
        zero3=strategy.zero3,
        machine=machine_of(job.world, rank, strategy.precision),
        stack=config.stack.value,
    )


def _is_eager(job: Job) -> bool:
    wanted = job.config.model.attention
    return wanted is Attention.eager or (wanted is Attention.auto and job.model.architecture in _EAGER_BY_DEFAULT)


def evaluate(job: Job, strategy: Strategy) -> Verdict:
    """Estimate every kind of rank once and keep the tightest memory and the longest step."""
    kinds = {
        (job.world.devices[rank].name, job.world.devices[rank].memory_bytes, strategy.shares[rank]): rank
        for rank in reversed(range(strategy.world_size))
    }
    ranks = sorted(kinds.values())
    settings = {rank: setting_of(job, strategy, rank) for rank in ranks}
    memories = {rank: estimate_memory(setting) for rank, setting in settings.items()}
    tightest = max(ranks, key=lambda rank: _fill(job.world, rank, memories[rank]))
    slowest = max((estimate_time(setting) for setting in settings.values()), key=lambda time: time.step_seconds)
    tokens = strategy.global_batch * job.batch.real_tokens_per_row
    estimate = Estimate(
        memory=memories[tightest],
        step_seconds=slowest.step_seconds,
        tokens_per_second=tokens / slowest.step_seconds,
        lower_seconds=slowest.lower_seconds,
        upper_seconds=slowest.upper_seconds,
        time_terms=slowest.terms,
    )
    return Verdict(estimate=estimate, misfit=_misfit(job.world, tightest, memories[tightest]))


def usable_device_bytes(world: World, rank: int) -> int:
    """Device memory that a plan may fill; on a CPU the host's limit is the only one."""
    if not world.is_gpu:
        return world.host_bytes_per_rank(rank)
    return int(memory_of(world.devices[rank]) * DEVICE_FILL.value)


def _fill(world: World, rank: int, memory: Memory) -> float:
    device = memory.device_bytes / max(1, usable_device_bytes(world, rank))
    return max(device, memory.host_bytes / max(1, world.host_bytes_per_rank(rank)))


def _misfit(world: World, rank: int, memory: Memory) -> str | None:
    phases = (("while loading", memory.load), ("while training", memory.train), ("while saving", memory.save))
    if world.is_gpu:
        when, phase = max(phases, key=lambda item: item[1].device_bytes)
        device = world.devices[rank]
        if phase.device_bytes > usable_device_bytes(world, rank):
            return (
                f"needs {format_bytes(phase.device_bytes)} a card {when} ({_largest(phase)}), has "
                f"{format_bytes(memory_of(device))} ({DEVICE_FILL.value:.0%} of it usable)"
            )
    when, phase = max(phases, key=lambda item: item[1].host_bytes)
    available = world.host_bytes_per_rank(rank)
    if phase.host_bytes <= available:
        return None
    terms = ", ".join(
        f"{term.name} {term.bytes / GIB:.1f}"
        for term in sorted(phase.host_terms, key=lambda t: -t.bytes)[:_SHOWN_TERMS]
    )
    return (
        f"needs {format_bytes(phase.host_bytes)} of host memory a rank {when} ({terms}), has "
        f"{format_bytes(available)} available for each of {world.processes_per_node}"
    )


def _largest(phase: PhaseMemory) -> str:
    terms = sorted(phase.terms, key=lambda term: -term.bytes)[:_SHOWN_TERMS]
    return ", ".join(f"{term.name} {term.bytes / GIB:.1f}" for term in terms)
