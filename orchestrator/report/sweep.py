"""A sweep of plans as one comparison: a table for people, and the same rows as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import ExitCode, UserError
from orchestrator.hydra_run import Trial
from orchestrator.planner.plan import Plan, loads
from topology.units import format_bytes, format_seconds

_COLUMNS = ("step_seconds", "tokens_per_second", "device_bytes", "host_bytes", "devices", "engine", "strategy", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial: the values that differ between trials, by key, and its plan (None: there is none, `note` says why)."""

    values: tuple[tuple[str, str], ...]
    plan: Plan | None
    note: str = ""


def rows_of(trials: Sequence[Trial]) -> tuple[Row, ...]:
    """Read what the trials saved, and keep of their overrides what differs."""
    keys, values = varied_values([trial.overrides for trial in trials])
    return tuple(_row(trial, tuple(zip(keys, own, strict=True))) for trial, own in zip(trials, values, strict=True))


def varied_values(overrides: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the keys whose values differ between trials, and each trial's values of them (empty: not set)."""
    asked = [dict(_split(item) for item in one) for one in overrides]
    keys = tuple(dict.fromkeys(key for one in asked for key in one))
    varied = tuple(key for key in keys if key != "save" and len({one.get(key) for one in asked}) > 1)
    return varied, tuple(tuple(one.get(key, "") for key in varied) for one in asked)


def differing(overrides: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return what tells each trial from the others, as it would be typed."""
    keys, values = varied_values(overrides)
    return tuple(" ".join(f"{key}={value}" for key, value in zip(keys, own, strict=True)) for own in values)


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.lstrip("+~").partition("=")
    return key, unquoted(value)


def unquoted(value: str) -> str:
    """A value without the quotes that Hydra's grammar needs: the inverse of `overrides.quote`."""
    if len(value) < len("''") or value[0] not in "'\"" or value[-1] != value[0]:
        return value
    inner = re.sub(rf"(\\+)(?={value[0]}|$)", lambda found: "\\" * (len(found[1]) // 2), value[1:-1])
    return re.sub(r"(\\+)(?=\$\{)", lambda found: "\\" * (len(found[1]) // 2), inner)


def _row(trial: Trial, values: tuple[tuple[str, str], ...]) -> Row:
    known = {int(ExitCode.NOTHING_FITS): "nothing fits", int(ExitCode.BAD_INPUT): "bad input"}
    if trial.code or not trial.document:
        return Row(values=values, plan=None, note=known.get(trial.code, f"exit code {trial.code}"))
    try:
        return Row(values=values, plan=loads(trial.document))
    except UserError as error:
        return Row(values=values, plan=None, note=str(error))


def table_text(rows: Sequence[Row]) -> str:
    """The rows as a table, in the order of the trials; the fastest per token is marked."""
    keys = [key for key, _ in rows[0].values] if rows else []
    head = (*keys, "step", "tokens/s", "device", "host", "strategy", "")
    best = max((row.plan.chosen.estimate.tokens_per_second for row in rows if row.plan is not None), default=0.0)
    lines = [head, *(_cells(row, best) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    left = len(keys) + 4
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at >= left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row, best: float) -> tuple[str, ...]:
    values = tuple(value for _, value in row.values)
    if row.plan is None:
        return (*values, "-", "-", "-", "-", row.note, "")
    estimate = row.plan.chosen.estimate
    return (
        *values,
        format_seconds(estimate.step_seconds),
        f"{estimate.tokens_per_second:,.0f}",
        format_bytes(estimate.memory.device_bytes),
        format_bytes(estimate.memory.host_bytes),
        row.plan.chosen.strategy.label,
        "most tokens/s" if estimate.tokens_per_second == best and best else "",
    )


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as CSV, in bytes and seconds; empty cells where nothing fits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(key for key, _ in rows[0].values), *_COLUMNS] if rows else _COLUMNS)
    for row in rows:
        values = [value for _, value in row.values]
        if row.plan is None:
            writer.writerow([*values, *[""] * (len(_COLUMNS) - 1), row.note])
            continue
        chosen = row.plan.chosen
        estimate, strategy = chosen.estimate, chosen.strategy
        numbers = (estimate.step_seconds, estimate.tokens_per_second)
        memory = (estimate.memory.device_bytes, estimate.memory.host_bytes)
        writer.writerow(
            [*values, *numbers, *memory, strategy.world_size, strategy.engine.value, strategy.label, row.note]
        )
    return out.getvalue()
