"""The first thing on the page: how the run went in plain words, its numbers, and what to do where it failed."""

from __future__ import annotations

from shlex import quote
from typing import Final

from orchestrator.report.page.html import Markup, element
from orchestrator.report.page.predicted import phases_of, rates_of, times_of
from orchestrator.report.page.record import Record
from orchestrator.report.page.told import Told, counted
from orchestrator.report.page.words import compared, count, inside, loss, number, several, size, span

_STATUS: Final = {
    "done": ("good", "finished"),
    "running": ("busy", "going on"),
    "stopping": ("busy", "being stopped"),
    "waiting": ("busy", "waiting for the batch system"),
    "planned": ("busy", "planned, and was not started"),
    "stopped": ("pause", "stopped, and can go on"),
    "cancelled": ("pause", "cancelled"),
    "failed": ("bad", "failed"),
    "ended": ("bad", "ended without a word"),
}
_LOG_LINES: Final = 20

_DOING: Final = {
    "running": "Fine-tunes",
    "stopping": "Fine-tunes",
    "waiting": "Is going to fine-tune",
    "planned": "Would fine-tune",
    "failed": "Was to fine-tune",
}


def section(record: Record, told: tuple[Told, ...]) -> Markup:
    """Status, sentences, numbers."""
    look, words = _STATUS.get(record.status, ("pause", record.status))
    sentences = [
        text for text in (_what(record), _learned(record), _speed(record), _space(record), _luck(record, told)) if text
    ]
    return element(
        "div",
        element("p", element("span", words, class_=f"badge {look}"), " ", _progress(record), class_="status"),
        element("p", " ".join(sentences), class_="lead"),
        _trouble(record),
        element("dl", *_tiles(record), class_="tiles"),
    )


def _progress(record: Record) -> Markup | str:
    done, whole = record.step, record.planned_steps
    if not whole:
        return f"step {done:,}" if done else "before the first step"
    text = f"step {done:,} of {whole:,}"
    if done >= whole:
        return text
    bar = element("progress", text, value=done, max=whole, aria_label=text)
    return element("span", text, " ", bar)


def _what(record: Record) -> str:
    """Model, data, machine."""
    load = inside(record.plan, "workload") or {}
    model = load.get("model") or record.config.get("model.path") or "a model"
    rows = number(load.get("rows"))
    on = several(record.world_size, "GPU" if record.is_gpu else "CPU rank") if record.world_size else "this machine"
    data = "" if rows is None else f" on {several(int(rows), 'row')}"
    wall = number(record.summary.get("wall_seconds"))
    took = "" if wall is None else f", in {span(wall)}"
    return f"{_DOING.get(record.status, 'Fine-tuned')} {model}{data} with {on}{took}."


def _learned(record: Record) -> str:
    before, after = (number(record.summary.get(f"eval_loss_{when}")) for when in ("before", "after"))
    if before and after is not None:
        share = after / before - 1
        verb = "fell" if share < 0 else "rose"
        return f"The held-out loss {verb} from {loss(before)} to {loss(after)} ({share:+.1%}).".replace("(-", "(\u2212")
    last = [number(one.get("loss")) for one in record.losses[-1:]]
    return f"The newest training loss is {loss(last[0])}." if last and last[0] is not None else ""


def _speed(record: Record) -> str:
    step = times_of(record)[0]
    if step.measured is None:
        return "" if step.predicted is None else f"The plan expects steps of {span(step.predicted)}."
    words = compared(step.deviation)
    return f"A step took {span(step.measured)}{f', {words}' if words else ''}."


def _space(record: Record) -> str:
    key = "device" if record.is_gpu else "host memory"
    pairs = [one for one in phases_of(record) if one.name.startswith("training") and key in one.name]
    if not pairs or pairs[0].measured is None:
        return ""
    found = pairs[0]
    words = compared(found.deviation)
    return f"Memory of the fullest rank peaked at {size(found.measured)} while training{f', {words}' if words else ''}."


def _luck(record: Record, told: tuple[Told, ...]) -> str:
    faults, reactions = counted(told)
    if not record.events:
        return ""
    if not faults:
        return "No fault was seen."
    return f"{several(faults, 'fault')} and {several(reactions, 'reaction')} are told below."


def _trouble(record: Record) -> Markup | None:
    """Why a run failed or stands still, and what to do."""
    if record.status not in {"failed", "ended", "stopped", "cancelled"}:
        return None
    reason = str(record.summary.get("reason") or "")
    why = element("p", element("strong", "Why: "), reason) if reason else None
    again = f"trainmaster train resume={quote(record.folder)}"
    to_do = element("p", element("strong", "What to do: "), _remedy(record), " ", element("code", again))
    show_log = bool(record.log) and record.status in {"failed", "ended"}
    return element(
        "div",
        why,
        to_do,
        element("p", "The last lines of ", element("code", record.log_file), ":") if show_log else None,
        element("pre", "\n".join(record.log[-_LOG_LINES:]), tabindex="0") if show_log else None,
        class_=f"callout {'bad' if record.status in {'failed', 'ended'} else 'pause'}",
    )


def _remedy(record: Record) -> str:
    if record.status in {"failed", "ended"}:
        return "put right what the reason or the log names, then go on from the last checkpoint:"
    return "go on from the last checkpoint:"


def _tiles(record: Record) -> list[Markup]:
    """The numbers that people look for first."""
    step, rate = times_of(record)[0], rates_of(record)[0]
    key = "device" if record.is_gpu else "host memory"
    memory = next((one for one in phases_of(record) if one.name.startswith("training") and key in one.name), None)
    before, after = (number(record.summary.get(f"eval_loss_{when}")) for when in ("before", "after"))
    last = number(record.losses[-1].get("loss")) if record.losses else None
    tiles = [
        ("held-out loss", loss(after), "" if before is None else f"{loss(before)} before")
        if after is not None
        else ("training loss", loss(last), ""),
        ("step", span(step.measured), f"{span(step.predicted)} predicted"),
        ("tokens/s", count(rate.measured), f"{count(rate.predicted)} predicted"),
        (
            "peak memory of a rank",
            size(memory.measured) if memory else size(None),
            f"{size(memory.predicted)} predicted" if memory else "",
        ),
        ("ranks", count(record.world_size or None), str(inside(record.chosen, "strategy", "engine") or "")),
    ]
    return [
        element("div", element("dt", name), element("dd", value, element("small", more) if more else None))
        for name, value, more in tiles
    ]
