"""What of a run's files goes to a tracker, and under which name. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

_PLACE: Final = frozenset({"time", "step"})
_EVAL: Final = "eval_"
_OF_EVAL: Final = (_EVAL, "prompts_")  # held-out rows, and answers to questions; a run may have one without the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Numbers of one step: `train/...` of training, `eval/...` of an evaluation."""

    step: int
    time: float | None
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a tracker was told of a run, so that one that goes on repeats nothing. -1: nothing yet."""

    train: int = -1
    eval: int = -1

    def has(self, point: Point) -> bool:
        """Whether the point, or a later one of its kind, was told."""
        return point.step <= (self.eval if _is_eval(point) else self.train)

    def after(self, point: Point) -> Reached:
        """How far it is with this point."""
        if _is_eval(point):
            return replace(self, eval=max(self.eval, point.step))
        return replace(self, train=max(self.train, point.step))


def _is_eval(point: Point) -> bool:
    return any(name.startswith("eval/") for name, _ in point.values)


def point_of(record: Mapping[str, Any]) -> Point | None:
    """Return what a line of `metrics.jsonl` tells; None where that is no number of a step."""
    step, told = record.get("step"), record.get("time")
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    prefix = "eval/" if any(name.startswith(_OF_EVAL) for name in record) else "train/"
    values = tuple(
        (prefix + name.removeprefix(_EVAL), float(value))
        for name, value in record.items()
        if name not in _PLACE and _is_number(value)
    )
    time = float(told) if isinstance(told, (int, float)) else None
    return Point(step=step, time=time, values=values) if values else None


def flat(body: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield key and value of a tree, `adapter.rank` and the like; lists stay whole."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def numbers_of(body: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a summary by their flat names."""
    return {name: float(value) for name, value in flat(body) if _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
