"""What a run that was given a fault came to, from the files that it left. Pure.

Times are of the wall clock in `events.jsonl`; all of it is read as it stands, since a run that was killed leaves lines
that are cut and files that are missing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from orchestrator.config import Fault
from orchestrator.errors import ExitCode
from orchestrator.faults.fault import KINDS, End

Record = Mapping[str, Any]
_SMOOTHED_STEPS: Final = 3  # training losses whose mean counts as the loss that was reached
_TOLD: Final = frozenset({ExitCode.BAD_INPUT, ExitCode.NOTHING_FITS, ExitCode.RUN_FAILED, ExitCode.RESUMABLE})


class Outcome(Enum):
    """How it ended."""

    recovered = "recovered"
    stopped = "stopped"
    hung = "HUNG"
    failed = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a run has left.

    Attributes:
        code: exit code of `trainmaster train`; None: it had to be killed when its time was up.
        words: the errors it said last.
        summary: `summary.json`; empty where there is none.
        seconds: that the command took.
    """

    events: Sequence[Record] = ()
    metrics: Sequence[Record] = ()
    summary: Record = field(default_factory=dict)
    code: int | None = 0
    words: str = ""
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether all steps were done."""
        return self.code == ExitCode.DONE and self.summary.get("status") == "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table; None where a number does not exist.

    Attributes:
        as_expected: it ended as it must, with a message where it stopped.
        detected_seconds: from the fault until it was named.
        recovered_seconds: from the fault until the first new step was done.
        steps_lost: steps that were done twice, or will be by a run that is continued.
        throughput: tokens a second from the first to the last step, over the same without a fault.
        steps_to_same_loss: steps done, those done twice included, until the loss was that without a fault at its end.
        eval_loss_deviation, train_loss_deviation: of the last losses, relative.
        is_bitwise: all losses of the run are those without a fault, to the last bit.
        wall_seconds: of the whole command.
    """

    fault: str
    outcome: Outcome
    as_expected: bool
    detected_seconds: float | None = None
    recovered_seconds: float | None = None
    steps_lost: int | None = None
    throughput: float | None = None
    steps_to_same_loss: int | None = None
    eval_loss_deviation: float | None = None
    train_loss_deviation: float | None = None
    is_bitwise: bool = False
    restarts: int = 0
    wall_seconds: float = 0.0
    message: str = ""


def row(fault: Fault, left: Left, baseline: Left) -> Row:
    """Return the line of a fault.

    Args:
        fault: that was asked for.
        left: by the run that had it.
        baseline: the same run without a fault.
    """
    injected = next(_of(left.events, "fault_injected"), None)
    outcome, message = _outcome(left, injected)
    wanted = KINDS[fault].end
    fits = {Outcome.recovered: wanted is not End.stops, Outcome.stopped: wanted is not End.recovers}
    lost = _steps_lost(left.events, is_stopped=outcome is Outcome.stopped) if injected else None
    reached = steps_to_loss(left.metrics, _smoothed(baseline.metrics)[-1:])
    return Row(
        fault=fault.value,
        outcome=outcome,
        as_expected=fits.get(outcome, False) and (outcome is Outcome.recovered or bool(message)),
        detected_seconds=_after(injected, _of(left.events, "fault_detected")),
        recovered_seconds=_after(injected, _new_steps(left.events, injected)),
        steps_lost=lost,
        throughput=_ratio(throughput(left), throughput(baseline)),
        steps_to_same_loss=None if reached is None else reached + (lost or 0),
        eval_loss_deviation=_deviation(left, baseline, "eval_loss_after"),
        train_loss_deviation=_deviation(left, baseline, "train_loss_last"),
        is_bitwise=left.is_done and _same_losses(left, baseline),
        restarts=_restarts(left.events),
        wall_seconds=left.seconds,
        message=message,
    )


def _outcome(left: Left, injected: Record | None) -> tuple[Outcome, str]:
    evidence = [str(event["evidence"]) for event in _of(left.events, "fault_detected") if event.get("evidence")]
    if left.code is None:
        return Outcome.hung, "; ".join([f"killed after {left.seconds:.0f} s", *evidence[:1]])
    if injected is None:
        refused = [str(event.get("why")) for event in _of(left.events, "fault_refused")]
        return Outcome.failed, "; ".join(["the fault never came", *refused[:1], *([left.words] if left.words else [])])
    if left.is_done:
        return Outcome.recovered, "; ".join(dict.fromkeys(evidence))
    stops = [str(event.get("why", "")) for event in _of(left.events, "decided") if event.get("decision") == "stop"]
    told = "; ".join(stops[-1:]) or str(left.summary.get("reason") or "") or left.words
    if left.code in _TOLD and told:
        return Outcome.stopped, told
    return Outcome.failed, f"exit code {left.code}; {told or 'it said nothing'}"


