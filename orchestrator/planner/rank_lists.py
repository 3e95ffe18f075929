"""What the user says of each rank: budgets of device memory, weights of its part of the layers, its speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.config import RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.planner.world import World
from topology.units import GIB


def with_rank_lists(config: RunConfig, worlds: Sequence[World]) -> tuple[World, ...]:
    """Keep the worlds with as many ranks as the lists have numbers, and give each rank its own.

    Raises:
        UserError: no world has so many.
    """
    engine = config.engine
    lists = _lists(config)
    if not lists:
        return tuple(worlds)
    problems = list(_problems(config, worlds))
    if problems:
        raise UserError(*problems)
    budgets = tuple(round(budget * GIB) for budget in engine.budgets_gib)
    wanted = max(map(len, lists.values()))
    return tuple(
        replace(world, budgets_bytes=budgets, weights=engine.shards, speeds=engine.speeds)
        for world in worlds
        if world.size == wanted
    )


def _lists(config: RunConfig) -> dict[str, tuple[float, ...]]:
    engine = config.engine
    lists = {"shards": engine.shards, "budgets_gib": engine.budgets_gib, "speeds": engine.speeds}
    return {key: given for key, given in lists.items() if given}


def _problems(config: RunConfig, worlds: Sequence[World]) -> Iterator[Problem]:
    sizes = sorted({world.size for world in worlds})
    for key, given in _lists(config).items():
        if len(given) not in sizes:
            there = " or ".join(map(str, sizes))
            yield Problem(
                where=f"engine.{key}",
                found=f"{len(given)} numbers for {there} rank{'s' if sizes[-1] > 1 else ''}",
                remedy=f"Give one for each rank, or devices={len(given)}.",
            )
