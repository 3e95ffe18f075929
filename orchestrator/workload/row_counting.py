"""Facts about lengths, counted over all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from orchestrator.workload.row_facts import CutFacts, RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARES: Final = 100
_BARS: Final = 12
_STEP: Final = 64  # a length to be suggested is a multiple of so many tokens
_FEW_TURNS: Final = 3  # up to so many, the answer is one and stands at the end


def row_facts(
    tokens: NDArray[np.int64],
    answers: NDArray[np.int64],
    turns: NDArray[np.int64],
    weights: NDArray[np.float64],
    seq_len: int,
) -> RowFacts:
    """Facts of at least one row.

    Args:
        tokens: [rows] length of each row.
        answers: [rows] of them, tokens of answers.
        turns: [rows] messages.
        weights: [rows] times a row is seen in an epoch.
        seq_len: tokens a row is cut at.
    """
    p50, p90, p95, p99 = (int(x) for x in np.percentile(tokens, (50, 90, 95, 99), method="inverted_cdf"))
    longest = int(tokens.max())
    tight = -(-p99 // _STEP) * _STEP
    return RowFacts(
        rows=len(tokens),
        answer_tokens=int(answers.sum()),
        bars=_bars(tokens),
        shares=_shares(tokens, weights),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        longest=longest,
        cut=_cut(tokens, answers, turns, seq_len),
        tighter=_cut(tokens, answers, turns, tight) if tight < min(seq_len, longest) else None,
    )


def _cut(tokens: NDArray[np.int64], answers: NDArray[np.int64], turns: NDArray[np.int64], seq_len: int) -> CutFacts:
    """A single answer stands at the end and is cut first; several are spread over the row."""
    over = np.maximum(0, tokens - seq_len)
    spread = over * answers // np.maximum(1, tokens)
    lost = np.where(turns <= _FEW_TURNS, np.minimum(over, answers), spread)
    return CutFacts(
        seq_len=seq_len,
        rows=int((over > 0).sum()),
        answer_tokens_lost=int(lost.sum()),
        emptied=int(((over > 0) & (lost >= answers)).sum()),
    )


def _bars(tokens: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """At most a dozen bars of a round width."""
    longest = int(tokens.max())
    width = next(w for power in range(12) for w in (10**power, 2 * 10**power, 5 * 10**power) if w * _BARS >= longest)
    num = -(-longest // width)
    counts = np.bincount((tokens - 1) // width, minlength=num)
    return tuple(((at + 1) * width, int(count)) for at, count in enumerate(counts))


def _shares(tokens: NDArray[np.int64], weights: NDArray[np.float64]) -> tuple[float, ...]:
    """Mean length of each hundredth of an epoch, rows counted as often as they are seen."""
    order = np.argsort(tokens, kind="stable")
    ordered, seen = tokens[order], weights[order]
    num = min(_SHARES, len(ordered))
    ends, sums = (np.concatenate(([0.0], np.cumsum(values))) for values in (seen, seen * ordered))
    # A row that is seen often may be in several shares.
    up_to = np.interp(np.linspace(0, ends[-1], num + 1), ends, sums)
    return tuple(round(float(mean), 1) for mean in np.diff(up_to) * num / ends[-1])
