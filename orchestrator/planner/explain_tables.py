"""Tables of a plan's text: the short list, the rejections, what memory costs, and the knobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.planner.plan import Choice, Plan, Trade
from orchestrator.planner.ranking import WORTH_MEMORY
from orchestrator.planner.ways import ENGINES
from topology.units import GIB, MIB, format_bytes, format_seconds

_RULE = "  "
_SHOWN_TERMS = 2
_SHOWN_REJECTIONS = 12
_LEAST_PERCENT = 0.1
_UNCERTAIN = ", over links not measured"


def ranking(plan: Plan) -> str:
    """The short list: time, memory, and where most of both goes."""
    rows: list[tuple[str, ...]] = [("step", "tokens/s", "device", "host", "time goes to", "memory goes to", "strategy")]
    places = {(choice.strategy.world_size, choice.strategy.part) for choice in plan.ranked}
    sizes = Counter(size for size, _ in places)
    for choice in plan.ranked:
        has_twin = sizes[choice.strategy.world_size] > 1
        rows.append(_row(choice, f" ({choice.strategy.part})" if has_twin else ""))
    more = plan.num_fit - len(plan.ranked)
    end = [f"  and {more} more that fit"] if more > 0 else []
    end += _order_told(plan)
    title = "Strategies that fit, best first (memory per rank; terms of a step and of training)"
    return "\n".join([title, *table(rows, left=(4, 5, 6)), *end])


def _order_told(plan: Plan) -> list[str]:
    """Say why a faster way stands below a slower one, where that is so."""
    rates = [choice.estimate.tokens_per_second for choice in plan.ranked]
    late = [
        choice.strategy.engine
        for at, choice in enumerate(plan.ranked)
        if rates[at] > (1 + WORTH_MEMORY) * min(rates[: at + 1])
    ]
    told = [
        f"  {engine.value} stands where it would at {ENGINES[engine].handicap:g} times the time, since its gathers "
        "depend on links that were not measured"
        for engine in dict.fromkeys(late)
        if ENGINES[engine].handicap > 1
    ]
    return [*told, f"  within {WORTH_MEMORY:.0%} of the time the one with more free memory comes first"]


def _row(choice: Choice, part: str) -> tuple[str, ...]:
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
        choice.strategy.label + part,
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
    same: dict[str, list[str]] = {}
    for rejection in plan.rejected:
        same.setdefault(rejection.reason, []).append(rejection.strategy)
    lines = {reason: f"  {_and_more(strategies)}: {reason}" for reason, strategies in same.items()}
    # What cannot be combined stands at the end, and is always told.
    needs = [line for reason, line in lines.items() if " missing" in reason]
    others = [line for reason, line in lines.items() if " missing" not in reason]
    room = max(1, _SHOWN_REJECTIONS - len(others))
    more = len(needs) - room
    end = [f"  and {more} more that need more memory still (plan.json has them all)"] if more > 0 else []
    return "\n".join(["Rejected, nearest to fitting first", *needs[:room], *end, *others])


def _and_more(strategies: Sequence[str]) -> str:
    first, *others = strategies
    return first if not others else f"{first}, and {len(others)} more"


def trades(plan: Plan) -> str:
    """What to change first when memory runs short, and what time more memory would buy."""
    saving = [trade for trade in plan.trades if trade.saved_bytes > 0]
    buying = [trade for trade in plan.trades if trade.saved_bytes <= 0]
    lines = []
    if saving:
        lines.append("If memory runs short, in this order (saved per rank while training, by percent of a step)")
        rows = [(f"{number}.", trade.change, *_price(trade)) for number, trade in enumerate(saving, 1)]
        lines += table(rows, left=(1, 4))
    if buying:
        lines.append("What faster steps would take")
        rows = [("-", trade.change, f"{trade.time_percent:+.1f}%", _need(trade), _fits(trade)) for trade in buying]
        lines += table(rows, left=(1, 4))
    return "\n".join(lines)


def _price(trade: Trade) -> tuple[str, str, str]:
    each = _each(trade.saved_bytes, trade.time_percent) + _uncertain(trade.change)
    return f"saves {size(trade.saved_bytes)}", f"{trade.time_percent:+.1f}%", each


def _uncertain(change: str) -> str:
    """Mark what stands behind its own estimate, as in the ranking."""
    return _UNCERTAIN if "engine=zero3" in change or "engine=streamed" in change else ""


def _each(saved_bytes: int, percent: float) -> str:
    if percent < _LEAST_PERCENT:
        return "for nothing" if percent > -_LEAST_PERCENT else "and faster"
    return f"{size(round(saved_bytes / percent))} per percent"


def tree(plan: Plan) -> str:
    """What to do when so much memory must be freed, and what the three ways cost in each group of layers."""
    lines = ["Decision tree: a rank must free memory while training (each line evaluated as a whole)"]
    ends = [*["├─"] * len(plan.tree), "└─"]
    rows = [
        (
            end,
            f"up to {size(branch.freed_bytes)}:",
            " ".join(branch.settings),
            f"{branch.time_percent:+.1f}% time",
            _uncertain(" ".join(branch.settings)).removeprefix(", "),
        )
        for end, branch in zip(ends, plan.tree, strict=False)
    ]
    larger = "larger cards" if plan.device_kind == "gpu" else "more memory"
    rows.append((ends[-1], "more:", f"none of these; shorter rows (data.seq_len), a smaller base or {larger}", "", ""))
    lines += table(rows, left=(0, 1, 2, 4))
    if plan.layers:
        lines.append(
            "By layers that are alike (bytes and time of one layer; checkpointing_layers=N recomputes the first N, the "
            "other changes are for all layers)"
        )
        lines += table([_layer_row(at, plan) for at in range(len(plan.layers))], left=(0, 1, 4))
    return "\n".join(lines)


def _layer_row(at: int, plan: Plan) -> tuple[str, ...]:
    trade = plan.layers[at]
    first = next(other for other in plan.layers if other.layers == trade.layers)  # they stand by their price
    return (
        f"layers {trade.layers}",
        trade.change,
        f"saves {size(trade.saved_bytes // trade.count)} each",
        f"{trade.time_percent / trade.count:+.2f}%",
        _each(trade.saved_bytes, trade.time_percent) + (", first here" if trade is first else _uncertain(trade.change)),
    )


def _need(trade: Trade) -> str:
    return f"{size(-trade.saved_bytes)} more" if trade.saved_bytes < 0 else "no more memory"


def _fits(trade: Trade) -> str:
    return "would fit" if trade.fits else "does not fit"


def derivations(plan: Plan) -> str:
    """The settings of the engine and how each was derived."""
    rows = [(knob.name, f"{knob.value:,} {knob.unit}", knob.why) for knob in plan.knobs]
    title = "Settings of ZeRO-3 (elements of the stored dtype, not bytes)"
    return "\n".join([title, *table(rows, left=(0, 2))])


def rates(plan: Plan) -> str:
    """What the estimate stands on, and where each number comes from."""
    if plan.calibration is None:
        return "Rates    from tables; `trainmaster bench` measures this machine's own"
    rows = [(rate.name, rate_text(rate.value, rate.unit), rate.source) for rate in plan.calibration.rates]
    return "\n".join(["Rates of a rank", *table(rows, left=(0, 2))])


def rate_text(value: float, unit: str) -> str:
    """Write a number of a calibration as people read it: 31.4 GFLOP/s, 2.3 us, 0.9 GiB, 12 bytes a logit."""
    if unit == "bytes":
        return format_bytes(round(value))
    if unit == "s":
        return format_seconds(value)
    if unit == "weights/s":
        return f"{value / 1e9:.3g} billion {unit}"
    if not unit.endswith("/s"):
        return f"{value:.4g} {unit}"
    power = next((step for step in (12, 9, 6, 3) if value >= 10**step), 0)
    sign = {12: "T", 9: "G", 6: "M", 3: "k", 0: ""}[power]
    return f"{value / 10**power:.3g} {sign}{unit.replace('bytes', 'B')}"


def size(size_bytes: int) -> str:
    """Write GiB, or MiB below one."""
    return format_bytes(size_bytes) if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"
