"""What is to be known of the lengths of the rows before a run: shares, what is cut, what of the answers is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.dataset.duplicates import Duplicates

if TYPE_CHECKING:
    from orchestrator.config import RunConfig
    from orchestrator.workload.model import ModelShape

_USUAL_LENGTH: Final = 2048  # tokens a row is cut at unless the user or the model says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFacts:
    """What a limit on the length does to the training rows.

    Attributes:
        seq_len: the limit in tokens.
        rows: longer ones.
        answer_tokens_lost: of answers, estimated by their part of the text.
        emptied: rows of which no answer is left.
    """

    seq_len: int
    rows: int
    answer_tokens_lost: int
    emptied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """One source of a mixture; `share` is 0 where the weight counts."""

    name: str
    rows: int
    epoch_rows: int
    eval_rows: int
    mean_tokens: float
    weight: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Lengths in tokens, as estimated from text, of the training rows of all sources.

    Attributes:
        rows: of all sources, each counted once.
        answer_tokens: of answers, in all rows.
        bars: histogram: upper end of each bar and rows in it, from 0 on.
        shares: mean length of each hundredth of an epoch's rows, ascending; of each row where there are fewer.
        p50, p90, p95, p99, longest: lengths that this part of the rows does not exceed.
        cut: at the length that rows are cut at.
        tighter: cut just above `p99`; None where that cuts nothing more.
        sources: of a mixture.
        duplicates: rows that are there twice.
    """

    rows: int
    answer_tokens: int
    bars: tuple[tuple[int, int], ...]
    shares: tuple[float, ...]
    p50: int
    p90: int
    p95: int
    p99: int
    longest: int
    cut: CutFacts
    tighter: CutFacts | None = None
    sources: tuple[SourceFacts, ...] = ()
    duplicates: Duplicates | None = None


def sequence_length(config: RunConfig, model: ModelShape) -> int:
    """Tokens a row is cut at: the user's number, or 2048 where the model takes as many.

    Estimated lengths have no say in it, or a low estimate would cut rows.
    """
    if config.data.seq_len is not None:
        return config.data.seq_len
    return min(_USUAL_LENGTH, model.max_positions or _USUAL_LENGTH)
