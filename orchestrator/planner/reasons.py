"""Why the chosen strategy, in a few sentences with numbers."""

from __future__ import annotations

from orchestrator.config import Checkpointing, Engine
from orchestrator.planner.dtypes import Arithmetic
from orchestrator.planner.evaluate import usable_bytes
from orchestrator.planner.plan import Choice
from orchestrator.planner.ranking import WORTH_MEMORY
from orchestrator.planner.search import Found
from orchestrator.planner.solve import Solution
from orchestrator.planner.strategy import Strategy
from orchestrator.planner.ways import ENGINES
from topology.units import format_bytes, format_seconds


def reasons_for(solution: Solution, arithmetic: Arithmetic) -> tuple[str, ...]:
    """Explain engine, devices, micro-batch, checkpointing and precision of the first of the ranked ones."""
    found = solution.found
    return (
        *solution.worlds[0].reasons,
        _engine(solution),
        *_devices(solution),
        _micro(solution, found.ranked[0].strategy),
        _checkpointing(found),
        _sentence(arithmetic.reason),
    )


def _engine(solution: Solution) -> str:
    found = solution.found
    chosen = found.ranked[0]
    strategy = chosen.strategy
    if solution.job.config.engine.name is not Engine.auto:
        return f"Engine {strategy.engine.value} was asked for."
    memory = chosen.estimate.memory.device_bytes
    limit = 0 if found.best is None else min(usable_bytes(ranks) for ranks in found.best.place.classes)
    other = next((c for c in found.ranked if c.strategy.engine is not strategy.engine), None)
    if strategy.engine is Engine.ddp:
        fits = f"needs {format_bytes(memory)} of the {format_bytes(limit)} it may fill"
        copy = f"The whole base fits on every device ({fits}), so nothing is sharded and only adapter gradients travel"
        if other is None:
            return f"{copy}."
        return f"{copy}; {_not_taken(other, chosen)}."
    ddp = next((r for r in found.refused if r.strategy.startswith(Engine.ddp.value)), None)
    if other is not None:
        return f"Partitioning the base pays: ddp would take {_times(other, chosen)} as long."
    why = f" (ddp {ddp.reason})" if ddp is not None else ""
    return f"The base must be partitioned, since a whole copy does not fit{why}."


def _not_taken(other: Choice, chosen: Choice) -> str:
    name, ratio = other.strategy.engine.value, chosen.estimate.tokens_per_second / other.estimate.tokens_per_second
    if ratio >= 1:
        return f"{name} would gather the base in every pass and take {_times(other, chosen)} as long"
    factor = ENGINES[other.strategy.engine].handicap
    return (
        f"{name} is estimated at {ratio:.2f} of the time, but gathers the base in every pass over links that were not "
        f"measured: it is taken by itself when {factor:g} times as fast, or with engine={name}"
    )


def _devices(solution: Solution) -> tuple[str, ...]:
    """Say why all devices, or fewer, where there was a choice."""
    if len(solution.worlds) == 1:
        return ()
    chosen, whole = solution.found.ranked[0], solution.worlds[0].size
    used = chosen.strategy.world_size
    others = [c for c in solution.found.ranked if c.strategy.world_size != used]
    more = [c for c in others if c.strategy.world_size > used]
    if used == whole:
        if not others:
            return (f"All {whole} devices are used: no smaller part is in the short list.",)
        part = others[0]
        fewer = f"{part.strategy.world_size} of them ({_part(part)})"
        return (f"All {whole} devices are used: {fewer} would take {_times(part, chosen)} as long.",)
    if not more:
        return (f"{used} of {whole} devices ({_part(chosen)}): with more of them nothing fits.",)
    times = _times(more[0], chosen)
    return (f"{used} of {whole} devices ({_part(chosen)}): {more[0].strategy.world_size} would take {times} as long.",)


def _part(choice: Choice) -> str:
    return choice.strategy.part or "a part"


def _times(other: Choice, chosen: Choice) -> str:
    ratio = chosen.estimate.tokens_per_second / other.estimate.tokens_per_second
    return f"{ratio:.1f} times" if round(ratio, 1) != 1.0 else f"{ratio:.2f} times"


def _micro(solution: Solution, strategy: Strategy) -> str:
    micro, passes = max(strategy.micro), strategy.accumulation
    if solution.job.config.batch.micro is not None:
        return f"A micro-batch of {micro} was asked for: {passes} forward passes make the {strategy.global_batch} rows."
    shares = sorted(set(strategy.shares))
    uneven = "" if len(shares) == 1 else f" (ranks take {shares[0]} to {shares[-1]} of them{_than_even(solution)})"
    if passes == 1:
        return f"A rank's {max(shares)} rows fit in one forward pass{uneven}, so nothing is accumulated."
    return (
        f"A micro-batch of {micro} makes the {strategy.global_batch} rows in {passes} passes{uneven}; a larger one "
        f"does not fit or saves less than {WORTH_MEMORY:.0%} of a step."
    )


def _than_even(solution: Solution) -> str:
    """What equal shares would take, where speed decided the rows."""
    even, chosen = solution.found.even_seconds, solution.found.ranked[0].estimate.step_seconds
    if even is None:
        return ""
    return f", by their speed: equal shares would take {even / chosen:.2f} times as long"


def _checkpointing(found: Found) -> str:
    chosen = found.ranked[0]
    strategy = chosen.strategy
    step = format_seconds(chosen.estimate.step_seconds)
    same = (strategy.engine, strategy.world_size)
    others = [c for c in found.ranked[1:] if (c.strategy.engine, c.strategy.world_size) == same]
    others = [c for c in others if c.strategy.checkpointing is not strategy.checkpointing]
    if strategy.checkpointing is Checkpointing.none:
        return f"All activations fit, so none is recomputed (a step takes about {step})."
    start = f"Checkpointing {strategy.checkpointing.value} (a step takes about {step})"
    if not others:
        return f"{start}: keeping all activations does not fit or was not asked for."
    best = min(others, key=lambda choice: choice.estimate.step_seconds)
    shown = format_seconds(best.estimate.step_seconds)
    return (
        f"{start}: checkpointing {best.strategy.checkpointing.value} takes {shown} with its best micro-batch that fits."
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "." if text[0] not in "bf" else f"Precision {text}."
