"""Worlds with what the run has met so far: slow places, and memory that ran out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.planner.setbacks import Setbacks, slots_of
from orchestrator.planner.world import World


def with_setbacks(worlds: Sequence[World], setbacks: Setbacks | None) -> tuple[World, ...]:
    """Give each rank the speed that was measured at its place, and all of them the ceilings of their memory."""
    if setbacks is None:
        return tuple(worlds)
    return tuple(replace(world, ceilings=setbacks.ceilings, speeds=_speeds(world, setbacks)) for world in worlds)


def _speeds(world: World, setbacks: Setbacks) -> tuple[float, ...]:
    told = [setbacks.speed_of(slot) for slot in slots_of([device.id for device in world.devices])]
    if all(speed == 1 for speed in told):
        return world.speeds
    asked = world.speeds or (1.0,) * world.size
    return tuple(speed * own for speed, own in zip(asked, told, strict=True))
