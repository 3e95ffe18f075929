"""Predicted against published step times: `python bench/time_accuracy.py [--records FILE] [--all] [--write FILE]`.

Reads the records with a throughput (`time_records`), and prints the errors per machine (GPU model and framework
family): as they are, and after one factor per machine, which is fitted to its other records only. `--all` prints every
record, `--write` makes the Markdown page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from time_records import RECORDS, Left, Reading, Record, interpret, read_records

from orchestrator.config import Quant
from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate.time import estimate_time
from orchestrator.estimate.time_practice import practice_of
from orchestrator.estimate.values import StepTime

MIN_RECORDS: Final = 5
_RATES: Final = tuple(0.2 * 1.15**step for step in range(14))
_COMMAND: Final = "python bench/time_accuracy.py --write docs/accuracy_time.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Prediction and measurement of one record, in seconds a step."""

    reading: Reading
    time: StepTime

    @property
    def predicted(self) -> float:
        """With what validation adds."""
        return self.time.step_seconds * (1 + self.reading.evaluation)

    @property
    def error(self) -> float:
        """Share that the prediction is above the measurement."""
        return self.predicted / self.reading.measured_seconds - 1

    @property
    def inside(self) -> bool:
        """Whether the bounds hold the measurement."""
        return self.time.lower_seconds <= self.reading.measured_seconds <= self.time.upper_seconds


def compare(records: Iterable[Record]) -> tuple[tuple[Compared, ...], tuple[Left, ...]]:
    """Predict every record that can be read."""
    readings = [interpret(record) for record in records]
    compared = tuple(
        Compared(reading=reading, time=estimate_time(reading.setting))
        for reading in readings
        if isinstance(reading, Reading)
    )
    return compared, tuple(reading for reading in readings if isinstance(reading, Left))


def machines_of(compared: Iterable[Compared]) -> dict[str, list[Compared]]:
    """Records by machine: GPU model and framework family."""
    found: dict[str, list[Compared]] = defaultdict(list)
    for one in compared:
        found[one.reading.machine].append(one)
    return dict(found)


def calibrated_errors(records: list[Compared]) -> list[float]:
    """Errors after one factor, the median ratio of the machine's other records."""
    ratios = [1 / (1 + one.error) for one in records]
    errors = []
    for at, one in enumerate(records):
        factor = statistics.median(ratios[:at] + ratios[at + 1 :])
        errors.append((1 + one.error) * factor - 1)
    return errors


def median_error(errors: Iterable[float]) -> float:
    """Median of the absolute errors."""
    return statistics.median(abs(error) for error in errors)


def family_of(machine: str) -> str:
    """The framework of a machine's name."""
    return machine.rpartition(" | ")[2]


def refitted(records: Iterable[Reading]) -> list[tuple[str, int, float, float, float]]:
    """The one constant that families share in sight of these records, fitted without each family in turn.

    Returns:
        Family, its 4-bit records, the fitted unpacking rate (weights per cycle), and the family's median error with the
        rate of the table and with the fitted one.
    """
    packed = [x for x in records if x.setting.quant is not Quant.none and _is_limited(x)]
    found = []
    for family in dict.fromkeys(family_of(x.machine) for x in packed):
        inside = [x for x in packed if family_of(x.machine) == family]
        others = [x for x in packed if family_of(x.machine) != family]
        best = min(_RATES, key=lambda rate: _error_at(others, rate))
        usual = _error_at(inside, ct.DEQUANTISE_PER_CYCLE.value)
        found.append((family, len(inside), best, usual, _error_at(inside, best)))
    return found


def _is_limited(reading: Reading) -> bool:
    return practice_of(reading.setting.stack).dequantise_per_cycle > 0


def _error_at(readings: Iterable[Reading], rate: float) -> float:
    errors = []
    for reading in readings:
        practice = replace(practice_of(reading.setting.stack), dequantise_per_cycle=rate)
        errors.append(Compared(reading=reading, time=estimate_time(reading.setting, practice)).error)
    return median_error(errors)


def summary_lines(compared: tuple[Compared, ...], left: tuple[Left, ...]) -> list[str]:
    """One line per machine, and the totals."""
    lines = []
    pooled: list[float] = []
    for name, records in machines_of(compared).items():
        line = f"{name}: {len(records)} records, median |error| {median_error(x.error for x in records):.1%}"
        if len(records) >= MIN_RECORDS:
            errors = calibrated_errors(records)
            pooled += errors
            line += f", calibrated {median_error(errors):.1%}"
        lines.append(f"{line}, factor {_factor(records):.2f}")
    lines.append(
        f"all {len(compared)}: median |error| {median_error(x.error for x in compared):.1%}; calibrated "
        f"{median_error(pooled):.1%}; {sum(x.inside for x in compared)} inside the bounds; {len(left)} left out"
    )
    return lines


def _factor(records: list[Compared]) -> float:
    return statistics.median(1 / (1 + one.error) for one in records)


def record_line(one: Compared) -> str:
    """One record with what its step is made of."""
    terms = ", ".join(f"{term.name} {term.seconds:.3g}" for term in one.time.terms if term.seconds > 0)
    bounds = "" if one.inside else " outside the bounds"
    return (
        f"   {one.reading.id:45} {one.predicted:8.3f} s, measured {one.reading.measured_seconds:8.3f} s "
        f"{one.error:+.0%}{bounds} ({terms})"
    )


