"""`adapter.rank=auto`: the largest rank of a ladder that fits the plan without making it slower, and why not more.

Three limits, the lowest of which counts:

1. The rows: a rank far above what a row says is memory for nothing, so the rank is at most a sixteenth of the tokens of
   a row, and 8 at least. This is a convention of ours, told as one.
2. The modules: an adapter of a narrow module (keys and values of grouped heads) has no use for more than a quarter of
   its narrower side; it gets a rank of its own, in `adapter.rank_pattern`. Not where other rules want one rank for all:
   EVA shares ranks out itself, and `adapter.resize.under_pressure` halves the one that all have.
3. Memory: the plan must stay what it is with the smallest rank (engine, devices, micro-batch, recomputation), with at
   most 15% more time per token for the adapters themselves; or, on the same engine, be no more than 5% slower. Memory
   that runs short shows as a smaller micro-batch, more recomputation or another engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from orchestrator.config import AdapterConfig, AdapterInit, RunConfig
from orchestrator.planner.solve import Asked, Solution, solve
from orchestrator.planner.variants import sequence_length
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import DataStats
from orchestrator.workload.model import ModelShape

LADDER: Final = (8, 16, 32, 64, 128, 256)
_TOKENS_PER_RANK: Final = 16
_SLOWER: Final = 1.05  # time per token against the smallest rank's
_SLOWER_ALIKE: Final = 1.15  # the same, where nothing else of the plan changes
_NARROW_SHARE: Final = 4  # a module's narrower side over its largest rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChoice:
    """What was settled, and a sentence about it."""

    asked: Asked
    solution: Solution
    why: str


def choose_rank(asked: Asked) -> RankChoice:
    """Settle a rank that was left open, with the search that goes with it.

    Raises:
        UserError: what was asked for is not there, or contradicts itself.
    """
    known: dict[int, tuple[Asked, Solution]] = {}

    def tried(rank: int) -> tuple[Asked, Solution]:
        if rank not in known:
            one = replace(asked, config=with_rank(asked.config, asked.model, rank))
            known[rank] = one, solve(one)
        return known[rank]

    most, tokens = ladder_top(asked.config, asked.model, asked.data)
    first = tried(LADDER[0])
    if first[1].found.best is None:
        return RankChoice(asked=first[0], solution=first[1], why=f"Rank {LADDER[0]}, the smallest of the ladder.")
    allowed = [rank for rank in LADDER if rank <= most]
    low, high = 0, len(allowed) - 1
    at = high  # mostly the largest fits
    while low < high:
        if _is_as_good(tried(allowed[at])[1], first[1]):
            low = at
        else:
            high = at - 1
        at = (low + high + 1) // 2
    chosen, solution = tried(allowed[low])
    why = _why(allowed[low], allowed, tokens, chosen, first[1], known)
    return RankChoice(asked=chosen, solution=solution, why=why)


def ladder_top(config: RunConfig, model: ModelShape, data: DataStats) -> tuple[int, float]:
    """Largest rank that rows of this length have a use for, and their mean length in tokens."""
    length = sequence_length(config, model)
    tokens = float(length) if config.data.packing else min(float(length), data.mean_tokens)
    fitting = [rank for rank in LADDER if rank <= tokens / _TOKENS_PER_RANK]
    return max(fitting, default=LADDER[0]), tokens


def with_rank(config: RunConfig, model: ModelShape, rank: int) -> RunConfig:
    """The configuration with a rank, and with smaller ones for narrow modules where the user gave them none."""
    adapter: AdapterConfig = replace(config.adapter, rank=rank)
    needs_one = adapter.init is AdapterInit.eva or adapter.resize.under_pressure
    if not adapter.rank_pattern and not needs_one:
        adapter = replace(adapter, rank_pattern=narrow_ranks(model, adapter, rank))
    return replace(config, adapter=adapter)


def narrow_ranks(model: ModelShape, adapter: AdapterConfig, rank: int) -> tuple[tuple[str, float], ...]:
    """Ranks of the adapted modules that are too narrow for `rank`, by the last part of their names."""
    shape = adapter_shape(model, replace(adapter, rank=rank, alpha_pattern=()))
    if any("expert" in piece.name for piece in shape.pieces):
        return ()  # PEFT gives stacked experts one rank
    found: dict[str, int] = {}
    for piece in shape.all_pieces:
        most = min(piece.in_features, piece.out_features) // _NARROW_SHARE
        own = max((step for step in LADDER if step <= most), default=LADDER[0])
        if own < rank:
            leaf = piece.name.rpartition(".")[2]
            found[leaf] = min(own, found.get(leaf, own))
    return tuple(sorted((name, float(own)) for name, own in found.items()))


def _is_as_good(solution: Solution, smallest: Solution) -> bool:
    """Whether a plan runs on the engine of the smallest rank's, and about as fast."""
    best, first = solution.found.best, smallest.found.best
    if best is None or first is None or best.way.engine is not first.way.engine:
        return False
    alike = solution.found.ranked[0].strategy.label == smallest.found.ranked[0].strategy.label
    return _pace(solution) <= (_SLOWER_ALIKE if alike else _SLOWER) * _pace(smallest)


def _pace(solution: Solution) -> float:
    return 1 / solution.found.ranked[0].estimate.tokens_per_second


def _why(
    rank: int,
    allowed: list[int],
    tokens: float,
    chosen: Asked,
    smallest: Solution,
    known: dict[int, tuple[Asked, Solution]],
) -> str:
    """One sentence: what stopped the rank, and what narrow modules get."""
    why = f"Rank {rank} (adapter.rank=auto): "
    larger = next((step for step in allowed if step > rank and step in known), None)
    if larger is not None:
        why += _what_stops(larger, known[larger][1], smallest)
    elif rank == LADDER[-1]:
        why += "the top of the ladder fits"
    else:
        why += f"rows of {tokens:,.0f} tokens get at most a sixteenth of that, and it fits"
    narrow = chosen.config.adapter.rank_pattern
    if narrow:
        told = ", ".join(f"{name} {number:g}" for name, number in narrow)
        why += f"; narrow modules have less (a quarter of their narrower side): {told}"
    return why + "."


def _what_stops(rank: int, solution: Solution, smallest: Solution) -> str:
    best, first = solution.found.best, smallest.found.best
    if best is None or first is None:
        return f"rank {rank} does not fit"
    if best.way.engine is not first.way.engine:
        return f"rank {rank} would leave engine {first.way.engine.value} for {best.way.engine.value}"
    slower = _pace(solution) / _pace(smallest) - 1
    return f"rank {rank} would take {slower:.0%} more time per token ({solution.found.ranked[0].strategy.label})"
