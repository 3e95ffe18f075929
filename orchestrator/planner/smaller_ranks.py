"""The last lever where memory runs out: adapters go on in a smaller rank, where the user allows it."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.config import AdapterConfig


def smaller_ranks(adapter: AdapterConfig) -> tuple[int, ...]:
    """Ranks to try, the largest first: halves, down to `adapter.resize.min_rank`; none where that is not allowed."""
    if not adapter.resize.under_pressure or adapter.rank is None:
        return ()
    found, rank = [], adapter.rank // 2
    while rank >= adapter.resize.min_rank:
        found.append(rank)
        rank //= 2
    return tuple(found)


def with_rank(adapter: AdapterConfig, rank: int) -> AdapterConfig:
    """Return the adapters in a smaller rank, then and later, with alphas that leave their scale as it is."""
    if adapter.rank is None or rank >= adapter.rank:
        return adapter
    share = rank / adapter.rank
    factor = share**0.5 if adapter.rslora else share
    at = tuple((step, min(float(rank), own)) for step, own in adapter.resize.at)
    return replace(
        adapter,
        rank=rank,
        alpha=adapter.alpha * factor,
        alpha_pattern=tuple((pattern, own * factor) for pattern, own in adapter.alpha_pattern),
        resize=replace(adapter.resize, at=at),
    )
