"""What memory costs in time: changes of the chosen strategy, each evaluated, best bargain first, and as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.config import Engine
from orchestrator.planner.changes import first_that_fits
from orchestrator.planner.evaluate import Job, Point
from orchestrator.planner.levers import Cost, Lever, State, cost_of, levers_of, recomputed_now
from orchestrator.planner.plan import Branch, Trade
from orchestrator.planner.solve import Asked, cannot_fit, solve
from orchestrator.planner.ways_out import small_changes

_LEAST_PERCENT = 0.1  # below this a change of time is noise of the estimate
_LEAST_SHARE = 0.005  # of the memory: what saves less is not worth a line
_MOST_BRANCHES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Trades:
    """Single changes, best bargain first, and the cheapest combinations by the bytes that they free.

    `recomputed` layers are those that are recomputed already; `layers` tells of the single changes that recompute
    more how many they add.
    """

    single: tuple[Trade, ...]
    tree: tuple[Branch, ...]
    recomputed: int
    layers: Mapping[str, int]


def trades_of(asked: Asked, job: Job, point: Point, *, whole_fits: bool | None = None) -> Trades:
    """Evaluate each change by itself; what saves most bytes per percent of time comes first.

    Changes that need more memory follow, the fastest first. `whole_fits` tells whether a whole copy of the base fits
    each device; None where that must be searched for.
    """
    start = State(asked=asked, job=job, point=point)
    before = cost_of(start)
    found = [entry for entry in _singles(start, before) if _is_useful(entry.trade, before)]
    found += [_Priced(trade=x, percent=x.time_percent) for x in _whole_copies(asked, point, before, whole_fits)]
    found = sorted((entry for entry in found if _is_useful(entry.trade, before)), key=_bargain)
    return Trades(
        single=tuple(entry.trade for entry in found),
        tree=_tree(start, before, found),
        recomputed=recomputed_now(point.way, job.model.layers),
        layers={entry.trade.change: entry.lever.layers for entry in found if entry.lever and entry.lever.layers},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """A trade, and the percent of time that it is ordered by: with the handicap of engines that are less certain."""

    trade: Trade
    percent: float
    lever: Lever | None = None


def _singles(start: State, before: Cost) -> Iterator[_Priced]:
    for lever in levers_of(start):
        changed = lever.apply(start)
        if changed is not None:
            yield _priced(lever.text, cost_of(changed), before, lever)


def _priced(change: str, after: Cost, before: Cost, lever: Lever | None = None) -> _Priced:
    trade = Trade(
        change=change,
        saved_bytes=before.device_bytes - after.device_bytes,
        step_seconds=after.step_seconds,
        time_percent=(after.token_seconds / before.token_seconds - 1) * 100,
        fits=after.fits,
    )
    return _Priced(trade=trade, percent=(after.cautious_seconds / before.cautious_seconds - 1) * 100, lever=lever)


def _is_useful(trade: Trade, before: Cost) -> bool:
    return trade.saved_bytes > _LEAST_SHARE * before.device_bytes or trade.time_percent < -_LEAST_PERCENT


def _bargain(entry: _Priced) -> tuple[int, float]:
    """What costs no time first, by the bytes it saves; then by bytes per percent; then what needs more memory."""
    saved = entry.trade.saved_bytes
    if saved <= 0:
        return 2, entry.percent
    if entry.percent < _LEAST_PERCENT:
        return 0, -saved
    return 1, -saved / entry.percent


def _tree(start: State, before: Cost, found: Sequence[_Priced]) -> tuple[Branch, ...]:
    """Return the cheapest change, or changes one after the other in the order of their price, for more and more bytes.

    Every branch is evaluated as a whole: savings of two changes need not add up.
    """
    levers = [(entry.lever, entry) for entry in found if entry.lever is not None and entry.trade.saved_bytes > 0]
    tried: list[tuple[tuple[str, ...], _Priced]] = [((lever.setting,), entry) for lever, entry in levers]
    state, saved = start, 0
    settings: tuple[str, ...] = ()
    for lever, _ in levers:
        changed = lever.apply(state)
        if changed is None:
            continue
        entry = _priced("", cost_of(changed), before)
        if entry.trade.saved_bytes > saved:  # a change that undoes what an earlier one saved is no step further
            state, settings, saved = changed, _joined(settings, lever.setting), entry.trade.saved_bytes
            tried.append((settings, entry))
    kept: list[Branch] = []
    for names, entry in sorted(tried, key=lambda one: (round(one[1].percent, 1), -one[1].trade.saved_bytes)):
        trade = entry.trade
        if not kept or trade.saved_bytes > kept[-1].freed_bytes + _LEAST_SHARE * before.device_bytes:
            kept.append(
                Branch(freed_bytes=trade.saved_bytes, settings=names, time_percent=trade.time_percent, fits=trade.fits)
            )
    return tuple(kept[:_MOST_BRANCHES])


def _joined(settings: tuple[str, ...], more: str) -> tuple[str, ...]:
    """Add a setting; one with the same key takes the place of the earlier one."""
    found = dict(setting.split("=", 1) for setting in " ".join(settings).split())
    added = dict(setting.split("=", 1) for setting in more.split())
    if "checkpointing" in added:  # of how many layers belongs to it
        found.pop("checkpointing_layers", None)
    found |= added
    return tuple(f"{key}={value}" for key, value in found.items())


def _whole_copies(asked: Asked, point: Point, before: Cost, whole_fits: bool | None) -> Iterator[Trade]:  # noqa: FBT001
    """Yield small changes that would let a whole copy of the base fit each device, where it must be partitioned now."""
    if point.way.residency is None or not point.place.world.is_gpu or asked.config.engine.name is not Engine.auto:
        return
    copies = replace(asked, config=replace(asked.config, engine=replace(asked.config.engine, name=Engine.ddp)))
    if whole_fits is None:
        whole_fits = not cannot_fit(copies) and solve(copies).found.best is not None
    if whole_fits:
        return
    for change in small_changes(copies):
        out = first_that_fits(change)
        if out is not None:
            estimate = out.choice.estimate
            yield Trade(
                change=f"a whole copy on each device (engine=ddp {out.text})",
                saved_bytes=before.device_bytes - estimate.memory.train.device_bytes,
                step_seconds=estimate.step_seconds,
                time_percent=(1 / estimate.tokens_per_second / before.token_seconds - 1) * 100,
                fits=True,
            )
