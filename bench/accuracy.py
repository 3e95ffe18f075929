"""The memory estimate against published measurements: errors by software stack, and what a new stack will see.

    python bench/accuracy.py FILE [--quick] [--fit] [--out docs/accuracy.md] [--show FAMILY]

FILE is a YAML list of records (`bench/accuracy_records.py` says which keys, and holds every assumption). The command
prints the tables and writes them to `--out`. It refits the default constants once for each family left out, which takes
two minutes; `--quick` skips that and writes nothing. `--fit` fits each stack's constants and prints them for
`orchestrator/estimate/stacks.py`. `--show` lists the records of a family.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from accuracy_fit import Outcome, estimated, fit, stack_of
from accuracy_records import Excluded, Record, read_record
from accuracy_report import gigabytes, report

from orchestrator.estimate.stacks import DEFAULT, STACKS, Stack

GRADES = ("A", "B")
# Four of the default constants were set with all stacks in view; these know nothing of the stack left out.
NEUTRAL = Stack(name="neutral", source="nothing beyond what is counted")
_UNDER_DEFAULT = 16.0  # an unknown stack is estimated above rather than below
_STRIDE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A file of records: those that can be compared, and the others with the reason."""

    records: tuple[Record, ...]
    excluded: tuple[tuple[str, str], ...]


def read(path: Path) -> Read:
    """Read records; nothing is dropped without a reason."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
    bodies: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - it is safe
    records, excluded = [], []
    for body in bodies:
        try:
            records.append(read_record(body))
        except Excluded as reason:
            excluded.append((str(body.get("id")), str(reason)))
    return Read(records=tuple(records), excluded=tuple(excluded))


def outcomes(records: Sequence[Record]) -> tuple[Outcome, ...]:
    """Estimates with the constants of the table."""
    return tuple(estimated(record, stack_of(record.family)) for record in records)


def by_family(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each stack, in the order of the file."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.family].append(record)
    return dict(found)


def default_without(records: Sequence[Record], family: str | None, start: Stack = DEFAULT) -> Stack:
    """The default constants, fitted to the graded records of all other families; the rest as in `start`."""
    graded = [x for x in records if x.grade in GRADES and x.family != family]
    groups = list(by_family(graded).values())
    return fit(groups, start, DEFAULT.fitted, under=_UNDER_DEFAULT, stride=_STRIDE)


def left_out(records: Sequence[Record], start: Stack = DEFAULT) -> dict[str, tuple[Outcome, ...]]:
    """Estimates of each family with constants that are fitted to the others."""
    found = {}
    for family, members in by_family([x for x in records if x.grade in GRADES]).items():
        stack = default_without(records, family, start)
        found[family] = tuple(estimated(x, stack) for x in members)
    return found


def refitted(records: Sequence[Record]) -> list[Stack]:
    """Each stack of the table with its constants fitted anew, and the default ones."""
    stacks = []
    for name, members in by_family(records).items():
        if name not in STACKS or not STACKS[name].fitted:
            continue
        known = [x for x in members if x.grade != "C"] or members
        # With GPTQ under FSDP the allocator keeps what loading had needed: no share of the allocated bytes tells that.
        shown = [reading for x in known if (reading := x.device_reading) and not x.setting.loads_whole]
        stacks.append(fit([[*known, *shown]], STACKS[name], STACKS[name].fitted))
    return [*stacks, default_without(records, None)]


def main() -> int:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    parser.add_argument("--show", default="")
    options = parser.parse_args()
    content = read(options.file)
    if options.fit:
        for stack in refitted(content.records):
            values = ", ".join(f"{name}={gigabytes(name, getattr(stack, name))}" for name in stack.fitted)
            sys.stdout.write(f"{stack.name}: {values}\n")
        return 0
    found = outcomes(content.records)
    if options.show:
        for outcome in found:
            if outcome.record.family == options.show:
                record = outcome.record
                measured = (record.measured_bytes or record.limit_bytes) / 1e9
                sys.stdout.write(
                    f"{record.grade:4} {record.id:50} {record.metric:9} {measured:7.2f} GB measured, "
                    f"{outcome.estimated_bytes / 1e9:7.2f} estimated {outcome.error:+7.1%}\n"
                )
        return 0
    text = report(
        found,
        left={} if options.quick else left_out(content.records),
        blind={} if options.quick else left_out(content.records, NEUTRAL),
        readings=tuple(
            estimated(reading, stack_of(x.family)) for x in content.records if (reading := x.device_reading)
        ),
        excluded=content.excluded,
        name=options.file.name,
    )
    sys.stdout.write(text)
    if not options.quick:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
