"""The rows of a data set, as the few numbers that memory and time depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.workload.row_facts import RowFacts

# The longest row is an estimate: most rows are not counted, and what a chat template adds is not known.
_HEADROOM = 1.1
_LENGTH_STEP = 8  # batches are padded to multiples of eight tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStats:
    """Token counts of the rows after the chat template.

    Attributes:
        rows: training rows.
        eval_rows: held-out rows.
        mean_tokens: mean tokens of a training row.
        max_tokens: tokens of the longest training row.
        total_tokens: tokens of all training rows.
        source: how the numbers were found (`counted`, `sampled`, ...).
        quantiles: lengths of equal shares of the rows, ascending; empty where only mean and longest are known.
        facts: more on the lengths, for people; None where rows are not at hand.
    """

    rows: int
    eval_rows: int
    mean_tokens: float
    max_tokens: int
    total_tokens: int
    source: str
    quantiles: tuple[int, ...] = ()
    facts: RowFacts | None = None

    def __post_init__(self) -> None:
        """Reject counts that no set of rows can have."""
        if self.rows < 1 or self.eval_rows < 0:
            msg = f"{self.rows} training and {self.eval_rows} held-out rows: at least 1 and 0 are needed"
            raise ValueError(msg)
        if not 0 < self.mean_tokens <= self.max_tokens:
            msg = f"mean_tokens {self.mean_tokens} must lie above 0 and not above max_tokens {self.max_tokens}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How long the rows of a micro-batch are.

    Attributes:
        real_tokens_per_row: mean tokens of a row that carry information.
        longest_tokens: length the longest row can have (what memory must allow for).
        fixed: every row is filled or padded to one length.
        padded: rows may need an attention mask (not packed).
        likely_longest_tokens: length the longest row probably has (what time goes by); 0 for
            `longest_tokens`.
        quantiles: lengths of equal shares of the rows, ascending, cut like the rows.
    """

    real_tokens_per_row: float
    longest_tokens: int
    fixed: bool
    padded: bool
    likely_longest_tokens: int = 0
    quantiles: tuple[int, ...] = ()

    def expected_tokens(self, rows: int) -> float:
        """Expected padded length of a micro-batch of `rows` rows, in tokens.

        With shares of known length l_1 <= ... <= l_m the longest of n rows lies in share i with
        probability (i/m)^n - ((i-1)/m)^n. Without, lengths are taken as spread evenly around the
        mean up to the longest one, which gives mean + (longest - mean) (n - 1) / (n + 1).
        """
        longest = self.likely_longest_tokens or self.longest_tokens
        if self.fixed:
            return float(longest)
        if self.quantiles:
            num = len(self.quantiles)
            return sum(
                tokens * (((i + 1) / num) ** rows - (i / num) ** rows) for i, tokens in enumerate(self.quantiles)
            )
        spread = longest - self.real_tokens_per_row
        return self.real_tokens_per_row + spread * (rows - 1) / (rows + 1)


def batch_shape(stats: DataStats, *, seq_len: int, packing: bool, pads_to_seq_len: bool, static: bool) -> BatchShape:
    """Shape of a micro-batch of rows cut at `seq_len` tokens.

    Args:
        stats: the rows.
        seq_len: tokens a row is cut at.
        packing: rows are joined into full ones of `seq_len` tokens.
        pads_to_seq_len: `seq_len` is the user's own number, so static rows are padded to it
            rather than to the longest row.
        static: all rows are padded to one length instead of the longest of the micro-batch.
    """
    full = packing or (static and pads_to_seq_len)
    likely = seq_len if full else min(seq_len, stats.max_tokens)
    allowed = math.ceil(stats.max_tokens * _HEADROOM / _LENGTH_STEP) * _LENGTH_STEP
    longest = seq_len if full else min(seq_len, allowed)
    return BatchShape(
        real_tokens_per_row=float(seq_len) if packing else _mean_when_cut(stats, likely),
        longest_tokens=longest,
        fixed=packing or static,
        padded=not packing,
        likely_longest_tokens=likely,
        quantiles=() if packing or static else tuple(min(seq_len, tokens) for tokens in stats.quantiles),
    )


def _mean_when_cut(stats: DataStats, cut: int) -> float:
    """Mean tokens of a row once the long ones are cut; a known mean alone can only be cut itself."""
    if stats.max_tokens <= cut or not stats.quantiles:
        return min(stats.mean_tokens, float(cut))
    return min(stats.mean_tokens, sum(min(cut, tokens) for tokens in stats.quantiles) / len(stats.quantiles))


def rows_per_epoch(stats: DataStats, *, seq_len: int, packing: bool) -> int:
    """Rows the sampler sees in one epoch: the data's own, or the packed ones."""
    return max(1, math.ceil(stats.total_tokens / seq_len)) if packing else stats.rows
