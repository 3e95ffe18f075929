"""How often to save: the interval that loses the least expected time (Young 1974, Daly 2006).

A save of `cost_seconds` after every `interval` seconds of work, failures at random with `mtbf_seconds` between them,
and a failure loses what was done since the last save. The expected time for one second of work is (Daly, equation 20,
without the time to restart, which scales all intervals alike)

    waste(interval) = mtbf / interval * (exp((interval + cost) / mtbf) - 1)

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (2006) 303-312; equation 37 is its minimum to within 0.2% of the waste. The first term is Young's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MINUTE = 60.0
_HOUR = 3600.0

# Hours of one device between failures that end a job. Published: Meta's RSC clusters 7.9 h on 1,024 GPUs (8,090 h of
# one) and 1.8 h on 16,384 (29,500 h); Llama 3, 419 failures in 54 days on 16,384 (50,700 h). The least, rounded.
DEVICE_MTBF_HOURS = 8000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """What a save was measured to take.

    Attributes:
        blocking_seconds: that training stood still, and that its steps took longer while files were written.
        writing_seconds: from the snapshot until the files were verified, beside the steps.
    """

    blocking_seconds: float
    writing_seconds: float

    def __post_init__(self) -> None:
        """Both are durations."""
        if not (0 <= self.blocking_seconds < math.inf and 0 <= self.writing_seconds < math.inf):
            raise ValueError(f"a save takes a finite time of at least 0 s: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the user allows.

    Attributes:
        mtbf_seconds: mean time between failures of the whole job.
        max_lost_seconds: most work that one failure may lose, as far as whole steps allow.
    """

    mtbf_seconds: float
    max_lost_seconds: float

    def __post_init__(self) -> None:
        """Both are above 0."""
        if not (self.mtbf_seconds > 0 and self.max_lost_seconds > 0):
            raise ValueError(f"both must be above 0: {self}")


def bounds(mtbf_hours: float | None, max_lost_minutes: float, num_devices: int) -> Bounds:
    """Fill in the failure rate where the user gives none: any device that fails ends the job.

    Args:
        mtbf_hours: of the whole job; None for what is published of devices.
        max_lost_minutes: most work that one failure may lose.
        num_devices: of the job.
    """
    hours = DEVICE_MTBF_HOURS / num_devices if mtbf_hours is None else mtbf_hours
    return Bounds(mtbf_seconds=hours * _HOUR, max_lost_seconds=max_lost_minutes * _MINUTE)


def expected_waste(interval_seconds: float, cost_seconds: float, mtbf_seconds: float) -> float:
    """Return the expected seconds for one second of work, beyond that second."""
    expected = mtbf_seconds / interval_seconds * math.expm1((interval_seconds + cost_seconds) / mtbf_seconds)
    return expected - 1


def optimum_seconds(cost_seconds: float, mtbf_seconds: float) -> float:
    """Return the seconds of work between two saves that make `expected_waste` least (Daly's equation 37)."""
    if cost_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = cost_seconds / (2 * mtbf_seconds)
    return math.sqrt(2 * cost_seconds * mtbf_seconds) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_seconds


def interval_steps(cost: SaveCost, step_seconds: float, allowed: Bounds) -> int:
    """Return the whole steps between two saves.

    The optimum, but not so rare that a failure loses more than is allowed (what is still being written is lost, too),
    and not so often that the disk is busy for more than half of the time.

    Args:
        cost: of a save, measured.
        step_seconds: of a typical step.
        allowed: failure rate and most work lost.

    Returns:
        At least 1; where the least and the most contradict each other, the disk's pace counts.
    """
    if not step_seconds > 0:
        raise ValueError(f"a step takes {step_seconds} s")
    best = optimum_seconds(cost.blocking_seconds, allowed.mtbf_seconds)
    most = max(allowed.max_lost_seconds - cost.writing_seconds, step_seconds)
    most_steps = max(1, math.floor(most / step_seconds))
    least_steps = max(1, math.ceil(2 * cost.writing_seconds / step_seconds))
    return max(least_steps, min(most_steps, max(1, round(best / step_seconds))))
