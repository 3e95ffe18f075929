"""All strategies that the configuration leaves open, ranked; the others with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer, Quant
from orchestrator.planner.assign import forced_micro, micro_options, share_rows
from orchestrator.planner.dtypes import adapter_dtype, quant_storage, type_conflict
from orchestrator.planner.evaluate import Job, Verdict, evaluate
from orchestrator.planner.knobs import zero3_knobs
from orchestrator.planner.plan import Choice, Rejection
from orchestrator.planner.strategy import Strategy, Zero3Knobs
from orchestrator.planner.world import machine_of

# The order of preference when several fit: no base traffic comes first.
_PREFERENCE = (Engine.ddp, Engine.zero3)
_MODES = (Checkpointing.none, Checkpointing.full, Checkpointing.selective)
# A larger micro-batch must save this much of a step, or the smaller one is kept for its memory.
_WORTH_MEMORY = 0.02
# Selective checkpointing is the most fragile of the three: it must beat the others by this much.
_SELECTIVE_MARGIN = 1.03
_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What fits, best first, and what does not; `num_misfits` of these for lack of memory."""

    ranked: tuple[Choice, ...]
    rejected: tuple[Rejection, ...]
    num_misfits: int


def search(job: Job, precision: str, seq_len: int) -> Found:
    """Rank one strategy per engine and checkpointing mode, each with its best micro-batch."""
    ranked: list[Choice] = []
    rejected: list[Rejection] = []
    num_misfits = 0
    for engine in _engines(job):
        for mode in _modes(job, engine):
            label = f"{engine.value}, checkpointing {mode.value}"
            conflict = _conflict(job, engine, mode, precision)
            if conflict is not None:
                rejected.append(Rejection(strategy=label, reason=conflict))
                continue
            best = _best(job, list(_strategies(job, engine, mode, precision, seq_len)))
            if isinstance(best, Choice):
                ranked.append(best)
            else:
                rejected.append(best)
                num_misfits += 1
    return Found(ranked=tuple(sorted(ranked, key=_rank_key)), rejected=tuple(rejected), num_misfits=num_misfits)


def _rank_key(choice: Choice) -> tuple[int, float]:
    strategy = choice.strategy
    margin = _SELECTIVE_MARGIN if strategy.checkpointing is Checkpointing.selective else 1.0
    return _PREFERENCE.index(strategy.engine), choice.estimate.step_seconds * margin


def _engines(job: Job) -> tuple[Engine, ...]:
    wanted = job.config.engine.name
    return _PREFERENCE if wanted is Engine.auto else (wanted,)


def _modes(job: Job, engine: Engine) -> tuple[Checkpointing, ...]:
    wanted = job.config.checkpointing
    if wanted is not Checkpointing.auto:
        return (wanted,)
    # Under ZeRO-3 selective is out of the question, so it is not even listed unless asked for.
    return _MODES if engine is Engine.ddp else _MODES[:2]


def _conflict(job: Job, engine: Engine, mode: Checkpointing, precision: str) -> str | None:
    """Say why the pieces cannot be combined, whatever the memory."""
    config = job.config
    conflict = type_conflict(engine, precision, adapter_dtype(config, engine, precision), is_gpu=job.world.is_gpu)
    if conflict is not None or engine is not Engine.zero3:
        return conflict
    if mode is Checkpointing.selective:
        return "ZeRO-3 with frozen parameters needs reentrant checkpointing, which cannot be selective"
    if config.base.quant is Quant.int8:
        return "int8 weights lose their scales when ZeRO-3 partitions them: use base.quant=nf4"
    if config.optimizer.name is not Optimizer.adamw:
        return "ZeRO-3 flattens the adapters, which 8-bit optimizers cannot checkpoint: use optimizer=adamw"
    if job.world.size == 1 and not (job.world.is_gpu and config.engine.offload_param is not Offload.none):
        # Forced, it still runs (a test of the engine); chosen freely, it is overhead alone.
        return None if config.engine.name is Engine.zero3 else "one rank and no offload: nothing to partition"
    return None


def _strategies(job: Job, engine: Engine, mode: Checkpointing, precision: str, seq_len: int) -> Iterator[Strategy]:
    config, world = job.config, job.world
    weights = [machine_of(world, rank, precision).flops_per_second for rank in range(world.size)]
    shares = share_rows(config.batch.global_, weights)
    wanted = config.batch.micro
    options = micro_options(shares) if wanted is None else (forced_micro(shares, wanted),)
    for micro, accumulation in options:
        yield Strategy(
            engine=engine,
            world_size=world.size,
            processes_per_node=world.processes_per_node,
            num_nodes=len(world.hosts),
            device_ids=tuple(device.id for device in world.devices),
            shares=shares,
            micro=micro,
            accumulation=accumulation,
            precision=precision,
            adapter_dtype=adapter_dtype(config, engine, precision),
            compute_dtype=precision,
            load_dtype=precision,
            quant_storage=quant_storage(engine, precision),
            checkpointing=mode,
            # Rows of varying length leave holes that only growable segments can reuse.
            allocator=config.allocator or (_EXPANDABLE if world.is_gpu else ""),
            threads_per_process=world.threads_per_process,
            zero3=_knobs(job, precision) if engine is Engine.zero3 else None,
            optimizer=config.optimizer.name,
            packing=config.data.packing,
            padding=config.data.padding,
            seq_len=seq_len,
        )


def _knobs(job: Job, precision: str) -> Zero3Knobs:
    config = job.config
    return zero3_knobs(config.engine, job.model, job.adapter, quant=config.base.quant, compute_dtype=precision)


def _best(job: Job, strategies: list[Strategy]) -> Choice | Rejection:
    """Take the micro-batch with the shortest step, but a smaller one that loses next to nothing."""
    fitting: list[Choice] = []
    first_misfit: tuple[Strategy, Verdict] | None = None
    for strategy in strategies:
        verdict = evaluate(job, strategy)
        if verdict.misfit is None:
            fitting.append(Choice(strategy=strategy, estimate=verdict.estimate))
        else:
            first_misfit = first_misfit or (strategy, verdict)
            break  # larger micro-batches need more
    if fitting:
        shortest = min(choice.estimate.step_seconds for choice in fitting)
        return next(c for c in fitting if c.estimate.step_seconds <= shortest * (1 + _WORTH_MEMORY))
    if first_misfit is None:
        msg = "a search without strategies"
        raise ValueError(msg)
    strategy, verdict = first_misfit
    return Rejection(strategy=strategy.label, reason=verdict.misfit or "")
