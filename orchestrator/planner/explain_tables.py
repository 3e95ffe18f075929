"""Tables of a plan's text: the short list, the rejections, what memory costs, and the knobs."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.planner.plan import Choice, Plan, Trade
from topology.units import GIB, MIB, format_bytes, format_seconds

_RULE = "  "
_SHOWN_TERMS = 2
_SHOWN_REJECTIONS = 12
_LEAST_PERCENT = 0.1


def ranking(plan: Plan) -> str:
    """The short list: time, memory, and where most of both goes."""
    rows: list[tuple[str, ...]] = [("step", "tokens/s", "device", "host", "time goes to", "memory goes to", "strategy")]
    rows += [_row(choice) for choice in plan.ranked]
    more = plan.num_fit - len(plan.ranked)
    end = [f"  and {more} more that fit, none of them faster"] if more > 0 else []
    title = "Strategies that fit, best first (memory per rank; terms of a step and of training)"
    return "\n".join([title, *table(rows, left=(4, 5, 6)), *end])


def _row(choice: Choice) -> tuple[str, ...]:
    estimate = choice.estimate
    times = sorted(estimate.time_terms, key=lambda term: -term.seconds)[:_SHOWN_TERMS]
    terms = sorted(estimate.memory.train.terms, key=lambda term: -term.bytes)[:_SHOWN_TERMS]
    total = sum(term.seconds for term in estimate.time_terms) or 1.0
    return (
        format_seconds(estimate.step_seconds),
        f"{estimate.tokens_per_second:,.0f}",
        format_bytes(estimate.memory.device_bytes),
        format_bytes(estimate.memory.host_bytes),
        ", ".join(f"{term.name} {term.seconds / total:.0%}" for term in times),
        ", ".join(f"{term.name} {size(term.bytes)}" for term in terms),
        choice.strategy.label,
    )


def table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Align columns, those in `left` to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  "
        + _RULE.join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def rejections(plan: Plan) -> str:
    """What does not fit, nearest to fitting first; equal reasons stand together."""
    lines = [f"  {rejection.strategy}: {rejection.reason}" for rejection in plan.rejected]
    # What cannot be combined stands at the end, and is always told.
    needs = [line for line, entry in zip(lines, plan.rejected, strict=True) if " missing" in entry.reason]
    others = [line for line in lines if line not in needs]
    room = max(1, _SHOWN_REJECTIONS - len(others))
    more = len(needs) - room
    end = [f"  and {more} more that need more memory still (plan.json has them all)"] if more > 0 else []
    return "\n".join(["Rejected, nearest to fitting first", *needs[:room], *end, *others])


def trades(plan: Plan) -> str:
    """What to change first when memory runs short, and what time more memory would buy."""
    saving = [trade for trade in plan.trades if trade.saved_bytes > 0]
    buying = [trade for trade in plan.trades if trade.saved_bytes <= 0]
    lines = []
    if saving:
        lines.append("If memory runs short, in this order (saved per rank while training, by percent of a step)")
        rows = [(f"{number}.", trade.change, *_price(trade, plan)) for number, trade in enumerate(saving, 1)]
        lines += table(rows, left=(1, 4))
    if buying:
        lines.append("What faster steps would take")
        rows = [("-", trade.change, f"{trade.time_percent:+.1f}%", _need(trade), _fits(trade)) for trade in buying]
        lines += table(rows, left=(1, 4))
    return "\n".join(lines)


def _price(trade: Trade, plan: Plan) -> tuple[str, str, str]:
    percent = trade.time_percent
    if percent < _LEAST_PERCENT:
        each = "for nothing" if percent > -_LEAST_PERCENT else "and faster"
    else:
        each = f"{size(round(trade.saved_bytes / percent))} per percent"
        if trade.change.startswith("recompute"):
            each += f", {size(trade.saved_bytes // plan.workload.layers)} a layer"
    return f"saves {size(trade.saved_bytes)}", f"{percent:+.1f}%", each


def _need(trade: Trade) -> str:
    return f"{size(-trade.saved_bytes)} more" if trade.saved_bytes < 0 else "no more memory"


def _fits(trade: Trade) -> str:
    return "would fit" if trade.fits else "does not fit"


def derivations(plan: Plan) -> str:
    """The settings of the engine and how each was derived."""
    rows = [(knob.name, f"{knob.value:,} {knob.unit}", knob.why) for knob in plan.knobs]
    title = "Settings of ZeRO-3 (elements of the stored dtype, not bytes)"
    return "\n".join([title, *table(rows, left=(0, 2))])


def size(size_bytes: int) -> str:
    """Write GiB, or MiB below one."""
    return format_bytes(size_bytes) if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"
