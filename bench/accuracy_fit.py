"""Fits the constants of a stack to its records, and judges estimates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Final

from accuracy_records import Record

from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.stacks import DEFAULT, STACKS, Stack
from orchestrator.estimate.values import PhaseMemory
from topology.units import GIB

# Values that a fitted constant can take: no finer than the data can tell.
GRIDS: Final[Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {
        "logit_copies": tuple(x / 10 for x in range(10, 81, 2)),
        "layer_factor": tuple(x / 20 for x in range(8, 41)),
        "held_factor": tuple(x / 10 for x in range(13)),
        "slack": tuple(x / 100 for x in range(31)),
        "context_bytes": tuple(x / 10 * GIB for x in range(4, 31)),
        "workspace_bytes": tuple(x / 20 * GIB for x in range(21)),
        "saved_input_bytes": tuple(x / 2 for x in range(13)),
    }
)
_ROUNDS: Final = 12
_REACH: Final = 2  # steps that all constants take at once
_GAIN: Final = 1e-9
_BELOW: Final = 0.03
_MISJUDGED: Final = 1.0  # an outcome judged wrong weighs like an estimate wrong by a factor e
_TIGHT: Final = 0.2  # the longest context that fits nearly fills the card


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One record and its estimate.

    Attributes:
        record: what was published.
        estimated_bytes: of the metric that the record tells.
    """

    record: Record
    estimated_bytes: int

    @property
    def error(self) -> float:
        """Estimate over measurement, less 1; 0 where only the outcome of the run is known."""
        measured = self.record.measured_bytes
        return self.estimated_bytes / measured - 1 if measured else 0.0

    @property
    def is_right(self) -> bool:
        """Whether a run that is known to fit, or not to, is judged so."""
        fits = self.estimated_bytes <= self.record.limit_bytes
        return fits == (self.record.body["kind"] == "fit")


def estimated(record: Record, stack: Stack) -> Outcome:
    """Estimate a record with the constants of `stack`: the larger of loading and training."""
    memory = estimate_memory(replace(record.setting, calibrated=stack))
    return Outcome(record=record, estimated_bytes=max(_bytes(memory.load, record), _bytes(memory.train, record)))


def _bytes(phase: PhaseMemory, record: Record) -> int:
    match record.metric:
        case "allocated":
            return phase.allocated_bytes
        case "reserved":
            return phase.reserved_bytes
        case _:
            return phase.device_bytes


def stack_of(family: str) -> Stack:
    """Constants in use for a family."""
    return STACKS.get(family, DEFAULT)


def cost(outcomes: Iterable[Outcome], *, under: float) -> float:
    """Mean of |log ratio|; what lies more than 3% below the measurement counts `under` times."""
    costs = []
    for outcome in outcomes:
        if outcome.record.measured_bytes:
            ratio = math.log(outcome.estimated_bytes / outcome.record.measured_bytes)
            costs.append(abs(ratio) * (under if ratio < -_BELOW else 1.0))
        else:
            near = (
                abs(math.log(outcome.estimated_bytes / outcome.record.limit_bytes)) if outcome.record.is_tight else 0.0
            )
            costs.append(_TIGHT * near + (0.0 if outcome.is_right else _MISJUDGED))
    return sum(costs) / max(1, len(costs))


def fit(
    groups: Sequence[Sequence[Record]], stack: Stack, names: Sequence[str], *, under: float = 2.0, stride: int = 1
) -> Stack:
    """Set the constants `names` to the grid values of least cost.

    First one constant after the other over its whole grid; then all together, by a step or two each, since errors of
    one can be made up for by another. Each group weighs the same. `stride` takes every so-manieth value of the grids.
    """

    def total(trial: Stack) -> float:
        return sum(cost((estimated(x, trial) for x in group), under=under) for group in groups) / len(groups)

    grids = {name: GRIDS[name][::stride] for name in names}
    best, least = stack, total(stack)
    for trials in (_one_by_one, _together):
        for _ in range(_ROUNDS):
            before = least
            for trial in trials(best, grids):
                found = total(trial)
                if found < least - _GAIN:
                    best, least = trial, found
            if least >= before - _GAIN:
                break
    return best


def _one_by_one(stack: Stack, grids: Mapping[str, Sequence[float]]) -> Iterator[Stack]:
    for name, values in grids.items():
        yield from (replace(stack, **{name: value}) for value in values)


def _together(stack: Stack, grids: Mapping[str, Sequence[float]]) -> Iterator[Stack]:
    near = []
    for name, values in grids.items():
        index = min(range(len(values)), key=lambda i: abs(values[i] - getattr(stack, name)))
        near.append([(name, value) for value in values[max(0, index - _REACH) : index + _REACH + 1]])
    yield from (replace(stack, **dict(chosen)) for chosen in itertools.product(*near))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of some records: shares of 1."""

    count: int
    median: float
    ninetieth: float
    worst_below: float
    below: float


def summary(outcomes: Sequence[Outcome]) -> Summary | None:
    """Errors of the records with a measured peak; None without any."""
    errors = [x.error for x in outcomes if x.record.measured_bytes]
    if not errors:
        return None
    sizes = sorted(abs(x) for x in errors)
    return Summary(
        count=len(errors),
        median=median(sizes),
        ninetieth=sizes[max(0, math.ceil(0.9 * len(sizes)) - 1)],
        worst_below=min(0.0, *errors),
        below=sum(x < -_BELOW for x in errors) / len(errors),
    )
