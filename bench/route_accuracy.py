"""Predicted against published bus bandwidth of collectives: a table, the median error and the knees of size curves.

    python bench/route_accuracy.py CORPUS_FOLDER [--write docs/accuracy_routes.md]

Nothing is fitted here: the shares of `topology/routing/priors.py` are what predictions use.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from route_records import Record, read_records

from topology.collectives import Collective, bus_factor
from topology.graph import Graph
from topology.routing.bound import bound
from topology.routing.duration import duration
from topology.routing.menu import menu
from topology.routing.software import Runner
from topology.units import GB

COLLECTIVES = {
    "all_reduce": Collective.all_reduce,
    "all_gather": Collective.all_gather,
    "reduce_scatter": Collective.reduce_scatter,
    "alltoall": Collective.all_to_all,
}


# Curves that follow no start-up and rate, with what their records say of it.
KNEES_NOT_COUNTED: Final = {
    "p014": "calls of any small size take 230 to 500 us (container and plugin), and the rate stands still at 256 MB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A record beside its prediction; rates in GB/s."""

    record: Record
    size: int
    measured: float
    predicted: float
    algorithm: str
    bound: float
    knee: float | None = None  # predicted over measured

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def predicted(graph: Graph, record: Record, size: int) -> tuple[float, str]:
    """Best bus bandwidth in GB/s of what NCCL has for a size, and which algorithm it is."""
    collective = COLLECTIVES[record.op]
    entries = [entry for entry in menu(graph, collective) if entry.runner is Runner.builtin]
    if record.algorithm == "Ring":
        entries = [entry for entry in entries if entry.algorithm == "ring"]
    seconds, name = min((duration(entry, size).seconds, entry.algorithm) for entry in entries)
    return size * float(bus_factor(collective, graph.size)) / seconds / GB, name


def knee(curve: dict[int, float]) -> float | None:
    """Size in bytes at which half of the largest bandwidth is reached, between two points of the curve."""
    half, sizes = max(curve.values()) / 2, sorted(curve)
    if curve[sizes[0]] >= half:
        return None
    for low, high in pairwise(sizes):
        if curve[low] < half <= curve[high]:
            return float(low * (high / low) ** ((half - curve[low]) / (curve[high] - curve[low])))
    return None


def judge(record: Record, corpus: Path) -> Judged | None:
    """The record's largest size, and its knee if it is a curve."""
    if record.draw is None:
        return None
    graph = record.draw(corpus)
    size = max(record.busbw, key=lambda at: (record.busbw[at], at))
    rate, name = predicted(graph, record, size)
    ratio = None
    measured_knee = knee(record.busbw) if len(record.busbw) > 1 else None
    if measured_knee is not None:
        guess = knee({at: predicted(graph, record, at)[0] for at in record.busbw})
        ratio = None if guess is None else guess / measured_knee
    collective = COLLECTIVES[record.op]
    least = float(bound(graph, collective).seconds_per_byte)
    return Judged(
        record=record,
        size=size,
        measured=record.busbw[size],
        predicted=rate,
        algorithm=name,
        bound=float(bus_factor(collective, graph.size)) / least / GB,
        knee=ratio,
    )


def report(records: list[Record], corpus: Path) -> tuple[list[str], list[Judged]]:
    """The page's lines, and what counts."""
    rows = ["| record | machine | collective | size | measured | predicted | error | by | bound | knee |"]
    rows.append("|---" * 10 + "|")
    counted: list[Judged] = []
    left = ["", "Not counted:", ""]
    for record in records:
        found = judge(record, corpus)
        if found is None or record.reason:
            note = "" if found is None else f" (predicted {found.predicted:.1f}, measured {found.measured:.1f} GB/s)"
            left.append(f"- {record.name}, {record.system}: {record.reason}{note}")
            continue
        counted.append(found)
        ratio = "" if found.knee is None else f"{found.knee:.2f}"
        ratio += " (not counted)" if record.name in KNEES_NOT_COUNTED else ""
        rows.append(
            f"| {record.name} | {record.system} | {record.op} | {found.size / 2**20:,.0f} MiB | {found.measured:.1f} | "
            f"{found.predicted:.1f} | {found.error:+.0%} | {found.algorithm} | {found.bound:.1f} | {ratio} |"
        )
    left += [f"- {name}, its knee: {reason}" for name, reason in KNEES_NOT_COUNTED.items()]
    return rows + left, counted


def main() -> int:
    """Print the page; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows, counted = report(read_records(options.corpus), options.corpus)
    errors = [abs(found.error) for found in counted]
    named = {found.record.name: found.knee for found in counted if found.knee is not None}
    knees = [ratio for name, ratio in named.items() if name not in KNEES_NOT_COUNTED]
    inside = sum(0.5 <= ratio <= 2 for ratio in knees)  # noqa: PLR2004 - a factor of two
    head = [
        "# Predicted and published bus bandwidth",
        "",
        "Made by `python bench/route_accuracy.py CORPUS`. Rates in GB/s (1e9), as nccl-tests counts them; knee:",
        "predicted over measured size at which half of the largest rate is reached.",
        "",
        (
            f"{len(counted)} records: median error {statistics.median(errors):.1%}; "
            f"{inside} of {len(knees)} knees within a factor of two, "
            f"{len(named) - len(knees)} not counted."
        ),
        "",
    ]
    text = "\n".join([*head, *rows, ""])
    sys.stdout.write(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