def _of(events: Sequence[Record], name: str) -> Iterator[Record]:
    return (event for event in events if event.get("event") == name)


def _after(injected: Record | None, events: Iterator[Record]) -> float | None:
    """Seconds from a fault to the first of the events after it."""
    began = _number(injected, "time")
    times = [time for event in events if (time := _number(event, "time")) is not None]
    later = [time - began for time in times if began is not None and time >= began]
    return min(later, default=None)


def _new_steps(events: Sequence[Record], injected: Record | None) -> Iterator[Record]:
    """First steps of attempts other than the one that the fault came in."""
    for event in _of(events, "first_step"):
        if injected is None or event.get("attempt") is None or event.get("attempt") != injected.get("attempt"):
            yield event


def _steps_lost(events: Sequence[Record], *, is_stopped: bool) -> int:
    """Steps that were done and had to be done again, over all restarts."""
    lost, done, kept = 0, 0, None
    for event in events:
        name = event.get("event")
        if name == "fault_injected":
            done = max(done, _whole(event, "steps_done"))
        elif name == "attempt_ended":
            done = max(done, _whole(event, "step"))
            kept = max(0, _whole(event, "checkpoint_step"))
        elif name == "first_step" and done:
            from_step = _whole(event, "step") - 1
            lost += max(0, done - from_step)
            done = 0
    return lost + max(0, done - kept) if is_stopped and kept is not None else lost


def _restarts(events: Sequence[Record]) -> int:
    started = sum(1 for _ in _of(events, "attempt_started"))
    return max(0, started - 1) if started else sum(1 for _ in _of(events, "resumed"))


def throughput(left: Left) -> float | None:
    """Tokens a second from the end of the first step to that of the last, restarts included; None where unknown."""
    steps = {record["step"]: record for record in left.metrics if "loss" in record and "step" in record}
    began = min(
        (t for event in _of(left.events, "first_step") if (t := _number(event, "time")) is not None), default=None
    )
    ended = _number(steps.get(max(steps, default=0)), "time")
    if began is None or ended is None or ended <= began:
        return None
    first = min(steps)
    tokens = sum(
        (_number(record, "tokens_per_second") or 0.0) * (_number(record, "step_seconds") or 0.0)
        for step, record in steps.items()
        if step > first
    )
    return tokens / (ended - began)


def _losses(metrics: Sequence[Record]) -> dict[int, float]:
    found = [(record.get("step"), _number(record, "loss")) for record in metrics]
    return dict(sorted((step, loss) for step, loss in found if isinstance(step, int) and loss is not None))


def _smoothed(metrics: Sequence[Record]) -> list[float]:
    """Mean of the last training losses at each step, from the first on that has as many before it."""
    losses = list(_losses(metrics).values())
    ends = range(_SMOOTHED_STEPS, len(losses) + 1)
    return [statistics.fmean(losses[end - _SMOOTHED_STEPS : end]) for end in ends]


def steps_to_loss(metrics: Sequence[Record], target: Sequence[float]) -> int | None:
    """Return the first step whose mean loss is the target's or lower; None where none is, or there is no target."""
    steps = list(_losses(metrics))[_SMOOTHED_STEPS - 1 :]
    pairs = zip(steps, _smoothed(metrics), strict=True)
    return next((step for step, loss in pairs if target and loss <= target[0]), None)


def _same_losses(left: Left, baseline: Left) -> bool:
    after = [run.summary.get("eval_loss_after") for run in (left, baseline)]
    return bool(left.metrics) and _losses(left.metrics) == _losses(baseline.metrics) and after[0] == after[1]


def _deviation(left: Left, baseline: Left, key: str) -> float | None:
    found, usual = _number(left.summary, key), _number(baseline.summary, key)
    return None if found is None or not usual else (found - usual) / usual


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _number(record: Record | None, key: str) -> float | None:
    value = None if record is None else record.get(key)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and value is not None else None


def _whole(record: Record, key: str) -> int:
    return int(_number(record, key) or 0)
