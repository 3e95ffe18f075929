"""What a page about a sweep is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.report.page.scale import Point
from orchestrator.report.page.words import listed, number

RESULTS: Final = (
    "eval_loss_before", "eval_loss_after", "train_loss", "steps", "step_seconds", "tokens_per_second", "peak_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One trial.

    Attributes:
        number: from 0.
        values: of the keys that differ between trials, as they were typed.
        results: by the names of `RESULTS`; None where the trial got no further.
        link: to its own report, from the folder of the sweep; empty where there is none.
        curve: its training loss by step.
    """

    number: int
    status: str
    values: Mapping[str, str]
    results: Mapping[str, float | None]
    reason: str = ""
    overrides: tuple[str, ...] = ()
    link: str = ""
    curve: tuple[Point, ...] = ()

    @property
    def loss(self) -> float | None:
        """Held-out loss at the end of a trial that is done."""
        value = self.results.get("eval_loss_after")
        return value if value is not None and math.isfinite(value) and self.status == "done" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """A sweep of trainings.

    Attributes:
        keys: that differ between trials.
        command: that was typed; empty where it is not known.
        is_over: whether `sweep.json` is there, which is written at the end.
        is_of_plans: nothing was trained: the fastest plan is the best.
    """

    name: str
    folder: str
    made: float
    trials: tuple[Tried, ...]
    keys: tuple[str, ...]
    command: str = ""
    is_over: bool = True
    is_of_plans: bool = False
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Tried | None:
        """The trial with the lowest held-out loss, or the plan with the most tokens per second; the first of equals."""
        if self.is_of_plans:
            fitting = [trial for trial in self.trials if trial.results.get("tokens_per_second")]
            return max(fitting, key=lambda trial: trial.results["tokens_per_second"] or 0.0, default=None)
        known = [trial for trial in self.trials if trial.loss is not None]
        return min(known, key=lambda trial: trial.loss or 0.0, default=None)


def tried(body: Mapping[str, Any], link: str, curve: Sequence[Point]) -> Tried:
    """Return a trial of `sweep.json`."""
    values = body.get("values")
    return Tried(
        number=int(number(body.get("number")) or 0),
        status=str(body.get("status") or "?"),
        values={str(key): str(value) for key, value in values.items()} if isinstance(values, Mapping) else {},
        results={name: number(body.get(name)) for name in RESULTS},
        reason=str(body.get("reason") or ""),
        overrides=tuple(map(str, listed(body.get("overrides")))),
        link=link,
        curve=tuple(curve),
    )
