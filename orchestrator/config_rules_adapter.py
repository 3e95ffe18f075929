"""Rules between the keys of the adapters, and between them and the base and the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.config import AdapterConfig, AdapterInit, AdapterKind, Engine, Quant, RunConfig
from orchestrator.errors import Problem

_FOUR_BIT: Final = frozenset({Quant.nf4, Quant.fp4})
_RANK: Final = "adapter.rank"


def check_adapter(config: RunConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that the adapters break."""
    yield from _check_numbers(config.adapter)
    yield from _check_kind(config.adapter)
    yield from _check_init(config)
    yield from _check_engine(config)


def _check_numbers(adapter: AdapterConfig) -> Iterator[Problem]:
    for where, count in ((_RANK, adapter.rank), ("adapter.init_rank", adapter.init_rank)):
        if count is not None and count < 1:
            yield Problem(where=where, found=f"found {count}", remedy="Give a whole number of at least 1, or auto.")
    for pattern, number in adapter.rank_pattern:
        if number < 1 or not float(number).is_integer():
            found = f"found {number:g} for {pattern!r}"
            yield Problem(where="adapter.rank_pattern", found=found, remedy="Give whole numbers of at least 1.")
    for pattern, number in adapter.alpha_pattern:
        if number <= 0:
            found = f"found {number:g} for {pattern!r}"
            yield Problem(where="adapter.alpha_pattern", found=found, remedy="Give numbers above 0.")
    if adapter.rho < 1:
        remedy = "Give a number of at least 1: the largest rank over adapter.rank."
        yield Problem(where="adapter.rho", found=f"found {adapter.rho:g}", remedy=remedy)


def _check_kind(adapter: AdapterConfig) -> Iterator[Problem]:
    """AdaLoRA has layers of its own in PEFT, which know nothing of the rest."""
    if adapter.kind is not AdapterKind.adalora:
        if adapter.init_rank is not None:
            found = f"found {adapter.init_rank}, but adapter.kind={adapter.kind.value} keeps its rank"
            yield Problem(
                where="adapter.init_rank", found=found, remedy="Use adapter=adalora, or adapter.init_rank=auto."
            )
        return
    others = {
        "adapter.dora": adapter.dora,
        "adapter.rslora": adapter.rslora,
        "adapter.init": adapter.init is not AdapterInit.default,
        "adapter.rank_pattern": bool(adapter.rank_pattern),
        "adapter.alpha_pattern": bool(adapter.alpha_pattern),
    }
    told = [key for key, is_told in others.items() if is_told]
    if told:
        found = "AdaLoRA decides on ranks by itself and starts with singular values of zero: it cannot be combined"
        yield Problem(where=", ".join(told), found=found, remedy="Leave these out, or use adapter=lora.")
    if adapter.rank is None:
        found = "auto, and AdaLoRA shrinks its ranks by masks that free no memory: there is nothing to fit"
        yield Problem(where=_RANK, found=found, remedy="Give the mean rank to end with.")
    elif adapter.init_rank is not None and adapter.init_rank < adapter.rank:
        found = f"it starts with rank {adapter.init_rank} and is to end with {adapter.rank}"
        yield Problem(where="adapter.init_rank", found=found, remedy="Give at least adapter.rank, or auto.")


def _check_init(config: RunConfig) -> Iterator[Problem]:
    adapter, quant = config.adapter, config.base.quant
    if adapter.init is AdapterInit.default:
        return
    name = adapter.init.value
    if adapter.dora and adapter.init is not AdapterInit.eva:
        found = f"magnitudes of a base that {name} changes or makes up for are not those of its weights"
        yield Problem(
            where="adapter.dora", found=found, remedy=f"Use one of adapter.dora=true and adapter.init={name}."
        )
    if adapter.init is AdapterInit.loftq and quant not in _FOUR_BIT:
        found = f"LoftQ makes up for the error of a 4-bit base, and the base is stored as {quant.value}"
        yield Problem(where="adapter.init", found=found, remedy="Use base=nf4 or base=fp4, or another adapter.init.")
    patterns = {"adapter.rank_pattern": adapter.rank_pattern, "adapter.alpha_pattern": adapter.alpha_pattern}
    told = [key for key, pairs in patterns.items() if pairs]
    if adapter.init is AdapterInit.eva and told:
        found = "EVA gives each module its rank by itself, and the alpha that goes with it"
        yield Problem(where=", ".join(told), found=found, remedy="Leave it out, or use another adapter.init.")


def _check_engine(config: RunConfig) -> Iterator[Problem]:
    """What the chosen engine cannot do; with engine=auto the planner leaves it out, with the reason."""
    for engine in (Engine.zero3, Engine.streamed):
        reason = engine_conflict(config.adapter, engine)
        if config.engine.name is engine and reason:
            remedy = "Use engine=ddp or engine=auto, or adapter=lora."
            yield Problem(where="adapter", found=reason, remedy=remedy)


def engine_conflict(adapter: AdapterConfig, engine: Engine) -> str | None:
    """Say why these adapters cannot be trained by an engine, if so."""
    if engine is Engine.zero3:
        kinds = {
            "DoRA": adapter.dora,
            "AdaLoRA": adapter.kind is AdapterKind.adalora,
            f"adapter.init={adapter.init.value}": adapter.init is not AdapterInit.default,
            "adapter.modules_to_save": bool(adapter.saved_modules),
        }
        told = next((name for name, is_told in kinds.items() if is_told), None)
        return f"{told} reads or copies base weights whole, which ZeRO-3 has partitioned" if told else None
    if engine is Engine.streamed and adapter.init in (AdapterInit.pissa, AdapterInit.eva):
        why = {
            AdapterInit.pissa: "changes the base, and streamed layers are packed once and kept for all runs",
            AdapterInit.eva: "looks at the data through the whole base before the first step",
        }
        return f"adapter.init={adapter.init.value} {why[adapter.init]}"
    return None
