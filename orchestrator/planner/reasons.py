"""Why the chosen strategy, in a few sentences with numbers."""

from __future__ import annotations

from orchestrator.config import Checkpointing, Engine, Optimizer
from orchestrator.planner.dtypes import Arithmetic
from orchestrator.planner.fits import usable_bytes
from orchestrator.planner.picks import pick_words
from orchestrator.planner.plan import Choice
from orchestrator.planner.ranking import WORTH_MEMORY
from orchestrator.planner.search import Found
from orchestrator.planner.solve import Asked, Solution
from orchestrator.planner.strategy import Strategy
from orchestrator.planner.variants import OPTIMIZER_HANDICAP, packed_rows, packing_conflict
from orchestrator.planner.ways import ENGINES
from topology.units import format_bytes, format_rate, format_seconds

_FETCHING = ("base_gather", "base_copy")
_NO_WAIT = 0.005  # of the fetching


def reasons_for(asked: Asked, solution: Solution, arithmetic: Arithmetic) -> tuple[str, ...]:
    """Explain engine, devices, micro-batch, checkpointing and what else was open, of the first of the ranked ones."""
    found = solution.found
    return (
        *solution.worlds[0].reasons,
        _engine(solution),
        *_devices(solution),
        *_picked(asked, solution),
        *_links(solution),
        _micro(solution, found.ranked[0].strategy),
        _checkpointing(asked, found),
        *_packing(asked, solution),
        *_optimizer(asked, solution),
        _sentence(arithmetic.reason),
    )


def _engine(solution: Solution) -> str:
    found = solution.found
    chosen = found.ranked[0]
    strategy = chosen.strategy
    if solution.job.config.engine.name is not Engine.auto:
        return f"Engine {strategy.engine.value} was asked for."
    memory = chosen.estimate.memory.device_bytes
    limit = 0 if found.fit is None else usable_bytes(found.fit.ranks)
    if strategy.engine is Engine.ddp:
        other = next((c for c in found.ranked if c.strategy.engine is not strategy.engine), None)
        fits = f"needs {format_bytes(memory)} of the {format_bytes(limit)} it may fill"
        devices = "the device" if strategy.world_size == 1 else f"each of these {strategy.world_size} devices"
        copy = f"The whole base fits on {devices} ({fits}), so nothing is sharded and only adapter gradients travel"
        if other is None:
            return f"{copy}."
        return f"{copy}; {_not_taken(other, chosen)}."
    copy_ = next((c for c in found.ranked if c.strategy.engine is Engine.ddp), None)
    if copy_ is not None:
        return f"Partitioning the base pays: ddp would take {_times(copy_, chosen)} as long.{_fetching(found)}"
    ddp = next((r for r in found.refused if r.strategy.startswith(Engine.ddp.value)), None)
    why = f" (ddp {ddp.reason})" if ddp is not None else ""
    return f"The base must be partitioned, since a whole copy does not fit{why}.{_fetching(found)}"


def _fetching(found: Found) -> str:
    """How much of the fetching of layers is waited for, and what the other engine that shards would take."""
    chosen = found.ranked[0]
    if chosen.strategy.streamed is None:
        return ""
    terms = [term for term in chosen.estimate.time_terms if term.name in _FETCHING]
    all_of_it, waited = sum(term.total_seconds for term in terms), sum(term.seconds for term in terms)
    text = ""
    if all_of_it:
        wait = "none" if waited < _NO_WAIT * all_of_it else format_seconds(waited)
        text = f" Layers take {format_seconds(all_of_it)} a step to fetch, {wait} of it waited for."
    zero3 = next((c for c in found.ranked if c.strategy.engine is Engine.zero3), None)
    return text + (f" zero3 would take {_times(zero3, chosen)} as long." if zero3 is not None else "")


def _not_taken(other: Choice, chosen: Choice) -> str:
    name, ratio = other.strategy.engine.value, chosen.estimate.tokens_per_second / other.estimate.tokens_per_second
    if abs(ratio - 1) <= WORTH_MEMORY:
        return f"{name} would gather the base in every pass and take as long"
    if ratio > 1:
        return f"{name} would gather the base in every pass and take {_times(other, chosen)} as long"
    factor = ENGINES[other.strategy.engine].handicap
    return (
        f"{name} is estimated at {ratio:.2f} of the time, but gathers the base in every pass over links that were not "
        f"measured, and both estimates may be 15% off: it is taken by itself when {factor:g} times as fast, or with "
        f"engine={name}"
    )


