"""The rows before a run, for people: sources, histogram, what is cut, what the longest cost, duplicates."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.dataset.duplicates import Duplicates
from orchestrator.planner.data_report import Advice, DataReport
from orchestrator.workload.row_facts import RowFacts, SourceFacts
from topology.units import GIB, format_bytes

_BAR = 32


def data_text(report: DataReport | None) -> str:
    """Return the block on the rows; empty where nothing is known of them."""
    if report is None:
        return ""
    facts = report.facts
    return "\n".join(
        [
            *_sources(facts.sources),
            *_histogram(facts),
            *_cut(facts),
            *_longest(report),
            *_advice(report),
            *_duplicates(facts.duplicates),
        ]
    )


def _sources(sources: tuple[SourceFacts, ...]) -> Iterator[str]:
    if not sources:
        return
    total = sum(source.epoch_rows for source in sources)
    yield f"Sources of the rows (an epoch sees {total:,})"
    width = max(len(source.name) for source in sources)
    for source in sources:
        asked = f"share {source.share:g} of the rows" if source.share else f"weight {source.weight:g}"
        times = source.epoch_rows / source.rows
        yield (
            f"  {source.name:<{width}}  {source.rows:>9,} rows of {source.mean_tokens:,.0f} tokens, "
            f"{source.eval_rows:,} held out; {source.epoch_rows:,} in an epoch ({times:.2f} times, "
            f"{source.epoch_rows / total:.0%}): {asked}"
        )


def _histogram(facts: RowFacts) -> Iterator[str]:
    yield (
        f"Lengths of the rows in tokens: half up to {facts.p50:,}, 90% up to {facts.p90:,}, 95% up to {facts.p95:,}, "
        f"99% up to {facts.p99:,}, the longest about {facts.longest:,}"
    )
    most = max(rows for _, rows in facts.bars)
    width = len(f"{facts.bars[-1][0]:,}")
    for end, rows in facts.bars:
        # A bar that is not empty is never drawn empty.
        bar = "#" * max(1 if rows else 0, round(_BAR * rows / most))
        cut = "  cut" if facts.cut.rows and end > facts.cut.seq_len else ""
        yield f"  up to {end:>{width},}  {bar:<{_BAR}}  {rows:,}{cut}".rstrip()


def _cut(facts: RowFacts) -> Iterator[str]:
    cut = facts.cut
    if not cut.rows:
        yield f"  No row is cut at {cut.seq_len:,} tokens."
        return
    lost = f"about {cut.answer_tokens_lost:,} of {facts.answer_tokens:,} answer tokens are lost"
    gone = f", and {cut.emptied:,} rows lose their whole answer" if cut.emptied else ""
    yield f"  {cut.rows:,} of {facts.rows:,} rows are cut at {cut.seq_len:,} tokens: {lost}{gone}."


def _longest(report: DataReport) -> Iterator[str]:
    if report.padding >= 0.005:  # noqa: PLR2004 - rounds to 1%
        yield f"  Padding is {report.padding:.0%} of the tokens of a step."
    if report.longest is not None:
        long = report.longest
        rows = "The longest row costs" if long.rows == 1 else f"The longest 1% ({long.rows:,} rows) cost"
        yield (
            f"  {rows} {_size(long.memory_bytes)} of a rank's memory and {long.step_percent:.1f}% of a step, against "
            f"the same rows cut at {long.tokens:,} tokens."
        )


def _advice(report: DataReport) -> Iterator[str]:
    for one in report.advice:
        yield f"  {one.setting}: {_change(one)}"


def _change(advice: Advice) -> str:
    parts = []
    if abs(advice.time_percent) >= 0.1:  # noqa: PLR2004 - what the estimate can tell
        parts.append(f"{advice.time_percent:+.1f}% time per token")
    if advice.memory_bytes:
        sign = "-" if advice.memory_bytes < 0 else "+"
        parts.append(f"{sign}{_size(abs(advice.memory_bytes))} of a rank's memory")
    if advice.rows_cut:
        parts.append(f"cuts {advice.rows_cut:,} more rows, which loses {advice.answer_tokens_lost:,} answer tokens")
    return ", ".join(parts)


def _duplicates(found: Duplicates | None) -> Iterator[str]:
    if found is None or not found.any:
        return
    if found.dropped:
        yield f"Duplicates: {found.dropped:,} training rows were left out (data.deduplicate)"
    else:
        yield "Duplicates, white space aside (data.deduplicate=true leaves them out)"
    if found.repeated:
        of = "" if found.dropped else f" of {found.train_rows:,} training rows"
        yield f"  {found.repeated:,}{of} stand further up already"
        yield from (f"    {later} repeats {first}" for first, later in found.repeated_examples)
    if found.leaked:
        held = f"{found.leaked_eval:,} of {found.eval_rows:,} held-out rows"
        yield f"  {found.leaked:,}{'' if found.dropped else ' training rows'} are also held out ({held})"
        yield from (f"    {train} is {held}" for train, held in found.leaked_examples)


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes >= GIB else f"{size_bytes / 2**20:.1f} MiB"
