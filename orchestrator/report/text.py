"""The summary of a run as text for the console."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.planner.explain import reasons_of
from orchestrator.planner.plan import Plan
from orchestrator.report.evaluation import blocks_of, evaluation_lines
from orchestrator.report.sources import source_lines
from topology.units import format_bytes

_MIB = 2**20


def summary_text(plan: Plan, summary: Mapping[str, Any], run_dir: Path) -> str:
    """Return machine, choice, losses and predicted against measured, in a screenful."""
    lines = [
        f"Machine   {plan.machine}",
        f"Chosen    {plan.chosen.strategy.label}",
        *(f"          {reason}" for reason in reasons_of(plan)),
        _trained_line(summary),
        _loss_line(summary),
        *evaluation_lines(summary),
        *source_lines(summary),
        "",
        _comparison(summary, is_gpu=plan.device_kind == "gpu"),
        "",
        *([f"Samples   {run_dir / 'samples.md'}"] if _has_answers(summary) else []),
        f"Adapter   {run_dir / 'adapter'}",
        f"Run       {run_dir}",
    ]
    return "\n".join(lines) + "\n"


def _has_answers(summary: Mapping[str, Any]) -> bool:
    return any("answers" in x for x in blocks_of(summary) for x in (x, x.get("prompts") or {}))


def _trained_line(summary: Mapping[str, Any]) -> str:
    steps, rows, ranks = summary["steps"], summary["samples"], summary["world_size"]
    on = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return f"Trained   {steps} steps, {rows:,} rows, on {on} in {summary['wall_seconds']:.0f} s"


def _loss_line(summary: Mapping[str, Any]) -> str:
    before, after = summary["eval_loss_before"], summary["eval_loss_after"]
    if after is None and summary.get("eval_row_losses") is not None:
        return "Loss      the held-out loss is not a number: lower optimizer.lr, or use precision=bf16 or fp32"
    if after is None:
        return "Loss      no held-out rows"
    if before is None:
        return f"Loss      held-out {after:.4f} after training"
    change = (after - before) / before
    return f"Loss      held-out {before:.4f} before, {after:.4f} after ({change:+.1%})"


def _comparison(summary: Mapping[str, Any], *, is_gpu: bool) -> str:
    kinds = (("device_bytes", "device"), ("host_bytes", "host")) if is_gpu else (("host_bytes", "host"),)
    predicted, measured = summary["predicted"], summary["measured"]
    rows = [
        ("", "predicted", "measured", "ratio"),
        _row("step time", predicted["step_seconds"], measured["step_seconds"], _seconds),
        _row("tokens/s", predicted["tokens_per_second"], measured["tokens_per_second"], "{:,.0f}".format),
    ]
    if (route := summary.get("gradient_route")) and route["runner"] == "executor":
        rows.append(_row("gradients, a step", route["predicted_seconds"], route["measured_seconds"], _seconds))
    for phase, found in measured["memory"].items():
        for key, text in kinds:
            guess = predicted["memory"][phase][key]
            rows.append(_row(f"{text} memory, {phase}", guess, found[key], _bytes))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(name: str, predicted: float, measured: float | None, show: Any) -> tuple[str, str, str, str]:  # noqa: ANN401
    if measured is None:
        return name, show(predicted), "-", "-"
    ratio = f"{measured / predicted:.2f}" if predicted else "-"
    return name, show(predicted), show(measured), ratio


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _bytes(value: float) -> str:
    return format_bytes(int(value)) if value >= 2**30 else f"{value / _MIB:.1f} MiB"