def _devices(solution: Solution) -> tuple[str, ...]:
    """Say why all devices, or fewer, where there was a choice."""
    if len(solution.worlds) == 1:
        return ()
    chosen, whole = solution.found.ranked[0], solution.worlds[0].size
    if solution.job.config.devices:
        return (_of_that_size(solution, chosen),)
    used = chosen.strategy.world_size
    others = [c for c in solution.found.ranked if c.strategy.world_size != used]
    more = [c for c in others if c.strategy.world_size > used]
    if used == whole:
        if not others:
            return (f"All {whole} devices are used: no smaller part is in the short list.",)
        part = others[0]
        fewer = f"{part.strategy.world_size} of them ({_part(part)})"
        engine = part.strategy.engine.value
        return (f"All {whole} devices are used: {fewer} would take {_times(part, chosen)} as long with {engine}.",)
    if not more:
        return (f"{used} of {whole} devices ({_part(chosen)}): with more of them nothing fits{_nearest(solution)}.",)
    times = _times(more[0], chosen)
    return (f"{used} of {whole} devices ({_part(chosen)}): {more[0].strategy.world_size} would take {times} as long.",)


def _of_that_size(solution: Solution, chosen: Choice) -> str:
    """Say which of the ways to take as many devices as the user asked for is the best."""
    used = chosen.strategy.world_size
    text = f"Of the ways to take {used} device{'' if used == 1 else 's'}, {_part(chosen)} is the best"
    other = next((c for c in solution.found.ranked if c.strategy.part != chosen.strategy.part), None)
    return f"{text}{'' if other is None else f': {_part(other)} would take {_times(other, chosen)} as long'}."


def _picked(asked: Asked, solution: Solution) -> tuple[str, ...]:
    """Say which GPUs of a host are used, where not all are."""
    best = solution.found.best
    words = pick_words(asked.topology, best.place.world) if best is not None else ""
    return (f"{words}.",) if words else ()


def _links(solution: Solution) -> tuple[str, ...]:
    """Say what collectives reach, and which wire limits them."""
    best = solution.found.best
    if best is None or best.place.world.size == 1 or not best.place.world.is_gpu:
        return ()
    world = best.place.world
    if world.routes is None:
        rate = format_rate(world.link_rates[0])
        return (
            f"Links: {rate} by nvidia-smi's labels and the ports' rates, since the wires between them were not read.",
        )
    if best.way.engine is Engine.ddp:
        return (f"Links: gradients take {world.routes.reduce.text}.",)
    # A reduce-scatter takes the way of an all-gather.
    island = None if best.way.residency is None else best.way.residency.island
    if island is not None and island.bytes_per_second:
        inside = f"layers are gathered inside each {island.name} at {format_rate(island.bytes_per_second)}"
        return (f"Links: {inside}; gradients take {world.routes.reduce.text}.",)
    if best.way.engine is Engine.streamed:
        return (f"Links: layers take {world.routes.gather.text}; gradients take {world.routes.reduce.text}.",)
    return (f"Links: weights and gradients take {world.routes.gather.text}.",)


def _nearest(solution: Solution) -> str:
    """What misses least on all devices."""
    label = f" on {solution.worlds[0].size} ranks"
    near = next((entry for entry in solution.found.refused if label in entry.strategy and entry.missing_bytes), None)
    if near is None:
        return ""
    return f" ({near.strategy.partition(' on ')[0]} lacks {format_bytes(near.missing_bytes)} on a device)"


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
    uneven = f" (ranks take {shares[0]} to {shares[-1]} of them{_than_even(solution)})" if len(shares) > 1 else ""
    best = solution.found.best
    if best is not None and not uneven and len({ranks.machine for ranks in best.place.classes}) > 1:
        uneven = f" (equal rows for all: sharing them by speed saves less than {WORTH_MEMORY:.0%} of a step)"
    whose = f"the {strategy.global_batch} rows"
    if strategy.world_size > 1:
        whose = f"a rank's {max(shares)} of {whose}"
    if passes == 1:
        rows = "1 row fits" if max(shares) == 1 else f"{max(shares)} rows fit"
        return f"A rank's {rows} in one forward pass{uneven}, so nothing is accumulated."
    return (
        f"A micro-batch of {micro} makes {whose} in {passes} passes{uneven}; a larger one "
        f"does not fit or saves less than {WORTH_MEMORY:.0%} of a step."
    )


