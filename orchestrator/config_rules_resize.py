"""Rules for ranks that change while adapters train."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config import AdapterInit, AdapterKind, Engine, RunConfig
from orchestrator.errors import Problem

_WHERE = "adapter.resize"


def check_resize(config: RunConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that `adapter.resize` breaks."""
    resize = config.adapter.resize
    yield from _check_at(config)
    at_least = {"every": (resize.every, 1), "min_rank": (resize.min_rank, 1), "warmup": (resize.warmup, 0)}
    for key, (value, least) in at_least.items():
        if value < least:
            yield _problem(key, f"found {value}", f"Give a whole number of at least {least}.")
    if not 0 <= resize.gain < 1:
        yield _problem("gain", f"found {resize.gain}", "Give a number from 0 up to, not including, 1.")
    if not 0 < resize.energy <= 1:
        yield _problem("energy", f"found {resize.energy}", "Give a number above 0, up to 1.")
    if resize.max_rank is not None and resize.max_rank < resize.min_rank:
        found = f"found {resize.max_rank}, below {_WHERE}.min_rank={resize.min_rank}"
        yield _problem("max_rank", found, "Raise it, or lower min_rank.")
    if resize.in_training or resize.under_pressure:
        yield from _check_kind(config)
    if resize.under_pressure and config.adapter.rank_pattern:
        remedy = "Use one rank for all adapters, or leave them as they are."
        yield _problem("under_pressure", "adapter.rank_pattern gives adapters ranks of their own", remedy)
    if resize.in_training and config.engine.name is Engine.zero3:
        remedy = "Use engine=ddp or streamed, or leave the ranks as they are. under_pressure=true works with zero3: "
        remedy += "a new attempt starts with the smaller rank."
        yield _problem("", "ZeRO-3 cuts the adapters into flat buffers that cannot change while it trains", remedy)


def _check_at(config: RunConfig) -> Iterator[Problem]:
    at = config.adapter.resize.at
    odd = [f"{step}:{rank:g}" for step, rank in at if not _is_count(step) or rank < 1 or rank != int(rank)]
    steps = [step for step, _ in at]
    if odd:
        remedy = "Give STEP:RANK, both whole numbers of at least 1, for example at=60:8,90:4."
        yield _problem("at", f"found {', '.join(odd)}", remedy)
    elif len(set(map(int, steps))) < len(steps):
        yield _problem("at", f"found one step twice in {', '.join(steps)}", "Give each step once.")


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) >= 1


def _check_kind(config: RunConfig) -> Iterator[Problem]:
    adapter = config.adapter
    if adapter.kind is AdapterKind.adalora:
        remedy = "Use adapter=lora with adapter.resize, which frees memory, or adapter=adalora alone."
        yield _problem("", "adapter.kind=adalora changes ranks in its own way, by masks", remedy)
    if adapter.init is AdapterInit.pissa:
        remedy = "Use another adapter.init, or leave the ranks as they are."
        yield _problem("", "adapter.init=pissa is exported as a difference to the matrices it began with", remedy)
    if config.adapter.resize.under_pressure and adapter.init in (AdapterInit.loftq, AdapterInit.eva):
        found = f"adapter.init={adapter.init.value} has settled ranks or matrices before memory runs out"
        yield _problem("under_pressure", found, "Use another adapter.init, or leave the ranks as they are.")


def _problem(key: str, found: str, remedy: str) -> Problem:
    return Problem(where=f"{_WHERE}.{key}" if key else _WHERE, found=found, remedy=remedy)
