"""All ways to run that the configuration leaves open, ranked; the others with their reasons.

Searched: packing x optimizer x part of the machine x rows per rank x engine x shard group x residency x
checkpointing x micro-batch (`explore`) x layers recomputed (`parts`); the global batch is kept, and time is counted
per token of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from orchestrator.config import Engine
from orchestrator.estimate.values import Estimate
from orchestrator.planner.evaluate import Job, Point, time_of
from orchestrator.planner.explore import Explorer, Refused, Taken, Timed, group_of, pace_of
from orchestrator.planner.fits import Fit
from orchestrator.planner.parts import add_parts
from orchestrator.planner.plan import Choice
from orchestrator.planner.points import strategy_of
from orchestrator.planner.ranking import WORTH_MEMORY, Rank, order
from orchestrator.planner.world import World

_SHORT_LIST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What fits, best first, and what does not, nearest to fitting first; `num_fit` counts ways that fit.

    `best` is the point of the first choice, `job` what it is of and `fit` its memory; None where nothing fits.
    `even_seconds` are those of a step with equal rows, at best, with the same engine there; None where the rows are
    equal, or where that does not fit.
    """

    ranked: tuple[Choice, ...]
    refused: tuple[Refused, ...]
    num_fit: int
    best: Point | None
    job: Job | None = None
    fit: Fit | None = None
    even_seconds: float | None = None

    @property
    def num_misfits(self) -> int:
        """How many ways were refused for lack of memory."""
        return sum(refused.missing_bytes > 0 for refused in self.refused)


def search(jobs: Sequence[Job], worlds: Sequence[World]) -> Found:
    """Rank one point per way, job and part of the machine, each with its best rows, micro-batch and moments' place.

    Args:
        jobs: one for each choice of packing and optimizer; of those that differ in the optimizer alone, the one with
            torch's AdamW stands first.
        worlds: parts of the machine, the largest first.
    """
    taken: dict[object, Taken] = {}
    sizes = Counter(world.size for world in worlds)
    parts = {id(world): f" ({world.label})" for world in worlds if sizes[world.size] > 1}
    explorers = [Explorer(job, taken.setdefault(job.config.data.packing, {}), parts) for job in jobs]
    for explorer, world in product(explorers, worlds):
        explorer.explore(world)
    add_parts(explorers)
    _add_roomier(explorers)
    fits = {id(explorer.job): explorer.fit for explorer in explorers}
    timed = [item for explorer in explorers for item in explorer.timed]
    refused = {key: entry for explorer in reversed(explorers) for key, entry in explorer.refused.items()}
    best = order(timed, rank_of, lambda item: fits[id(item.job)](item.point).margin)
    return Found(
        ranked=tuple(
            Choice(strategy=strategy_of(item.job, item.point), estimate=_estimate(item, fits[id(item.job)](item.point)))
            for item in _short_list(best)
        ),
        refused=tuple(sorted(refused.values(), key=lambda entry: (not entry.missing_bytes, entry.missing_bytes))),
        num_fit=len(best),
        best=best[0].point if best else None,
        job=best[0].job if best else None,
        fit=fits[id(best[0].job)](best[0].point) if best else None,
        even_seconds=_even_seconds(best[0], timed) if best else None,
    )


def _add_roomier(explorers: Sequence[Explorer]) -> None:
    """Add what has more memory left than the fastest ways, and may be as good as they are."""
    limit = min((pace_of(x) for explorer in explorers for x in explorer.timed), default=0.0) * (1 + WORTH_MEMORY)
    for explorer in explorers:
        near = [x for x in explorer.timed if x.point.way.engine is Engine.zero3 and pace_of(x) <= limit]
        explorer.timed += [moved for item in near for moved in explorer.farther(item)]


def _even_seconds(best: Timed, timed: Sequence[Timed]) -> float | None:
    point = best.point
    if _is_even(point):
        return None
    same = [x for x in timed if x.job is best.job and x.point.place.world is point.place.world]
    even = [x for x in same if x.point.way.engine is point.way.engine and _is_even(x.point)]
    return min((item.time.step_seconds for item in even), default=None)


def _is_even(point: Point) -> bool:
    return max(point.place.rows) - min(point.place.rows) <= 1


def rank_of(item: Timed) -> Rank:
    """What the order of strategies looks at."""
    point, config = item.point, item.job.config
    return Rank(
        group=(config.data.packing, config.optimizer.name, *group_of(point.place.world, point.way)),
        seconds_per_token=pace_of(item),
        devices=point.place.world.size,
    )


def _short_list(best: Sequence[Timed]) -> list[Timed]:
    """The first ones, and behind them the first of each engine, number of ranks, packing and optimizer."""
    kept = list(best[:_SHORT_LIST])
    seen = {_kind(item) for item in kept}
    for item in best[_SHORT_LIST:]:
        if _kind(item) not in seen:
            seen.add(_kind(item))
            kept.append(item)
    return kept


def _kind(item: Timed) -> object:
    config = item.job.config
    return item.point.way.engine, item.point.place.world.size, config.data.packing, config.optimizer.name


def _estimate(item: Timed, fit: Fit) -> Estimate:
    """Memory of the tightest rank and time of the slowest one."""
    tokens = sum(item.point.place.rows) * item.job.batch.real_tokens_per_row
    time = item.time if item.time.terms else time_of(item.job, item.point)
    return Estimate(
        memory=fit.memory,
        step_seconds=time.step_seconds,
        tokens_per_second=tokens / time.step_seconds,
        lower_seconds=time.lower_seconds,
        upper_seconds=time.upper_seconds,
        time_terms=time.terms,
    )
