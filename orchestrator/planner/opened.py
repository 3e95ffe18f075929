"""Settings of the user that may be left to the planner so that a run fits in memory: none of them changes a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orchestrator.config import Checkpointing, Engine, Offload, Padding, RunConfig


def _micro(config: RunConfig) -> RunConfig:
    return replace(config, batch=replace(config.batch, micro=None))


def _padding(config: RunConfig) -> RunConfig:
    return replace(config, data=replace(config.data, padding=Padding.longest))


def _checkpointing(config: RunConfig) -> RunConfig:
    return replace(config, checkpointing=Checkpointing.auto, checkpointing_layers=None)


def _cut(config: RunConfig) -> RunConfig:
    engine = replace(config.engine, window=None, shards=(), host_share=None, island=None)
    return replace(config, engine=engine)


def _offload(config: RunConfig) -> RunConfig:
    engine = replace(config.engine, offload_param=Offload.auto, offload_optimizer=Offload.auto)
    return replace(config, engine=engine)


def _knobs(config: RunConfig) -> RunConfig:
    engine = replace(
        config.engine,
        param_persistence_threshold=None,
        prefetch_bucket_size=None,
        max_live_parameters=None,
        max_reuse_distance=None,
        reduce_bucket_size=None,
    )
    return replace(config, engine=engine)


def _engine(config: RunConfig) -> RunConfig:
    return replace(config, engine=replace(config.engine, name=Engine.auto))


_STEPS: Final[Mapping[str, Callable[[RunConfig], RunConfig]]] = MappingProxyType(
    {
        "batch.micro=auto": _micro,
        "data.padding=longest": _padding,
        "checkpointing=auto": _checkpointing,
        "engine.window, shards, host_share and island auto": _cut,
        "engine.offload_param and offload_optimizer auto": _offload,
        "sizes of engine zero3 auto": _knobs,
        "engine=auto": _engine,
    }
)


def openings(config: RunConfig) -> tuple[tuple[str, ...], ...]:
    """Sets of settings to open, each with one more of those that the user has fixed; the first one is empty."""
    found: list[tuple[str, ...]] = [()]
    for name, step in _STEPS.items():
        if step(config) != config:
            found.append((*found[-1], name))
    return tuple(found)


def with_opened(config: RunConfig, names: Sequence[str]) -> RunConfig:
    """Leave these settings to the planner."""
    for name in names:
        config = _STEPS[name](config)
    return config
