"""Puts the readings of all ranks together step by step; each rank's arrive when they will."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.monitor.readings import RankReading

__all__ = ["Steps", "busy_of"]

_OPEN_STEPS = 8  # older ones of which readings are missing are given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of which readings are still missing.

    Attributes:
        open: readings by step, oldest step first.
        done: the newest step that was complete.
    """

    open: tuple[tuple[int, tuple[RankReading, ...]], ...] = ()
    done: int = -1

    def take(self, reading: RankReading, world_size: int) -> tuple[Steps, tuple[RankReading, ...]]:
        """Take a reading; return with it all of its step by rank once the last one is there, else nothing.

        A step before the newest complete one means that the run went back: what was begun is forgotten.
        """
        kept = dict(self.open) if reading.step > self.done else {}
        others = tuple(one for one in kept.pop(reading.step, ()) if one.rank != reading.rank)
        group = tuple(sorted((*others, reading), key=lambda one: one.rank))
        if len(group) < world_size:
            kept[reading.step] = group
            return Steps(open=tuple(sorted(kept.items())[-_OPEN_STEPS:]), done=min(self.done, reading.step - 1)), ()
        later = tuple((step, ones) for step, ones in sorted(kept.items()) if step > reading.step)
        return Steps(open=later, done=reading.step), group


def busy_of(reading: RankReading) -> float | None:
    """Return the seconds of a step without waits for other ranks; None where they are not known."""
    if reading.busy_seconds is not None:
        return reading.busy_seconds
    if reading.communication_seconds is None:
        return None
    waits = reading.communication_seconds + (reading.prefetch_seconds or 0.0)
    return max(0.0, reading.step_seconds - waits)
