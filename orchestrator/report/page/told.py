"""What happened in a run, in words: the events that a person wants to see, each with its step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orchestrator.report.page.chart import Mark
from orchestrator.report.page.record import Body, Record
from orchestrator.report.page.words import listed, number, size, span

INJECTED: Final = "A fault was injected"
MOST_MARKS: Final = 40  # on a chart
_AFTER_AN_END: Final = frozenset({"decided", "replanned", "attempt_started"})  # at the step where the attempt ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event.

    Attributes:
        number: as charts show it; 0 for those that they do not number.
        time: wall clock; None where it was not kept.
        step: when it happened, from its own words or from the time of the steps; None: before the first one.
        kind: `fault`, `reaction` or `info`.
        title: what it was.
        words: the evidence.
        advice: what to do about it.
    """

    number: int
    time: float | None
    step: float | None
    kind: str
    title: str
    words: str
    advice: str = ""

    @property
    def anchor(self) -> str:
        """Id of its row."""
        return f"event-{self.number}" if self.number else ""


Words = Callable[[Body], str]


def _of(*names: str) -> Words:
    return lambda event: "; ".join(str(event[name]) for name in names if event.get(name))


def _injected(event: Body) -> str:
    where = f" on rank {event['rank']}" if event.get("rank") is not None else ""
    return f"{event.get('fault')}{where}, asked for with faults={event.get('fault')}"


def _detected(event: Body) -> str:
    return str(event.get("evidence") or event.get("kind") or "")


def _replanned(event: Body) -> str:
    return "; ".join(map(str, listed(event.get("changes")))) or f"{event.get('old')} -> {event.get('new')}"


def _started(event: Body) -> str:
    return f"attempt {event.get('attempt')}: {event.get('strategy')}"


def _saved(event: Body) -> str:
    blocked = number(event.get("seconds_blocking"))
    stood = "" if blocked is None else f", steps stood still for {span(blocked)}"
    return f"{size(number(event.get('bytes')))}{stood}"


_KINDS: Final[Mapping[str, tuple[str, str, Words]]] = MappingProxyType(
    {
        "fault_injected": ("fault", INJECTED, _injected),
        "fault_refused": ("info", "A fault could not be injected", _of("fault", "why")),
        "fault_detected": ("fault", "A fault was detected", _detected),
        "finding": ("fault", "A detector spoke", _detected),
        "checkpoint_failed": ("fault", "A checkpoint failed", _of("why", "error", "evidence")),
        "checkpoint_skipped": ("fault", "A checkpoint was passed over", _of("why", "path")),
        "checkpoint_slow": ("reaction", "Checkpoints are slow", _of("why", "evidence")),
        "decided": ("reaction", "Decided", _of("decision", "why")),
        "replanned": ("reaction", "A new plan", _replanned),
        "attempt_started": ("reaction", "Started again", _started),
        "resumed": ("reaction", "Went on from a checkpoint", _of("checkpoint")),
        "resized": ("reaction", "Adapters changed their rank", _of("words")),
        "stop_agreed": ("reaction", "All ranks agreed to stop", _of("why")),
        "rehearsed": ("info", "Rehearsed the longest batch", lambda _: ""),
        "checkpoint": ("info", "Checkpoint", _saved),
        "done": ("info", "All steps are done", lambda _: ""),
    }
)


def told_events(record: Record) -> tuple[Told, ...]:
    """Return the events worth telling, in the order of the file; faults and reactions are numbered."""
    steps_at = _clock(record.losses)
    found: list[Told] = []
    count, last = 0, None
    for event in record.events:
        name = str(event.get("event"))
        own = number(event.get("steps_done", event.get("step")))
        if own is None and name in _AFTER_AN_END:
            own = last
        last = last if own is None else own
        if name not in _KINDS or not _is_worth_telling(name, event):
            continue
        kind, title, words = _KINDS[name]
        if name == "finding" and event.get("severity") == "note":
            kind = "info"
        count += kind != "info"
        time = number(event.get("time"))
        found.append(
            Told(
                number=count if kind != "info" else 0,
                time=time,
                step=steps_at(time) if own is None and time is not None else own,
                kind=kind,
                title=title,
                words=words(event),
                advice=str(event.get("advice") or ""),
            )
        )
    return tuple(found)


def _is_worth_telling(name: str, event: Body) -> bool:
    if name == "decided":
        return event.get("decision") != "finish"
    return name != "attempt_started" or (number(event.get("attempt")) or 0) > 1


def _clock(losses: Sequence[Body]) -> Callable[[float], float | None]:
    """The step that was done last at a time."""
    known = [(number(one.get("time")), number(one.get("step"))) for one in losses]
    pairs = sorted((time, step) for time, step in known if time is not None and step is not None)
    times = [time for time, _ in pairs]

    def step_at(time: float) -> float | None:
        at = bisect_left(times, time)
        return pairs[at - 1][1] if at else None

    return step_at


def marks_of(told: Sequence[Told]) -> tuple[Mark, ...]:
    """What charts show: numbered events, and checkpoints as small marks where there are few of them."""
    shown = [one for one in told if one.number]
    saved = [one for one in told if one.title == "Checkpoint"]
    if len(saved) + len(shown) <= MOST_MARKS:
        shown += saved
    return tuple(
        Mark(
            step=one.step or 0.0,
            label=str(one.number) if one.number else "",
            words=f"{one.title}: {one.words}" if one.words else one.title,
            kind=one.kind,
            anchor=one.anchor,
        )
        for one in shown[:MOST_MARKS]
    )


def counted(told: Sequence[Told]) -> tuple[int, int]:
    """How many faults and reactions there were; one that was injected counts once, when it is detected."""
    faults = [one for one in told if one.kind == "fault"]
    seen = [one for one in faults if one.title != INJECTED]
    return len(seen or faults), sum(1 for one in told if one.kind == "reaction")
