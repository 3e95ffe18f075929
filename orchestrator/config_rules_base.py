"""Rules of how the base is stored, and between that and the engine and the adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.config import AdapterInit, Engine, Quant, RunConfig
from orchestrator.errors import Problem

_WHERE: Final = "base.quant_pattern"
ZERO3_CONFLICT: Final = "ZeRO-3 gathers all packed weights as one type, and base.quant_pattern stores them in several"


def check_base(config: RunConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that the storage breaks."""
    if config.adapter.dora and Quant.int8 in {config.base.quant, *(kind for _, kind in config.base.quant_pattern)}:
        # PEFT's magnitudes read the scales of an 8-bit module before bitsandbytes has handed them to its state.
        found = "adapter.dora=true fails on 8-bit modules in the first pass (PEFT and bitsandbytes lose their scales)"
        yield Problem(where="base", found=found, remedy="Store these as nf4, fp4 or none, or use adapter=lora.")
    if not config.base.quant_pattern:
        return
    if config.base.quant is Quant.none:
        yield Problem(
            where=_WHERE,
            found="base.quant=none quantises nothing that a pattern could change",
            remedy="Set base.quant to the kind of the modules that are to be quantised, and end the list with .*:none.",
        )
    if config.engine.name is Engine.zero3:
        yield Problem(where=_WHERE, found=ZERO3_CONFLICT, remedy="Use engine=ddp, streamed or auto.")
    if config.adapter.init in (AdapterInit.pissa, AdapterInit.loftq):
        name = config.adapter.init.value
        found = f"adapter.init={name} quantises the rest of the base anew, all of it in one kind"
        yield Problem(where=_WHERE, found=found, remedy="Use adapter.init=default or eva, or leave the patterns out.")
