"""The table of `faults run` as text, Markdown and plain values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.fault_runs.row import Left, Row, throughput

SCHEMA: Final = 1
_MOST_WORDS: Final = 160  # characters of a message in the text table
_NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What `faults run` found.

    Attributes:
        asked: the overrides, as they were typed.
        machine: where it ran.
        world_size: ranks of the run without a fault.
        skipped: faults that were not tried, each with the reason.
    """

    asked: tuple[str, ...]
    machine: str
    world_size: int
    baseline: Left
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...] = ()


def to_json(matrix: Matrix) -> dict[str, Any]:
    """Return the table as plain values."""
    summary = matrix.baseline.summary
    return {
        "schema": SCHEMA,
        "asked": list(matrix.asked),
        "machine": matrix.machine,
        "world_size": matrix.world_size,
        "baseline": {
            "wall_seconds": matrix.baseline.seconds,
            "tokens_per_second": throughput(matrix.baseline),
            "steps": summary.get("steps"),
            "step_seconds": dict(summary.get("measured") or {}).get("step_seconds"),
            "eval_loss_after": summary.get("eval_loss_after"),
            "train_loss_last": summary.get("train_loss_last"),
        },
        "rows": [{**asdict(row), "outcome": row.outcome.value} for row in matrix.rows],
        "skipped": [{"fault": fault, "why": why} for fault, why in matrix.skipped],
    }


_COLUMNS: Final[tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...]] = (
    ("fault", lambda row: str(row["fault"])),
    ("outcome", lambda row: str(row["outcome"])),
    ("detected", lambda row: _seconds(row["detected_seconds"])),
    ("recovered", lambda row: _seconds(row["recovered_seconds"])),
    ("steps lost", lambda row: _text(row["steps_lost"], "{}")),
    ("restarts", lambda row: str(row["restarts"])),
    ("throughput", lambda row: _text(row["throughput"], "{:.0%}")),
    ("steps to same loss", lambda row: _text(row["steps_to_same_loss"], "{}")),
    ("held-out loss", lambda row: _deviation(row, "eval_loss_deviation")),
    ("training loss", lambda row: _deviation(row, "train_loss_deviation")),
)


def cells(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return titles and cells of rows as `to_json` has them, without the messages."""
    return tuple(title for title, _ in _COLUMNS), [tuple(show(row) for _, show in _COLUMNS) for row in rows]


def to_text(matrix: Matrix) -> str:
    """Return the table for a terminal, with each message under it."""
    body = to_json(matrix)
    titles, lines = cells(body["rows"])
    widths = [max(len(line[at]) for line in (titles, *lines)) for at in range(len(titles))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (titles, *lines)
    ]
    told = [f"  {row.fault}: {_short(row.message)}" for row in matrix.rows if row.message]
    skipped = [f"  {fault}: {why}" for fault, why in matrix.skipped]
    wrong = [row.fault for row in matrix.rows if not row.as_expected]
    ends = f"not as they must: {', '.join(wrong)}" if wrong else "all ended as they must"
    return "\n".join(
        [
            _title(body),
            *shown,
            *(["", "What was said", *told] if told else []),
            *(["", "Not tried", *skipped] if skipped else []),
            "",
            f"{len(matrix.rows)} faults, {ends}",
            "",
        ]
    )


def to_markdown(body: Mapping[str, Any]) -> str:
    """Return the table of a document as `to_json` makes it, in Markdown."""
    titles, lines = cells(body["rows"])
    messages = [_short(row["message"]).replace("|", "\\|") for row in body["rows"]]
    table = [
        f"| {' | '.join((*titles, 'said'))} |",
        f"|{'---|' * (len(titles) + 1)}",
        *(f"| {' | '.join((*line, message))} |" for line, message in zip(lines, messages, strict=True)),
    ]
    skipped = [f"- {entry['fault']}: {entry['why']}" for entry in body["skipped"]]
    return "\n".join([_title(body), "", *table, *(["", "Not tried:", "", *skipped] if skipped else [])]) + "\n"


def _title(body: Mapping[str, Any]) -> str:
    baseline, ranks = body["baseline"], body["world_size"]
    return (
        f"{body['machine']}, {ranks} {'rank' if ranks == 1 else 'ranks'}. Without a fault: "
        f"{_text(baseline['steps'], '{}')} steps in {baseline['wall_seconds']:.0f} s, "
        f"{_text(baseline['step_seconds'], '{:.2f}')} s a step, "
        f"{_text(baseline['tokens_per_second'], '{:,.0f}')} tokens/s."
    )


def _text(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)


def _seconds(value: float | None) -> str:
    return _text(value, "{:.1f} s")


def _deviation(row: Mapping[str, Any], key: str) -> str:
    if row["is_bitwise"] and row[key] is not None:
        return "same bits"
    return _text(row[key], "{:+.2%}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_WORDS else line[: _MOST_WORDS - 3] + "..."


def listing_text(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of `faults list`."""
    width = max(len(kind["fault"]) for kind in kinds)
    return "\n".join(f"  {kind['fault']:<{width}}  {kind['text']}" for kind in kinds) + "\n"
