"""Stops a run whose loss or gradient is no number, before a checkpoint keeps it."""

from __future__ import annotations

import json
import math
from typing import Final

from orchestrator.recovery.event import FAULT_PREFIX
from orchestrator.train.settings import TrainSettings

_PATIENCE: Final = 5  # steps in a row in which a loss scaler may still find its scale


class NotFinite(RuntimeError):
    """The loss or its gradient is infinite or NaN."""


class FiniteCheck:
    """Looks at the numbers of each step, the same on every rank.

    Attributes:
        may_skip: steps whose gradients are no numbers are left out, as a loss scaler does it: only several in a row
            mean that something is wrong.
    """

    def __init__(self, settings: TrainSettings) -> None:
        """Start with no step."""
        self._rank = settings.rank
        self.may_skip = settings.precision == "fp16"
        self._in_a_row = 0

    def check(self, step: int, loss: float, grad_norm: float | None) -> None:
        """Take the numbers of a step.

        Raises:
            NotFinite: they mean that the adapters are, or are about to be, no numbers.
        """
        bad_loss = not math.isfinite(loss)
        bad_gradient = grad_norm is not None and not math.isfinite(grad_norm)
        self._in_a_row = self._in_a_row + 1 if bad_loss or bad_gradient else 0
        allowed = _PATIENCE if self.may_skip else 0
        if self._in_a_row <= allowed:
            return
        what = "the loss" if bad_loss else "the gradient"
        words = f"{what} is no number at step {step} (loss {loss}, gradient norm {grad_norm})"
        if self._rank == 0:
            body = {"kind": "not_finite", "step": step, "phase": "training", "words": words}
            print(FAULT_PREFIX + json.dumps(body), flush=True)
        raise NotFinite(words)
