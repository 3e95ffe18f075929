"""What the runs of `bench/engines.py` come to: a row for each engine, the targets, and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median
from typing import Any, Final

WARM_UP: Final = 2  # steps that are not counted: DeepSpeed traces the model in them, allocators fill
STEP_LIMIT: Final = 1.10  # of ddp's step
CLOSE: Final = 1e-3  # of a loss, between engines that sum in another order
SHARDED: Final = ("zero3", "zero3_offload", "fsdp2")
RIVALS: Final = ("ddp", *SHARDED)
_MIB: Final = 2**20
_HEADS: Final = (
    "ranks",
    "engine",
    "live base, MiB (least to most over ranks)",
    "of it",
    "peak RSS, MiB",
    "load peak, MiB",
    "without file pages",
    "step, s",
    "CPU, s a step",
    "start-up, s",
    "last loss",
    "runs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of an engine.

    Attributes:
        engine, world, turn: which, on how many ranks, in which round.
        ranks: what each rank wrote.
    """

    engine: str
    world: int
    turn: int
    ranks: Sequence[Mapping[str, Any]]

    def most(self, name: str) -> float:
        """The largest of the ranks' values."""
        return max(float(rank[name]) for rank in self.ranks)

    @property
    def live_bytes(self) -> tuple[int, int]:
        """Fewest and most of the base on a rank, each at its largest moment."""
        sums = [sum(rank["live"].values()) for rank in self.ranks]
        return min(sums), max(sums)

    @property
    def step_seconds(self) -> float:
        """Median step after the warm-up, each as long as on its slowest rank."""
        return self.median_step("step_seconds")

    def median_step(self, name: str) -> float:
        """Median after the warm-up of the largest of the ranks' values; NaN if all steps are warm-up."""
        steps = [max(of_ranks) for of_ranks in zip(*(rank[name] for rank in self.ranks), strict=True)]
        return median(steps[WARM_UP:]) if len(steps) > WARM_UP else nan

    @property
    def losses(self) -> list[list[float]]:
        """Of each rank, step by step."""
        return [list(rank["losses"]) for rank in self.ranks]

    @property
    def last_loss(self) -> float:
        """Mean over the ranks, of the last step."""
        return sum(own[-1] for own in self.losses) / len(self.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An engine on a number of ranks, over all rounds: median, least and most."""

    engine: str
    world: int
    num_runs: int
    live_least_bytes: float
    live_most_bytes: float
    parts: str
    peak_rss_bytes: tuple[float, float, float]
    rss_before_load_bytes: tuple[float, float, float]
    load_peak_bytes: tuple[float, float, float]
    load_anonymous_bytes: tuple[float, float, float]
    step_seconds: tuple[float, float, float]
    step_cpu_seconds: tuple[float, float, float]
    startup_seconds: tuple[float, float, float]
    last_loss: float


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """One row for each number of ranks and engine, in the order of the runs."""
    kinds = list(dict.fromkeys((run.world, run.engine) for run in runs))
    return [_row([run for run in runs if (run.world, run.engine) == kind]) for kind in kinds]


def _row(runs: Sequence[Run]) -> Row:
    def over(value: Callable[[Run], float]) -> tuple[float, float, float]:
        values = [value(run) for run in runs]
        return median(values), min(values), max(values)

    largest = max(runs[0].ranks, key=lambda rank: sum(rank["live"].values()))["live"]
    return Row(
        engine=runs[0].engine,
        world=runs[0].world,
        num_runs=len(runs),
        live_least_bytes=min(run.live_bytes[0] for run in runs),
        live_most_bytes=max(run.live_bytes[1] for run in runs),
        parts=", ".join(f"{name} {held / _MIB:.0f}" for name, held in largest.items() if held),
        peak_rss_bytes=over(lambda run: run.most("peak_rss_bytes")),
        rss_before_load_bytes=over(lambda run: run.most("rss_before_load_bytes")),
        load_peak_bytes=over(lambda run: run.most("load_peak_bytes")),
        load_anonymous_bytes=over(lambda run: run.most("load_anonymous_peak_bytes")),
        step_seconds=over(lambda run: run.step_seconds),
        step_cpu_seconds=over(lambda run: run.median_step("step_cpu_seconds")),
        startup_seconds=over(lambda run: run.most("startup_seconds")),
        last_loss=runs[-1].last_loss,
    )


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with null where nothing was timed: JSON has no NaN."""
    is_empty = {name: isinstance(value, tuple) and any(isnan(x) for x in value) for name, value in row.items()}
    return {name: None if is_empty[name] else value for name, value in row.items()}


def verdicts(runs: Sequence[Run]) -> list[str]:
    """One line for each target and number of ranks: met or missed, and by how much."""
    found = []
    rows = rows_of(runs)
    for world in dict.fromkeys(row.world for row in rows):
        of = {row.engine: row for row in rows if row.world == world}
        rivals = [of[name] for name in RIVALS if name in of]
        if "streamed" not in of or not rivals:
            continue
        ours = of["streamed"]
        head = f"{world} ranks"
        found += [
            _least(head, "live base bytes", ours, rivals, lambda row: row.live_most_bytes),
            _least(head, "load peak", ours, rivals, lambda row: row.load_peak_bytes[0]),
            _least(head, "load peak without file pages", ours, rivals, lambda row: row.load_anonymous_bytes[0]),
            _least(head, "start-up", ours, rivals, lambda row: row.startup_seconds[0]),
        ]
        if "streamed_again" in of:
            again = of["streamed_again"]
            found.append(_least(head, "second start-up", again, rivals, lambda row: row.startup_seconds[0]))
        if "ddp" in of:
            found.append(_ratio(head, ours, of["ddp"], STEP_LIMIT))
        sharded = [of[name] for name in SHARDED if name in of]
        if sharded:
            found.append(_ratio(head, ours, min(sharded, key=lambda row: row.step_seconds[0]), 1.0))
        found += _losses(head, [run for run in runs if run.world == world])
    return found


def _least(head: str, what: str, ours: Row, rivals: Sequence[Row], value: Callable[[Row], float]) -> str:
    best = min(rivals, key=value)
    ratio = value(ours) / value(best)
    return f"{_word(is_met=ratio <= 1)}: {head}, {what}: {ours.engine} {ratio:.2f} x the best rival ({best.engine})"


def _ratio(head: str, ours: Row, other: Row, limit: float) -> str:
    ratio = ours.step_seconds[0] / other.step_seconds[0]
    return f"{_word(is_met=ratio <= limit)}: {head}, step: {ratio:.2f} x {other.engine} (at most {limit:.2f})"


def _losses(head: str, runs: Sequence[Run]) -> list[str]:
    whole = next((run for run in runs if run.engine == "ddp"), None)
    if whole is None:
        return []
    found = []
    for engine in dict.fromkeys(run.engine for run in runs):
        others = [run for run in runs if run.engine == engine and run is not whole]
        if not others:
            continue
        pairs = [pair for run in others for pair in _pairs(run, whole)]
        apart = max(abs(a - b) / abs(b) for a, b in pairs)
        if engine.startswith("streamed") or engine == "ddp":
            found.append(f"{_word(is_met=apart == 0)}: {head}, losses of {engine}: bitwise those of ddp")
        else:
            found.append(f"{_word(is_met=apart <= CLOSE)}: {head}, losses of {engine}: within {apart:.1e} of ddp")
    return found


def _pairs(run: Run, whole: Run) -> list[tuple[float, float]]:
    """Losses of the same step and rank; a second start takes fewer steps."""
    return [pair for own, other in zip(run.losses, whole.losses, strict=True) for pair in zip(own, other, strict=False)]


def _word(*, is_met: bool) -> str:
    return "met" if is_met else "missed"


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as Markdown; MiB and seconds, median (least to most of the rounds)."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    for row in rows:
        cells = [
            str(row.world),
            row.engine,
            f"{row.live_least_bytes / _MIB:,.0f} to {row.live_most_bytes / _MIB:,.0f}",
            row.parts,
            f"{_span(row.peak_rss_bytes, _MIB, 0)} from {row.rss_before_load_bytes[0] / _MIB:,.0f}",
            _span(row.load_peak_bytes, _MIB, 0),
            _span(row.load_anonymous_bytes, _MIB, 0),
            _span(row.step_seconds, 1, 2),
            _span(row.step_cpu_seconds, 1, 2),
            _span(row.startup_seconds, 1, 1),
            f"{row.last_loss:.6f}",
            str(row.num_runs),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _span(values: tuple[float, float, float], unit: int, digits: int) -> str:
    if any(isnan(value) for value in values):
        return "-"
    middle, least, most = (f"{value / unit:,.{digits}f}" for value in values)
    return middle if least == most else f"{middle} ({least} to {most})"
