"""Predicted against measured: memory by phase and by term, time by what a step went to, and the misses in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from orchestrator.monitor.readings import RankReading
from orchestrator.report.page.bars import FAR, Pair, comparison
from orchestrator.report.page.course import WARM_UP_STEPS, points_of
from orchestrator.report.page.html import Markup, element
from orchestrator.report.page.record import Body, Record
from orchestrator.report.page.steps import mean_of_ranks, typical
from orchestrator.report.page.words import compared, inside, listed, number, size, span

_PHASES: Final = (("load", "loading"), ("train", "training"), ("save", "saving"))
_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "allocated_bytes": "live tensors",
        "reserved_bytes": "held by the allocator",
        "device_bytes": "device",
        "host_bytes": "host memory of a rank",
    }
)
_WORTH: Final = 0.05  # of the whole, from which a miss is worth a sentence
_MOST_MISSES: Final = 5
# What a rank can time of a step: its own work, and two kinds of waits. The estimate's terms belong to one of them.
_WAITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "all_reduce": "waits for gradients",
        "gathers": "waits for layers",
        "base_gather": "waits for layers",
        "base_copy": "waits for layers",
        "offload_copies": "waits for layers",
    }
)
_COMPUTING: Final = "computing"
_TOGETHER: Final = "only in the sum"


def phases_of(record: Record) -> tuple[Pair, ...]:
    """Whole quantities of each phase, as far as one of both sides has them."""
    kinds: tuple[str, ...] = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")
    if not record.is_gpu:
        kinds = ("host_bytes",)  # on a CPU the device is the host, and live tensors cannot be told from the rest
    found = []
    for phase, words in _PHASES:
        predicted, measured = (inside(side, "memory", phase) for side in (record.predicted, record.measured))
        for kind in kinds:
            both = (number(inside(predicted, kind)), number(inside(measured, kind)))
            if both != (None, None):
                name = f"{words}: {_KEYS[kind]}"
                note = "" if record.measured else "at the end of the run"
                found.append(Pair(name=name, predicted=both[0], measured=both[1], note=note))
    return tuple(found)


def terms_of(record: Record) -> tuple[Pair, ...]:
    """The peak of the training phase and all its addends; those that the run can tell apart as it measured them."""
    train = inside(record.chosen, "memory", "train")
    live = {**_newest_live(record), **(inside(record.measured, "live") or {})}
    told = [_term(term, number(live.get(str(term.get("name"))))) for term in _terms(train, is_gpu=record.is_gpu)]
    known = {one.name for one in told}
    others = inside(record.predicted, "live")
    told += [
        Pair(name=str(name), predicted=number(inside(others, str(name))), measured=number(value))
        for name, value in live.items()
        if name not in known
    ]
    told.sort(key=lambda one: -(one.predicted or one.measured or 0.0))
    key = "device_bytes" if record.is_gpu else "host_bytes"
    peak = (number(inside(train, key)), number(inside(record.measured, "memory", "train", key)))
    whole = () if peak == (None, None) else (Pair(name="peak", predicted=peak[0], measured=peak[1], is_whole=True),)
    return (*whole, *_rest(told, peak[1]), *told)


def _terms(train: Any, *, is_gpu: bool) -> list[Body]:  # noqa: ANN401 - JSON
    """The addends of the peak: live tensors, and what stands around them."""
    terms = [term for term in listed(inside(train, "terms")) if isinstance(term, Mapping)]
    allocated, reserved, device = (
        number(inside(train, f"{kind}_bytes")) or 0.0 for kind in ("allocated", "reserved", "device")
    )
    slack = {"name": "allocator_slack", "bytes": reserved - allocated, "why": "held by the allocator, not in use"}
    terms += [slack] if reserved > allocated else []
    if is_gpu:
        why = "CUDA context, libraries and communicators"
        return [*terms, {"name": "cuda_context", "bytes": device - reserved, "why": why}]
    host = [term for term in listed(inside(train, "host_terms")) if isinstance(term, Mapping)]
    return [*terms, *(term for term in host if term.get("name") != "tensors")]


def _term(term: Body, measured: float | None) -> Pair:
    return Pair(
        name=str(term.get("name")),
        predicted=number(term.get("bytes")),
        measured=measured,
        why=str(term.get("why") or ""),
        note=_TOGETHER,
    )


def _rest(told: Sequence[Pair], peak: float | None) -> tuple[Pair, ...]:
    """What comes and goes within a step cannot be told apart; its sum can: the peak, less what is measured apart."""
    together = [one.predicted or 0.0 for one in told if one.measured is None]
    if peak is None or not together:
        return ()
    measured = max(0.0, peak - sum(one.measured or 0.0 for one in told))
    why = f"all terms that are marked \u201c{_TOGETHER}\u201d: the peak, less what is measured apart"
    return (Pair(name="all that cannot be told apart", predicted=sum(together), measured=measured, why=why),)


def _newest_live(record: Record) -> dict[str, int]:
    for one in reversed(record.ranks):
        if one.live_bytes:
            return dict(one.live_bytes)
    return {}


def times_of(record: Record) -> tuple[Pair, ...]:
    """A step as a whole, what it went to, and below each the terms of the estimate."""
    measured = number(record.measured.get("step_seconds")) or _typical(record, "step_seconds")
    planned = number(record.predicted.get("step_seconds"))
    whole = Pair(name="a step", predicted=planned, measured=measured, is_whole=True)
    terms = [term for term in listed(record.chosen.get("time_terms")) if isinstance(term, Mapping)]
    groups: dict[str, list[Body]] = {_COMPUTING: []}
    for term in terms:
        groups.setdefault(_WAITS.get(str(term.get("name")), _COMPUTING), []).append(term)
    seen = _timed(record)
    found = [whole]
    for group in dict.fromkeys((*groups, *seen)):
        own = groups.get(group, [])
        predicted = sum(number(term.get("seconds")) or 0.0 for term in own)
        if not own and not seen.get(group):
            continue
        note = "not timed" if group not in seen else ""
        found.append(Pair(name=group, predicted=predicted, measured=seen.get(group), note=note))
        found += [_time_term(term) for term in sorted(own, key=lambda term: -(number(term.get("seconds")) or 0.0))]
    return (*found, *_gradients(record))


def _time_term(term: Body) -> Pair:
    return Pair(
        name=str(term.get("name")),
        predicted=number(term.get("seconds")),
        why=str(term.get("why") or ""),
        note=_TOGETHER,
        is_part=True,
    )


def _timed(record: Record) -> dict[str, float]:
    """What ranks timed of a typical step, without the first ones."""
    kinds: tuple[tuple[str, Callable[[RankReading], float | None]], ...] = (
        (_COMPUTING, lambda one: one.busy_seconds),
        ("waits for gradients", lambda one: one.communication_seconds),
        ("waits for layers", lambda one: one.prefetch_seconds),
    )
    found = {name: mean_of_ranks(record.ranks, value) for name, value in kinds}
    medians = {name: typical(points, WARM_UP_STEPS) for name, points in found.items()}
    return {
        name: value for name, value in medians.items() if value is not None and (value or name != "waits for layers")
    }


def _gradients(record: Record) -> Iterator[Pair]:
    """The sums of the gradients by themselves, where the executor of schedules timed them."""
    route = record.summary.get("gradient_route")
    timed = number(inside(route, "measured_seconds"))
    if timed is not None:
        predicted = number(inside(route, "predicted_seconds"))
        yield Pair(name="sums of gradients", predicted=predicted, measured=timed, why="hidden or not", is_part=True)


def _typical(record: Record, key: str) -> float | None:
    return typical([point for point in points_of(record.losses, key) if math.isfinite(point[1])], WARM_UP_STEPS)


def rates_of(record: Record) -> tuple[Pair, ...]:
    """Tokens per second."""
    predicted, measured = (number(side.get("tokens_per_second")) for side in (record.predicted, record.measured))
    measured = measured or _typical(record, "tokens_per_second")
    return (Pair(name="tokens per second", predicted=predicted, measured=measured),)


def misses(pairs: Sequence[Pair], write: Any, whole: float) -> tuple[str, ...]:  # noqa: ANN401 - a writer of numbers
    """The larger deviations as sentences, the largest first.

    Args:
        pairs: to look at.
        write: for their numbers.
        whole: what they are parts of; misses of less than a twentieth of it are not told.
    """
    far = []
    for one in pairs:
        share = one.deviation
        if share is None or one.predicted is None or one.measured is None:
            continue
        apart = abs(one.measured - one.predicted)
        if one.grade in {"far", "worst"} and apart > _WORTH * whole:
            far.append((apart, f"{one.name}: {write(one.measured)}, {compared(share)} ({write(one.predicted)})."))
    return tuple(text for _, text in sorted(far, key=lambda pair: -pair[0])[:_MOST_MISSES])


def explained(times: Sequence[Pair]) -> tuple[str, ...]:
    """What the difference of a step is made of, where it is large: one sentence, or none."""
    whole = times[0]
    if whole.grade not in {"far", "worst"} or whole.predicted is None or whole.measured is None:
        return ()
    apart = whole.measured - whole.predicted
    parts = [
        (one.name, one.measured - (one.predicted or 0.0))
        for one in times[1:]
        if one.measured is not None and not one.is_part
    ]
    shares = [f"{name} {part / apart:.0%}" for name, part in parts if part / apart > _WORTH]
    if not shares:
        return ()
    what = "longer" if apart > 0 else "shorter"
    return (f"A step took {span(abs(apart))} {what} than planned; of that, {' and '.join(shares)}.",)


def section(record: Record) -> Markup:
    """The whole section."""
    phases, terms, times, rates = phases_of(record), terms_of(record), times_of(record), rates_of(record)
    step = max((times[0].predicted or 0.0, times[0].measured or 0.0))
    most = max((one.predicted or 0.0 for one in (*phases, *terms)), default=0.0)
    why = explained(times)
    told = (*why, *misses(times[1:] if why else times, span, step), *misses((*phases, *terms), size, most))
    words = (
        element("ul", *(element("li", text) for text in told), class_="misses")
        if told
        else element("p", f"No term that matters lies more than {FAR:.0%} from its prediction.")
        if any(one.deviation is not None for one in (*phases, *times))
        else element("p", "Nothing was measured yet.")
    )
    return element(
        "div",
        element("h3", "What was missed"),
        words,
        element("h3", "Time of a step"),
        element("p", _TIME_TOLD),
        comparison(times, span, "time of a step, predicted against measured"),
        comparison(rates, lambda value: f"{value or 0:,.0f}", "tokens per second, predicted against measured"),
        element("h3", "Memory of a rank by phase"),
        element("p", "Peaks of the fullest rank in each phase of the run."),
        comparison(phases, size, "memory by phase, predicted against measured"),
        element("h3", "Memory while training, term by term"),
        element("p", _TERMS_TOLD),
        comparison(terms, size, "memory while training by term, predicted against measured"),
    )


_TIME_TOLD: Final = (
    "A typical step, and what it went to in the mean of the ranks. Ranks can time their own work and their waits; the "
    "terms of the estimate below them are told apart on paper only."
)
_TERMS_TOLD: Final = (
    "All addends of the plan's training phase. What stays for the whole run is measured by itself; what comes and goes "
    "within a step is measured as one sum."
)
