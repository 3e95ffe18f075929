"""Fixed times of the software that carries out collectives, from measured runs whose moving time is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

_LEAST_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A collective that was timed.

    Attributes:
        messages: that follow each other.
        handled: messages that the busiest rank sends and receives, one beside the other; 0: not counted.
        moving_seconds: of its bytes over the measured links; 0 for one of hardly any bytes.
        seconds: median of the runs.
    """

    messages: int
    moving_seconds: float
    seconds: float
    handled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFit:
    """seconds = launch + messages * step + handled * message + moving / share.

    Attributes:
        launch_seconds: of one collective.
        step_seconds: of one message that others wait for.
        message_seconds: of a rank's work for one message.
        share: of the links' rate that is reached.
        runs: that this rests on.
        error: median relative distance of a run from the formula.
    """

    launch_seconds: float
    step_seconds: float
    message_seconds: float
    share: float
    runs: int
    error: float


def fit_software(runs: Sequence[Run]) -> SoftwareFit:
    """Fit by least squares of the relative error, no term below zero.

    Raises:
        ArithmeticError: fewer than three runs, or one that took no time.
    """
    if len(runs) < _LEAST_SAMPLES or min(run.seconds for run in runs) <= 0:
        raise ArithmeticError(f"{len(runs)} runs, of which a line cannot be told")
    seconds = np.array([run.seconds for run in runs])
    columns = np.array([(1.0, run.messages, run.handled, run.moving_seconds) for run in runs])
    scale = np.maximum(columns.max(axis=0), 1e-12)  # columns of one size: the solver has one tolerance for all
    found, _ = nnls(columns / scale / seconds[:, None], np.ones_like(seconds))
    launch, step, message, moving = (float(value) for value in found / scale)
    predicted = columns @ np.array([launch, step, message, moving])
    return SoftwareFit(
        launch_seconds=launch,
        step_seconds=step,
        message_seconds=message,
        share=1 / moving if moving > 0 else 1.0,
        runs=len(runs),
        error=float(np.median(np.abs(predicted / seconds - 1))),
    )