def markdown(compared: tuple[Compared, ...], left: tuple[Left, ...]) -> str:
    """The page `docs/accuracy_time.md`."""
    errors = sorted(abs(one.error) for one in compared)
    ninth = errors[int(0.9 * (len(errors) - 1))]
    machines = machines_of(compared)
    pooled = [
        error for records in machines.values() if len(records) >= MIN_RECORDS for error in calibrated_errors(records)
    ]
    lines = [
        "# Step times against published ones",
        "",
        f"Made by `{_COMMAND}`.",
        "A machine is a GPU model with a framework family. An error is predicted / measured - 1 of a step's seconds.",
        "`calibrated` multiplies a machine's predictions by one factor: the median ratio of its other records (each",
        "record is left out of its own factor).",
        "",
        f"- {len(compared)} records compared, {len(left)} left out (below)",
        f"- median |error| **{median_error(x.error for x in compared):.1%}**, 90th percentile {ninth:.1%}",
        f"- calibrated, machines of at least {MIN_RECORDS} records: median |error| **{median_error(pooled):.1%}**",
        f"- {sum(x.inside for x in compared)} of {len(compared)} lie between the lower and the upper bound",
        "",
        "| machine | records | median error | calibrated | factor |",
        "|---|---|---|---|---|",
    ]
    for name, records in machines.items():
        fitted = f"{median_error(calibrated_errors(records)):.1%}" if len(records) >= MIN_RECORDS else "-"
        median = median_error(x.error for x in records)
        lines.append(
            f"| {name.replace(' | ', ', ')} | {len(records)} | {median:.1%} | {fitted} | {_factor(records):.2f} |"
        )
    lines += [
        "",
        *_constants_section(),
        "",
        *_refit_section(compared),
        "",
        *_records_section(machines),
        "",
        *_left_section(left),
        "",
    ]
    return "\n".join(lines)


def _constants_section() -> list[str]:
    lines = [
        "## What was chosen with these records in sight",
        "",
        "Products, traffic and moved bytes are counted; the rates of large products are other people's measurements",
        "(`calibration_time.GENERATIONS`). These constants were not independent of the records above, so a new stack",
        "may err by more than the tables show:",
        "",
        "| constant | value | unit | source |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {constant.value:.4g} | {constant.unit} | {constant.source} |"
        for name, constant in ct.table()
        if name in ct.SEEN
    ]
    lines += [
        "",
        "The same holds for what the records leave open (`bench/time_records.py`): recomputation under FSDP gathers",
        "nothing ahead (told by the LoRA rows of two RTX 3090), links of 3 GB/s on that board, 6 GB/s on the A5000s,",
        "the `fms` rows on the PCIe card (their two-GPU rows move weights at PCIe rates), fp32 hidden states in the",
        "`fms-baseline` rows of one GPU, and the mean lengths of both Alpaca sets, which nobody publishes.",
        "No record of the RTX 6000 Ada runs at what that card reaches in short tests; a power limit may be why.",
    ]
    return lines


def _refit_section(compared: tuple[Compared, ...]) -> list[str]:
    lines = [
        "## One family left out",
        "",
        f"The unpacking rate of 4-bit weights ({ct.DEQUANTISE_PER_CYCLE.value} weights per cycle of a multiprocessor)",
        "is the one constant of those above that several families share. Fitted to the other families' records only:",
        "",
        "| family left out | 4-bit records | rate fitted without it | error with the table's rate | with that |",
        "|---|---|---|---|---|",
    ]
    rows = refitted(one.reading for one in compared)
    return [
        *lines,
        *(f"| {name} | {count} | {rate:.2f} | {usual:.1%} | {left:.1%} |" for name, count, rate, usual, left in rows),
    ]


def _records_section(machines: dict[str, list[Compared]]) -> list[str]:
    lines = ["## Records", "", "| record | measured s | predicted s | error | bounds s |", "|---|---|---|---|---|"]
    for records in machines.values():
        lines += [
            f"| {x.reading.id} | {x.reading.measured_seconds:.3g} | {x.predicted:.3g} | {x.error:+.0%} | "
            f"{x.time.lower_seconds:.3g} - {x.time.upper_seconds:.3g} |"
            for x in records
        ]
    return lines


def _left_section(left: tuple[Left, ...]) -> list[str]:
    lines = ["## Left out", "", "| record | reason |", "|---|---|"]
    return [*lines, *(f"| {one.id} | {one.reason} |" for one in left)]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", type=Path, help="write the Markdown page there")
    parser.add_argument("--all", action="store_true", help="print every record")
    args = parser.parse_args()
    if not args.records.is_file():
        sys.stderr.write(f"{args.records} is not there: give the file of records with --records\n")
        return 2
    compared, left = compare(read_records(args.records))
    lines = [record_line(one) for one in compared] if args.all else []
    lines += [f"   {one.id}: left out, {one.reason}" for one in left] if args.all else []
    print("\n".join([*lines, *summary_lines(compared, left)]))
    if args.write:
        args.write.write_text(markdown(compared, left), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