def _than_even(solution: Solution) -> str:
    """What equal shares would take, where speed decided the rows."""
    even, chosen = solution.found.even_seconds, solution.found.ranked[0].estimate.step_seconds
    if even is None:
        return ""
    return f", by their speed: equal shares would take {even / chosen:.2f} times as long at best"


def _checkpointing(asked: Asked, found: Found) -> str:
    chosen = found.ranked[0]
    strategy = chosen.strategy
    step = format_seconds(chosen.estimate.step_seconds)
    same = (strategy.engine, strategy.world_size)
    others = [c for c in found.ranked[1:] if (c.strategy.engine, c.strategy.world_size) == same]
    others = [c for c in others if c.strategy.mode_label != strategy.mode_label]
    if strategy.checkpointing is Checkpointing.none:
        return f"All activations fit, so none is recomputed (a step takes about {step})."
    start = f"{_sentence_start(strategy.mode_label)} (a step takes about {step})"
    if asked.config.checkpointing is not Checkpointing.auto or asked.config.checkpointing_layers is not None:
        return f"{start} was asked for."
    if not others:
        return f"{start}: keeping all activations does not fit."
    if strategy.recomputed is not None:
        every = min(others, key=lambda choice: (choice.strategy.recomputed is not None, choice.estimate.step_seconds))
        told = f"{every.strategy.mode_label} takes {format_seconds(every.estimate.step_seconds)}"
        return (
            f"{start}: as few layers as fit, or more where they free memory within {WORTH_MEMORY:.0%} of the time; "
            f"{told}."
        )
    best = min(others, key=lambda choice: choice.estimate.step_seconds)
    shown = format_seconds(best.estimate.step_seconds)
    return f"{start}: {best.strategy.mode_label} takes {shown} with its best micro-batch that fits."


def _packing(asked: Asked, solution: Solution) -> tuple[str, ...]:
    """Why rows are packed or not, where that was open; and what a step then holds."""
    if asked.config.data.packing is not None:
        return ()
    chosen, job = solution.found.ranked[0], solution.job
    conflict = packing_conflict(asked.config, asked.model, asked.data)
    if conflict is not None:
        return (f"Rows are not packed: {conflict}.",)
    other = next((c for c in solution.found.ranked if c.strategy.packing is not chosen.strategy.packing), None)
    if not chosen.strategy.packing:
        why = f"would take {_times(other, chosen)} as long a token" if other is not None else "does not fit"
        return (f"Rows are not packed: packing {why}.",)
    gain = "without packing nothing fits"
    if other is not None:
        gain = f"a token of the data takes {chosen.estimate.tokens_per_second / other.estimate.tokens_per_second:.1f} "
        gain += "times as long without"
    cut = min(asked.data.mean_tokens, job.seq_len)
    held = max(1.0, job.batch.real_tokens_per_row / cut)
    rows, batch = packed_rows(asked.data, job.seq_len), asked.config.batch.global_
    steps, before = max(1, rows // batch), max(1, asked.data.rows // batch)
    text = (
        f"Rows are packed: {gain}. A packed row holds about {held:.1f} rows of the data, so a step of {batch} takes "
        f"{held:.1f} times as many tokens, and an epoch {steps:,} step{'s' if steps > 1 else ''}, not {before:,}: "
        "lower batch.global to keep the tokens of a step."
    )
    return (text,)


def _optimizer(asked: Asked, solution: Solution) -> tuple[str, ...]:
    """Why this optimizer, where it was open."""
    if asked.config.optimizer.name is not Optimizer.auto or not solution.worlds[0].is_gpu:
        return ()
    chosen = solution.found.ranked[0]
    name = chosen.strategy.optimizer
    others = [c for c in solution.found.ranked if c.strategy.optimizer is not name]
    if name is Optimizer.adamw:
        least = f"{OPTIMIZER_HANDICAP[Optimizer.adamw_8bit] - 1:.0%}"
        why = f"moments in 8 bits save memory, not time, and are taken where their room makes steps {least} faster"
    elif not others:
        why = "with another one nothing fits"
    else:
        why = f"its room pays, {others[0].strategy.optimizer.value} would take {_times(others[0], chosen)} as long"
    return (f"Optimizer {name.value}: {why}.",)


def _sentence_start(text: str) -> str:
    return text[0].upper() + text[1:]


def _sentence(text: str) -> str:
    return _sentence_start(text) + "." if text[0] not in "bf" else f"Precision {text}."
