"""A sweep of runs as one comparison: a table for people, the same rows as CSV and as plain values."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ExitCode
from orchestrator.report.sweep import varied_values
from topology.units import format_bytes, format_seconds

_NUMBERS = (
    "eval_loss_before", "eval_loss_after", "train_loss", "steps", "step_seconds", "tokens_per_second", "peak_bytes",
)  # fmt: skip
INTERRUPTED = 130  # a trial asked to stop before it had a run to stop
_STOPPED = (None, int(ExitCode.RESUMABLE), INTERRUPTED)
_SHOWN = 100  # characters of a reason in the table; the CSV has all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTrial:
    """One trial as it ended.

    Attributes:
        number: of the trial, from 0.
        overrides: what it was asked, as Hydra wrote it.
        code: exit code of its process; None: it was never started.
        reason: why it failed or stopped; empty for a trial that is done.
        run_dir: its folder.
        place: the devices it had.
        summary: what its run left; empty where there is none.
    """

    number: int
    overrides: tuple[str, ...]
    code: int | None
    reason: str
    run_dir: str
    place: str
    summary: Mapping[str, Any]

    @property
    def status(self) -> str:
        """One word or two."""
        if self.code is None:
            return "not started"
        if self.code == ExitCode.DONE:
            return str(self.summary.get("status", "no result"))  # a dry run, or a batch job that runs on
        if self.code in _STOPPED:
            return "stopped"
        known = {int(ExitCode.BAD_INPUT): "bad input", int(ExitCode.NOTHING_FITS): "nothing fits"}
        return known.get(self.code, "failed")

    @property
    def loss(self) -> float | None:
        """Held-out loss at the end; None where there is none."""
        value = self.summary.get("eval_loss_after")
        is_number = isinstance(value, int | float) and math.isfinite(value)
        return float(value) if self.code == ExitCode.DONE and is_number and value is not None else None

    @property
    def numbers(self) -> dict[str, float | None]:
        """What the run measured, by the names of the CSV's columns; None where it got no further."""
        found, measured = self.summary, self.summary.get("measured") or {}
        return {
            "eval_loss_before": found.get("eval_loss_before"),
            "eval_loss_after": found.get("eval_loss_after"),
            "train_loss": found.get("train_loss_last"),
            "steps": found.get("steps"),
            "step_seconds": measured.get("step_seconds"),
            "tokens_per_second": measured.get("tokens_per_second"),
            "peak_bytes": peak_of(measured.get("memory")),
        }


def peak_of(memory: object) -> float | None:
    """The most bytes of any phase on the fullest device; on a CPU, of the host. None where nothing was measured.

    Args:
        memory: of the `measured` of a summary: phases by name, as the file has them.
    """
    phases = [phase for phase in memory.values() if isinstance(phase, Mapping)] if isinstance(memory, Mapping) else []
    for key in ("device_bytes", "host_bytes"):
        found = [phase.get(key) for phase in phases]
        most = max((one for one in found if isinstance(one, int | float) and math.isfinite(one)), default=0)
        if most:
            return most
    return None


def best_of(trials: Sequence[TrainTrial]) -> TrainTrial | None:
    """The trial with the lowest held-out loss; the first of equals."""
    with_loss = [trial for trial in trials if trial.loss is not None]
    return min(with_loss, key=lambda trial: trial.loss or 0.0, default=None)


def exit_code_of(trials: Sequence[TrainTrial]) -> int:
    """Return the code of the whole sweep: of the worst failure, else 75 where trials were stopped, else 0."""
    failures = [trial.code if trial.code > 0 else int(ExitCode.RUN_FAILED) for trial in trials if trial.code]
    worst = [code for code in failures if code not in _STOPPED]
    if worst:
        return max(worst)
    return int(ExitCode.RESUMABLE) if any(trial.code in _STOPPED for trial in trials) else 0


def table_text(trials: Sequence[TrainTrial]) -> str:
    """The trials as a table, in their order; the lowest held-out loss is marked."""
    keys, values = varied_values([trial.overrides for trial in trials])
    head = (
        "trial", *keys, "status", "held-out before", "after", "train loss", "steps", "step", "tokens/s", "peak", "",
    )  # fmt: skip
    best = best_of(trials)
    lines = [head, *(_cells(trial, own, trial is best) for trial, own in zip(trials, values, strict=True))]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    left = len(keys) + 1  # the status
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in {left, len(head) - 1} else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(trial: TrainTrial, values: Sequence[str], is_best: bool) -> tuple[str, ...]:  # noqa: FBT001
    numbers = trial.numbers
    seconds, rate, peak, steps = (numbers[key] for key in ("step_seconds", "tokens_per_second", "peak_bytes", "steps"))
    code = "" if trial.code in {None, 0} else f"exit {trial.code}: "
    reason = trial.reason if len(trial.reason) <= _SHOWN else f"{trial.reason[: _SHOWN - 3]}..."
    return (
        str(trial.number),
        *values,
        trial.status,
        *(_loss(numbers[key]) for key in _NUMBERS[:3]),
        "-" if steps is None else f"{steps:.0f}",
        "-" if seconds is None else format_seconds(seconds),
        "-" if rate is None else f"{rate:,.0f}",
        "-" if peak is None else format_bytes(int(peak)),
        "lowest loss" if is_best else f"{code}{reason}",
    )


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def csv_text(trials: Sequence[TrainTrial]) -> str:
    """The trials as CSV, in bytes and seconds; empty cells where a trial got no further."""
    keys, values = varied_values([trial.overrides for trial in trials])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *keys, "status", *_NUMBERS, "exit_code", "reason", "devices", "run_dir"])
    for trial, own in zip(trials, values, strict=True):
        numbers = ["" if value is None else value for value in trial.numbers.values()]
        code = "" if trial.code is None else trial.code
        writer.writerow([trial.number, *own, trial.status, *numbers, code, trial.reason, trial.place, trial.run_dir])
    return out.getvalue()


def to_json(trials: Sequence[TrainTrial], folder: str) -> dict[str, Any]:
    """The sweep as plain values: schema, folder, trials in order, number of the best (None: no trial has a loss)."""
    keys, values = varied_values([trial.overrides for trial in trials])
    best = best_of(trials)
    return {
        "schema": 1,
        "folder": folder,
        "exit_code": exit_code_of(trials),
        "best": None if best is None else best.number,
        "trials": [
            {
                "number": trial.number,
                "overrides": list(trial.overrides),
                "values": dict(zip(keys, own, strict=True)),
                "status": trial.status,
                **trial.numbers,
                "exit_code": trial.code,
                "reason": trial.reason,
                "devices": trial.place,
                "run_dir": trial.run_dir,
            }
            for trial, own in zip(trials, values, strict=True)
        ],
    }
