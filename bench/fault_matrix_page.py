"""The page of the fault matrix, from its results: medians of several runs, and what was too late."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.config import Fault
from orchestrator.faults.fault import KINDS

_RECOVERED_SECONDS: Final = {2: 30.0, 4: 45.0}  # by ranks: until steps are done again, on two cores
_DETECTED_SECONDS: Final = 10.0
_DETECTED_STEPS: Final = 3
_SLURM_SECONDS: Final = 45.0  # beside the time-out after which SLURM gives a node up
_MOST_WORDS: Final = 180
_HEAD: Final = """\
# Faults: what is done to a run, and what comes of it

`trainmaster faults run` trains once without a fault and once with each fault that can be done on the machine, and says
when it was named, when steps were done again, what was lost, and what became of the loss. `trainmaster faults list`
names them; `faults=NAME faults.step=N faults.rank=R` gives one to any `trainmaster train`, once or each `faults.every`
steps. Faults are real: signals, a lock that is never released, allocations that are refused, bits that are flipped, a
file system that is full, links that are shaped or cut. Those of GPUs are readings that the monitor takes for the
driver's, since no card fails on demand.

A marker in `RUN_DIR/faults/` is brought to the disk before a fault comes, so a run that starts again does not meet it
twice. What would harm others than the run is refused: only a small file system of its own is filled, only the link of a
network namespace is touched, and no GPU is ever reset.

- detected: from the fault until `fault_detected` in `events.jsonl`; recovered: until the first new step was done.
- steps lost: done twice, or, of a run that stopped, to be done again by the one that continues it.
- throughput: tokens a second from the first to the last step, over the same without a fault.
- steps to same loss: done, those done twice included, until the mean of three training losses was what the run without
  a fault ended with.
- losses: the last ones against those without a fault; `same bits` where all losses of the run are.
"""


def page(body: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    machine = body["machine"]
    made = f"`{body['command']}` on {machine['cores']} cores, Linux {machine['kernel']}, torch {machine['torch']}"
    parts = [_HEAD, f"{made}, {body['when']}; medians, with the lowest and highest where runs differ.\n"]
    parts += [_setting(setting) for setting in body["settings"]]
    return "\n".join([*parts, *_kinds()]) + "\n"


def _setting(setting: Mapping[str, Any]) -> str:
    runs = setting["runs"]
    baselines = [run["baseline"] for run in runs]
    ranks = runs[0]["world_size"]
    step_seconds = _median([base["step_seconds"] for base in baselines])
    head = (
        f"## {setting['name']}\n\n"
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} of `trainmaster faults run {' '.join(setting['asked'])}`. "
        f"Without a fault: {ranks} ranks, {step_seconds or 0:.2f} s a step, "
        f"{_median([base['wall_seconds'] for base in baselines]) or 0:.0f} s in all.\n"
    )
    titles = (
        "fault",
        "outcome",
        "detected, s",
        "recovered, s",
        "steps lost",
        "restarts",
        "throughput",
        "steps to same loss",
        "held-out loss",
        "training loss",
        "said",
    )
    rows = {name: [row for run in runs for row in run["rows"] if row["fault"] == name] for name in _names(runs)}
    lines = [f"| {' | '.join(_cells(name, found))} |" for name, found in rows.items()]
    late = [text for name, found in rows.items() for text in _late(name, found, ranks, step_seconds or 0.0)]
    skipped = {entry["fault"]: entry["why"] for run in runs for entry in run["skipped"]}
    told = [
        *(["", "Later than wanted, or not as it must be:", "", *(f"- {text}" for text in late)] if late else []),
        *(["", "Not tried here:", "", *(f"- {name}: {why}" for name, why in skipped.items())] if skipped else []),
    ]
    return "\n".join([head, f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *lines, *told, ""])


def _names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["fault"] for run in runs for row in run["rows"]))


def _cells(name: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    outcomes = dict.fromkeys(row["outcome"] for row in rows)
    counted = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in outcomes}
    outcome = ", ".join(f"{count}x {which}" if len(counted) > 1 else which for which, count in counted.items())
    message = " ".join(rows[0]["message"].split()).replace("|", "\\|")
    return (
        name,
        outcome,
        _spread(rows, "detected_seconds", "{:.1f}"),
        _spread(rows, "recovered_seconds", "{:.1f}"),
        _spread(rows, "steps_lost", "{:.0f}"),
        _spread(rows, "restarts", "{:.0f}"),
        _spread(rows, "throughput", "{:.0%}"),
        _spread(rows, "steps_to_same_loss", "{:.0f}"),
        _loss(rows, "eval_loss_deviation"),
        _loss(rows, "train_loss_deviation"),
        message if len(message) <= _MOST_WORDS else f"{message[: _MOST_WORDS - 3]}...",
    )


def _spread(rows: Sequence[Mapping[str, Any]], key: str, form: str) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return "-"
    middle, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} [{low}-{high}]"


def _loss(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    if all(row["is_bitwise"] for row in rows) and all(row[key] is not None for row in rows):
        return "same bits"
    return _spread(rows, key, "{:+.2%}")


def _median(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _late(name: str, rows: Sequence[Mapping[str, Any]], ranks: int, step_seconds: float) -> Iterator[str]:
    """Say what misses what is wanted of a fault."""
    wrong = [row for row in rows if not row["as_expected"]]
    if wrong:
        yield f"{name}: {wrong[0]['outcome']} in {len(wrong)} of {len(rows)}"
    if name.startswith("slurm"):
        return
    limits = {
        "detected": max(_DETECTED_SECONDS, _DETECTED_STEPS * step_seconds),
        "recovered": _RECOVERED_SECONDS.get(ranks, _SLURM_SECONDS),
    }
    for what, limit in limits.items():
        middle = _median([row[f"{what}_seconds"] for row in rows])
        if middle is not None and middle > limit:
            yield f"{name}: {what} after {middle:.1f} s, {limit:.0f} s are wanted"


def _kinds() -> list[str]:
    lines = [f"| `{kind.fault.value}` | {kind.text} | {kind.end.value} |" for kind in KINDS.values()]
    assert len(lines) == len(Fault) - 1  # noqa: S101 - all but none
    return ["## All faults", "", "| fault | what is done | the run |", "|---|---|---|", *lines]
