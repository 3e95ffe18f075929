"""The machine, the short list of strategies, and why the first of them was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrator.report.page.html import Markup, element, prose, scrolling, table
from orchestrator.report.page.record import Body, Record, plain_label
from orchestrator.report.page.words import count, inside, listed, number, several, size, span

_SHOWN: Final = 8
_REJECTED: Final = 12


def machine_section(record: Record) -> Markup:
    """The picture, or why there is none."""
    machine = str(record.plan.get("machine") or "not known")
    head = element("p", element("strong", machine), ". ", prose(record.picture_told))
    if not record.picture:
        return element("div", head, element("p", "There is no picture of this machine.", class_="none"))
    told = "the machine and the route of its gradients"
    return element("div", head, element("figure", scrolling(record.picture, told), class_="machine"))


def plan_section(record: Record) -> Markup:
    """Choice, reasons, short list, rejections, warnings."""
    reasons = [element("li", prose(text)) for text in record.reasons]
    warnings = [element("li", prose(str(text))) for text in listed(record.plan.get("warnings"))]
    return element(
        "div",
        element("p", element("strong", record.label)),
        element("ul", *reasons) if reasons else None,
        element("div", element("strong", "Warnings"), element("ul", *warnings), class_="callout pause")
        if warnings
        else None,
        _short_list(record),
        _rejections(record),
        _workload(record),
    )


def _short_list(record: Record) -> Markup:
    ranked = [one for one in listed(record.plan.get("ranked")) if isinstance(one, Mapping)]
    if not ranked:
        return element("p", "The plan holds no ranked strategies.", class_="none")
    rows = [_row(at, one, record) for at, one in enumerate(ranked[:_SHOWN])]
    more = int(number(record.plan.get("num_fit")) or len(ranked)) - len(rows)
    head = (
        "strategy",
        "step",
        "tokens/s",
        "against the choice",
        *(("device", "host") if record.is_gpu else ("memory",)),
    )
    end = element("p", f"And {more} more that fit.", class_="faint") if more > 0 else None
    shown = table(head, rows, caption="strategies that fit, best first", numbers=range(1, 6), class_="ranked")
    return element("div", element("h3", "Strategies that fit, best first"), shown, end)


def _row(at: int, one: Body, record: Record) -> tuple[object, ...]:
    step, best = number(one.get("step_seconds")), number(record.chosen.get("tokens_per_second"))
    rate = number(one.get("tokens_per_second"))
    share = "chosen" if at == 0 else "" if not rate or not best else f"\u00d7{best / rate:.2f} the time"
    label = record.labels[at] if at < len(record.labels) else plain_label(one)
    device, host = (_peak(one, key) for key in ("device_bytes", "host_bytes"))
    memory = (size(device), size(host)) if record.is_gpu else (size(host),)
    return (label, span(step), count(rate), share, *memory)


def _peak(one: Body, key: str) -> float | None:
    found = [number(inside(one, "memory", phase, key)) for phase in ("load", "train", "save")]
    return max((value for value in found if value is not None), default=None)


def _rejections(record: Record) -> Markup | None:
    same: dict[str, list[str]] = {}
    for one in listed(record.plan.get("rejected")):
        if isinstance(one, Mapping):
            same.setdefault(str(one.get("reason")), []).append(str(one.get("strategy")))
    if not same:
        return None
    rows = [(names[0], f"and {len(names) - 1} more" if len(names) > 1 else "", why) for why, names in same.items()]
    shown = table(("strategy", "more", "why not"), rows[:_REJECTED], caption="strategies that were rejected")
    more = len(rows) - _REJECTED
    return element(
        "details",
        element("summary", f"What was rejected, and why ({several(len(rows), 'reason')})"),
        shown,
        element("p", f"And {more} more reasons; plan.json has them all.", class_="faint") if more > 0 else None,
    )


def _workload(record: Record) -> Markup | None:
    load = record.plan.get("workload")
    if not isinstance(load, Mapping):
        return None
    rates = record.plan.get("calibration")
    stands = f"measured on {inside(rates, 'made')}" if isinstance(rates, Mapping) else "tables, not this machine's own"
    trainable, total = number(load.get("trainable_params")), number(load.get("total_params"))
    rows = [
        ("model", str(load.get("text") or load.get("model"))),
        ("trainable parameters", f"{count(trainable)} of {count(total)}"),
        ("rows", f"{count(number(load.get('rows')))} to train on, {count(number(load.get('eval_rows')))} held out"),
        ("tokens of a row", f"{count(number(load.get('mean_tokens')))} on average"),
        ("rates that the plan stands on", stands),
    ]
    shown = table(("what", "value"), rows, caption="what was planned for")
    return element("details", element("summary", "What was planned for"), shown)
