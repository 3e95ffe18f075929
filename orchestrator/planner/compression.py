"""What a plan holds of sparse gradients. Their format and what each exchange sends: `compress_format`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orchestrator.config import CompressValues as Values
from orchestrator.planner.compress_format import (
    CHUNK,
    HEADER_BYTES,
    SCALE_BYTES,
    WHOLE_TILE_CHUNKS,
    Codec,
    Exchange,
    Pattern,
    Sent,
    chunks_of,
    codec_of,
    dense_sent_bytes,
    parts_of,
)
from orchestrator.planner.compress_refresh import count_refreshes, is_refresh

__all__ = [
    "CHUNK",
    "HEADER_BYTES",
    "SCALE_BYTES",
    "WHOLE_TILE_CHUNKS",
    "Codec",
    "CompressionPlan",
    "Exchange",
    "Kind",
    "Pattern",
    "Sent",
    "SparseSeconds",
    "Values",
    "chunks_of",
    "codec_of",
    "dense_sent_bytes",
    "parts_of",
]


class Kind(Enum):
    """Whether gradients travel dense or sparse."""

    none = "none"
    topk = "topk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSeconds:
    """Where the time of a step's sparse exchange goes, predicted for the slowest rank.

    Attributes:
        select: the largest of each chunk are found.
        encode: they are packed, and taken out of the residual.
        wire: packets travel.
        decode: packets are unpacked and summed.
    """

    select: float
    encode: float
    wire: float
    decode: float

    @property
    def total(self) -> float:
        """One after the other."""
        return self.select + self.encode + self.wire + self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionPlan:
    """Whether a plan's gradients travel sparse, and all that a rank needs for it.

    Attributes:
        kind: whether.
        why: in one sentence.
        codec: of the packets; None where gradients travel dense.
        exchange: how packets are summed.
        island: ranks of an island that the hierarchical exchange sums densely first; 1 for the others.
        warmup_steps: optimizer steps that stay dense, counted from the beginning of the run.
        refresh_fraction: of the steps so far, after which all elements travel again; 0 for never.
        num_steps: of the run that bytes and seconds are a mean of; 0 where they are of a step without refresh.
        chunks: of all adapters; 0 where nothing was reckoned.
        seconds: predicted of a step's sparse exchange, the mean over the compressed steps with their refreshes; None
            where nothing was reckoned.
        dense_seconds: the same gradients dense.
        exposed_seconds, dense_exposed_seconds: what of both the backward pass does not hide.
        step_seconds: predicted of a step with dense gradients.
        dense_bytes: that the rank that sends the most sends in a step with dense gradients.
        sparse_bytes: the same sparse, the mean over the compressed steps.
        topk_bytes, refresh_bytes: of a step with the largest elements alone, and of one with all of them.
        break_even_bytes_per_second: bus rate of all-gathers among the ranks at which sparse and dense gradients add as
            much to a step, the rate of all-reduces in proportion to it; below it sparse ones are sooner there. None
            where they are at any rate, 0 where they are at none.
        residual_bytes: per rank, what was not sent yet, and room for the next step's.
        buffer_bytes: per rank, packets that are sent and received, of the larger kind of step.
    """

    kind: Kind
    why: str
    codec: Codec | None = None
    exchange: Exchange = Exchange.split
    island: int = 1
    warmup_steps: int = 0
    refresh_fraction: float = 0.0
    num_steps: int = 0
    chunks: int = 0
    seconds: SparseSeconds | None = None
    dense_seconds: float | None = None
    exposed_seconds: float | None = None
    dense_exposed_seconds: float | None = None
    step_seconds: float | None = None
    dense_bytes: int = 0
    sparse_bytes: int = 0
    topk_bytes: int = 0
    refresh_bytes: int = 0
    break_even_bytes_per_second: float | None = None
    residual_bytes: int = 0
    buffer_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse what no rank could run."""
        if self.kind is Kind.topk and self.codec is None:
            raise ValueError("sparse gradients need a codec")
        if self.warmup_steps < 0:
            raise ValueError(f"{self.warmup_steps} steps of warm-up")
        if not 0 <= self.refresh_fraction < 1:
            raise ValueError(f"a refresh after {self.refresh_fraction} of the steps so far")
        if self.island > 1 and self.exchange is not Exchange.hierarchical:
            raise ValueError(f"the {self.exchange.value} exchange knows no islands")

    @property
    def gain_seconds(self) -> float | None:
        """What a step saves; below 0 where it loses."""
        if self.exposed_seconds is None or self.dense_exposed_seconds is None:
            return None
        return self.dense_exposed_seconds - self.exposed_seconds

    def is_refresh(self, step: int) -> bool:
        """Whether all elements travel in a step, counted from 0 at the beginning of the run, if it is no dense one."""
        return self.codec is not None and self.codec.kept < CHUNK and is_refresh(step, self.refresh_fraction)

    def refreshes(self, num_steps: int) -> int:
        """Refresh steps among the compressed ones of a run of `num_steps`."""
        if self.codec is None or self.codec.kept == CHUNK:
            return 0
        return count_refreshes(self.refresh_fraction, self.warmup_steps, num_steps)

    def pattern(self, ranks: int) -> Pattern:
        """Who sends to whom among so many ranks.

        Raises:
            ValueError: the islands do not divide them.
        """
        return Pattern(exchange=self.exchange, ranks=ranks, island=self.island)
