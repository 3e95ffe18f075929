"""The tables of `bench/accuracy.py`, as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from accuracy_fit import Outcome, Summary, summary
from accuracy_rules import FAMILIES, OTHERS, RULES, SPECIAL, Rules

from orchestrator.estimate.stacks import DEFAULT, STACKS, Stack
from topology.units import GIB

_LARGE: Final = 0.12
_BELOW: Final = 0.05
_ERRORS: Final = (
    "An error is the estimate over the measurement, less 1. A record counts by what it tells (allocated, reserved or "
    'nvidia-smi bytes) and by the larger of loading and training. "Left out" means: estimated with the default '
    "constants, fitted to all other stacks, as a stack that nobody has measured is. Then what was run is known "
    "(dtypes, autocast, up-casts, what FSDP shards of gradients: the rules below), but not whose layers run. Of the "
    "default constants three are refitted then; the other four were set with all stacks in view. "
    '"Blind" leaves these neutral, so it knows nothing of the stack.'
)
_GRADES: Final = (
    "Grade A: complete, measured, rows of exact length, a clear unit. B: complete otherwise. C: something is missing, "
    "so it is no aim. The constants of a stack are fitted to its A and B records."
)
_MEANING: Final = (
    ("logit_copies", "logit-sized tensors alive at the loss's peak"),
    ("layer_factor", "bytes of a running layer, times what is counted"),
    ("held_factor", "layer inputs held a second time under FSDP 1"),
    ("saved_input_bytes", "bytes that a quantised module saves per element of its input"),
    ("workspace_bytes", "allocated once, whatever the model"),
    ("slack", "reserved above allocated, as a share"),
    ("context_bytes", "outside the allocator"),
)


def gigabytes(name: str, value: float) -> str:
    """A constant as it is written in the table of stacks."""
    return f"{value / GIB:.2f} * GIB" if name in ("workspace_bytes", "context_bytes") else f"{value:g}"


def report(
    outcomes: Sequence[Outcome],
    *,
    left: Mapping[str, Sequence[Outcome]],
    blind: Mapping[str, Sequence[Outcome]],
    readings: Sequence[Outcome],
    excluded: Sequence[tuple[str, str]],
    name: str,
) -> str:
    """All tables."""
    families = [key for _, key in FAMILIES] + ["other"]
    made = f"Made by `python bench/accuracy.py {name}`. The records are published measurements of others, none of ours."
    parts = [
        "# Accuracy of the memory estimate",
        made,
        _ERRORS,
        _targets(outcomes),
        "## By software stack and grade",
        _table(outcomes, left, blind, families),
        _GRADES,
        "## Runs that fitted, or did not",
        _inequalities(outcomes, families),
        "## What nvidia-smi showed in the same runs",
        _readings(readings),
        "## Fitted constants",
        _constants(),
        "## Errors above 12%",
        _large(outcomes),
        "## What the records leave out, and what is assumed",
        _rules(),
        "## Records that are not compared",
        _excluded(excluded),
    ]
    return "\n\n".join(parts) + "\n"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(*cells: str) -> list[str]:
    return [_row(cells), _row(["---"] * len(cells))]


def _targets(outcomes: Sequence[Outcome]) -> str:
    rows = _head("", "records", "median", "90th percentile", "more than 3% below", "aim")
    aims = {"A": "median 5%, 90th 12%, at most 5% below", "B": "median 10%"}
    for grade, aim in aims.items():
        found = summary([x for x in outcomes if x.record.grade == grade])
        if found:
            rows.append(_row([f"grade {grade}", str(found.count), *_figures(found), aim]))
    judged = [x for x in outcomes if not x.record.measured_bytes]
    right = sum(x.is_right for x in judged)
    rows.append(_row(["fitted or not", str(len(judged)), "", "", f"{right} judged right", "all"]))
    return "\n".join(rows)


def _figures(found: Summary) -> list[str]:
    return [_percent(found.median), _percent(found.ninetieth), _percent(found.below)]


def _table(
    outcomes: Sequence[Outcome],
    left: Mapping[str, Sequence[Outcome]],
    blind: Mapping[str, Sequence[Outcome]],
    families: Sequence[str],
) -> str:
    heads = ["stack", "grade", "records", "median", "90th", "below by 3%", "worst below"]
    heads += ["left out: median", "90th", "below by 5%", "worst below", "blind: median", "below by 5%", "worst below"]
    rows = _head(*heads)
    for family in families:
        for grade in ("A", "B", "C"):
            found = summary([x for x in outcomes if x.record.family == family and x.record.grade == grade])
            if found is None:
                continue
            cells = [family, grade, str(found.count), *_figures(found), _percent(found.worst_below)]
            for others in (left, blind):
                some = [x for x in others.get(family, ()) if x.record.grade == grade]
                seen = summary(some)
                if seen is None:
                    continue
                cells += [_percent(seen.median)] + ([_percent(seen.ninetieth)] if others is left else [])
                below = sum(x.error < -_BELOW for x in some)
                cells += [f"{below} of {seen.count}", _percent(seen.worst_below)]
            rows.append(_row(cells + [""] * (len(heads) - len(cells))))
    return "\n".join(rows)


def _inequalities(outcomes: Sequence[Outcome], families: Sequence[str]) -> str:
    rows = _head("stack", "ran", "judged right", "did not run", "judged right")
    wrong = []
    for family in families:
        judged = [x for x in outcomes if x.record.family == family and not x.record.measured_bytes]
        if not judged:
            continue
        ran = [x for x in judged if x.record.body["kind"] == "fit"]
        not_run = [x for x in judged if x.record.body["kind"] != "fit"]
        counts = [len(ran), sum(x.is_right for x in ran), len(not_run), sum(x.is_right for x in not_run)]
        rows.append(_row([family, *map(str, counts)]))
        wrong += [x for x in judged if not x.is_right]
    lines = [
        f"- {x.record.id}: {x.record.body['kind']}, {x.estimated_bytes / GIB:.1f} GiB estimated for a card of "
        f"{x.record.limit_bytes / GIB:.0f} GiB"
        for x in wrong
    ]
    return "\n".join(rows) + "\n\n" + ("\n".join(["Judged wrong:", *lines]) if wrong else "None is judged wrong.")


def _readings(readings: Sequence[Outcome]) -> str:
    rows = _head("runs", "records", "median", "90th percentile", "more than 3% below")
    loads = [x for x in readings if x.record.setting.loads_whole]
    for name, some in (
        ("all others", [x for x in readings if x not in loads]),
        ("GPTQ under FSDP", loads),
    ):
        found = summary(some)
        if found:
            rows.append(_row([name, str(found.count), *_figures(found)]))
    told = (
        "Here the allocator had reserved 4 to 9 GiB more than was allocated, and 8 to 36 GiB with GPTQ under FSDP, "
        "where it keeps what loading the whole base had needed."
    )
    return "\n".join(rows) + "\n\n" + told if readings else "None of the records has both."


def _constants() -> str:
    rows = _head("stack", *(name for name, _ in _MEANING), "flags", "source")
    for stack in (*STACKS.values(), DEFAULT):
        cells = [
            f"**{gigabytes(name, getattr(stack, name))}**"
            if name in stack.fitted
            else gigabytes(name, getattr(stack, name))
            for name, _ in _MEANING
        ]
        rows.append(_row([stack.name, *cells, _flags(stack), stack.source]))
    meanings = "\n".join(f"- `{name}`: {meaning}" for name, meaning in _MEANING)
    return "Bold: fitted, at most three a stack. The others are neutral (in `default`: set above).\n\n" + "\n".join(
        [*rows, "", meanings]
    )


def _flags(stack: Stack) -> str:
    flags = [stack.code.value]
    flags += [
        name for name in ("half_loss", "fused_head", "tables_apart", "offloads_checkpoints") if getattr(stack, name)
    ]
    return ", ".join(flags)


def _large(outcomes: Sequence[Outcome]) -> str:
    rows = _head("record", "grade", "metric", "measured GiB", "estimated GiB", "error")
    large = [x for x in outcomes if x.record.measured_bytes and abs(x.error) > _LARGE]
    for x in sorted(large, key=lambda x: (x.record.grade, -abs(x.error))):
        measured = (x.record.measured_bytes or 0) / GIB
        cells = [x.record.id, x.record.grade, x.record.metric, f"{measured:.2f}", f"{x.estimated_bytes / GIB:.2f}"]
        rows.append(_row([*cells, f"{x.error:+.1%}"]))
    return "\n".join(rows)


def _rules() -> str:
    rows = _head("stack", "assumed", "why")
    for family, rules in (*RULES.items(), ("other", OTHERS)):
        rows.append(_row([family, _told(rules), rules.why]))
    rows += [_row([f"{part}*", what, why]) for part, what, why in SPECIAL]
    return "\n".join(rows)


def _told(rules: Rules) -> str:
    unit = "GB of unknown kind read as GiB" if rules.unit == GIB else "GB of unknown kind read as 1e9 bytes"
    told = [
        f"adapters in {rules.adapter_dtype or 'the compute dtype'}",
        "autocast" if rules.autocast else "no autocast",
        f"dropout {rules.dropout}" if rules.dropout else "",
        "double quantisation" if rules.double_quant else "",
        "fp32 up-casts" if rules.upcasts else "",
        f"{rules.optimizer} where untold" if rules.optimizer else "",
        f"peaks are {rules.metric} bytes where untold",
        unit,
    ]
    return "; ".join(x for x in told if x)


def _excluded(excluded: Sequence[tuple[str, str]]) -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for record, reason in excluded:
        reasons[reason].append(record)
    rows = _head("reason", "records")
    for reason, records in sorted(reasons.items(), key=lambda x: -len(x[1])):
        rows.append(_row([reason, f"{len(records)}: {', '.join(records)}"]))
    return "\n".join(rows)
