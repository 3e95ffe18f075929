"""Before and after training, metric by metric, as text for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orchestrator.evaluation.metrics import METRICS

Line = tuple[str, str, str, str]

_PERCENT: Final = frozenset(metric.name for metric in METRICS if metric.percent) | {"ended"}
_TITLES: Final = {
    "perplexity": "perplexity",
    **{metric.name: metric.title for metric in METRICS},
    "ended": "answers that ended",
    "answer_tokens": "tokens of an answer",
}


def blocks_of(summary: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The evaluations before and after training that there are."""
    return tuple(block for key in ("eval_before", "eval_after") if (block := summary.get(key)))


def evaluation_lines(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """A table of the metrics, of held-out rows and of the user's prompts; empty where nothing but the loss is known."""
    before, after = summary.get("eval_before") or {}, summary.get("eval_after") or {}
    lines = list(_lines("held-out rows", before, after))
    own = [block.get("prompts") or {} for block in (before, after)]
    lines += _lines("your prompts", own[0], own[1])
    lines += _harness(summary.get("lm_eval") or {})
    if not lines:
        return ()
    widths = [max(len(line[at]) for line in lines) for at in range(4)]
    return ("", *(_text(line, widths) for line in lines))


def _lines(title: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Line]:
    names = [name for name in _TITLES if name in before or name in after]
    if not names:
        return
    answers = next((block["answers"] for block in (after, before) if "answers" in block), None)
    yield (title if answers is None else f"{title} ({answers} answers)", "before", "after", "change")
    for name in names:
        one, other = before.get(name), after.get(name)
        yield (f"  {_TITLES[name]}", _shown(name, one), _shown(name, other), _change(name, one, other))


def _harness(found: Mapping[str, Any]) -> Iterator[Line]:
    """What the LM evaluation harness says, as it says it."""
    before, after = found.get("before") or {}, found.get("after") or {}
    if after:
        yield ("LM evaluation harness", "before", "after", "change")
    for task, metrics in after.items():
        for name, other in metrics.items():
            one = before.get(task, {}).get(name)
            change = "" if one is None or other is None else f"{other - one:+.4g}"
            yield (f"  {task}, {name}", _plain(one), _plain(other), change)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"  # null stands for NaN


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if name in _PERCENT else f"{value:,.2f}" if name == "perplexity" else f"{value:.1f}"


def _change(name: str, before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    if name == "perplexity":
        return f"{(after - before) / before:+.1%}" if before else ""
    change = round(100 * (after - before) if name in _PERCENT else after - before, 1) + 0.0  # no minus before a zero
    return f"{change:+.1f} points" if name in _PERCENT else f"{change:+.1f}"


def _text(line: Line, widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
