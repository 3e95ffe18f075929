"""Why the chosen strategy, in two to five sentences with numbers."""

from __future__ import annotations

from orchestrator.config import Checkpointing, Engine
from orchestrator.planner.dtypes import Arithmetic
from orchestrator.planner.evaluate import Job, usable_device_bytes
from orchestrator.planner.plan import Choice
from orchestrator.planner.search import Found
from orchestrator.planner.strategy import Strategy
from topology.units import format_bytes, format_seconds


def reasons_for(job: Job, arithmetic: Arithmetic, found: Found) -> tuple[str, ...]:
    """Explain engine, micro-batch, checkpointing and precision of the first of `found.ranked`."""
    chosen = found.ranked[0]
    return (
        *job.world.reasons,
        _engine(job, found),
        _micro(job, chosen.strategy),
        _checkpointing(found),
        _sentence(arithmetic.reason),
    )


def _engine(job: Job, found: Found) -> str:
    chosen = found.ranked[0]
    strategy = chosen.strategy
    if job.config.engine.name is not Engine.auto:
        return f"Engine {strategy.engine.value} was asked for."
    memory = chosen.estimate.memory.device_bytes
    limit = usable_device_bytes(job.world, 0)
    if strategy.engine is Engine.ddp:
        fits = f"needs {format_bytes(memory)} of the {format_bytes(limit)} it may fill"
        copy = f"The whole base fits on every device ({fits}), so nothing is sharded and only adapter gradients travel"
        other = next((c for c in found.ranked if c.strategy.engine is Engine.zero3), None)
        if other is None:
            return f"{copy}."
        return f"{copy}; zero3 would gather the base in every pass and take {_times(other, chosen)} as long."
    ddp = next((r for r in found.rejected if r.strategy.startswith(Engine.ddp.value)), None)
    why = f" (ddp {ddp.reason})" if ddp is not None else ""
    return f"The base must be partitioned, since a whole copy does not fit{why}."


def _times(other: Choice, chosen: Choice) -> str:
    return f"{other.estimate.step_seconds / chosen.estimate.step_seconds:.1f} times"


def _micro(job: Job, strategy: Strategy) -> str:
    micro, passes = max(strategy.micro), strategy.accumulation
    if job.config.batch.micro is not None:
        return f"A micro-batch of {micro} was asked for: {passes} forward passes make the {strategy.global_batch} rows."
    shares = sorted(set(strategy.shares))
    uneven = "" if len(shares) == 1 else f" (ranks take {shares[0]} to {shares[-1]} of them)"
    if passes == 1:
        return f"A rank's {max(shares)} rows fit in one forward pass{uneven}, so nothing is accumulated."
    return (
        f"A micro-batch of {micro} makes the {strategy.global_batch} rows in {passes} passes{uneven}; a larger one "
        "does not fit or saves less than 2% of a step."
    )


def _checkpointing(found: Found) -> str:
    chosen = found.ranked[0]
    strategy = chosen.strategy
    step = format_seconds(chosen.estimate.step_seconds)
    others = [c for c in found.ranked[1:] if c.strategy.engine is strategy.engine]
    if strategy.checkpointing is Checkpointing.none:
        return f"All activations fit, so none is recomputed (a step takes about {step})."
    start = f"Checkpointing {strategy.checkpointing.value} (a step takes about {step})"
    if not others:
        return f"{start}: keeping all activations does not fit or was not asked for."
    slower = format_seconds(min(c.estimate.step_seconds for c in others))
    return f"{start}: the other ways that fit take {slower} or more."


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "." if text[0] not in "bf" else f"Precision {text}."
