"""Lengths of the rows in tokens, from a sample of them: what planning needs to know about the data.

The text of up to 512 rows is counted with the model's tokenizer; the others follow by their
characters. What the chat template adds is a fixed number of tokens a turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.dataset.checked import Rows
from orchestrator.dataset.disk import is_file, reading
from orchestrator.dataset.messages import Sample
from orchestrator.dataset.numbers import RowNumbers, numbers_of
from orchestrator.dataset.samples import Samples, SourceRows
from orchestrator.errors import Problem, UserError
from orchestrator.workload.batch import DataStats
from orchestrator.workload.row_counting import row_facts
from orchestrator.workload.row_facts import RowFacts, SourceFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_COUNTED_ROWS = 512
MAX_COUNTED_CHARS = 20_000  # of one row: tokenizers take about 5 MB of text a second on one core
_ROWS_PER_CALL = 64  # encodings hold much more than the ids, so not all of them are kept at once
_MAX_SPREAD = 1.5  # an odd short row must not stand for the longest ones
_NUM_QUANTILES = 32
_TOKENS_PER_TURN = 5  # role markers and line ends of a usual chat template
_TOKENS_PER_CHAR = 0.3  # English text and code under a 32k vocabulary; used without a tokenizer


def data_stats(samples: Samples, folder: Path | None, seq_len: int = 0) -> DataStats:
    """Count the rows' tokens, or estimate them; of a mixture, for an epoch of it.

    The longest row is the longest of those counted, and of the others as if each had the most
    tokens a character of any row counted (at most 1.5 times the mean).

    Args:
        samples: at least one training row.
        folder: of the model, for its tokenizer.json; None for a model without files.
        seq_len: tokens a row will be cut at; 0 leaves out the facts about lengths.

    Raises:
        UserError: the tokenizer cannot be read.
    """
    tokenizer = _tokenizer(folder) if folder else None
    parts = [_counted(part, tokenizer) for part in (samples.parts or (samples,))]
    num_rows, num_counted = sum(len(part.tokens) for part in parts), sum(part.num_counted for part in parts)
    source = "guessed from the length of the text (the model has no tokenizer.json)"
    if tokenizer is not None:
        source = f"counted on {num_counted} of {num_rows} rows"
    seen = [part.epoch_rows for part in samples.parts] or [num_rows]
    is_mixed = seen != [len(part.tokens) for part in parts]
    total: float = sum(sum(part.tokens) for part in parts)
    tokens = [length for part in parts for length in part.tokens]
    quantiles = _quantiles(tokens)
    if is_mixed:
        total = sum(sum(part.tokens) * rows / len(part.tokens) for part, rows in zip(parts, seen, strict=True))
        weights = _weights(parts, seen)
        quantiles = _weighted_quantiles(np.array(tokens, dtype=np.int64), weights)
    return DataStats(
        rows=sum(seen),
        eval_rows=len(samples.eval),
        mean_tokens=total / sum(seen),
        max_tokens=max(part.longest for part in parts),
        total_tokens=round(total),
        source=source,
        quantiles=quantiles,
        facts=_facts(samples, parts, seen, seq_len) if seq_len else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Lengths of the rows of one source; `longest` allows for rows that were not counted."""

    tokens: array[int]
    numbers: RowNumbers
    longest: int
    num_counted: int


def _counted(part: SourceRows | Samples, tokenizer: Any) -> _Counted:  # noqa: ANN401 - untyped
    train = part.train
    numbers = train.numbers if isinstance(train, Rows) else numbers_of(train)
    counted: dict[int, float] = {}
    if tokenizer is not None:
        num_counted = min(len(train), MAX_COUNTED_ROWS)
        chosen = [i * len(train) // num_counted for i in range(num_counted)]
        counted = dict(zip(chosen, _text_tokens(tokenizer, [train[i] for i in chosen]), strict=True))
    per_char, spread = _ratios(numbers, counted)
    tokens, longest = array("q"), 0
    for i, (chars, turns) in enumerate(zip(numbers.chars, numbers.turns, strict=True)):
        own = counted.get(i)
        tokens.append(_row_tokens(turns, chars * per_char if own is None else own))
        longest = max(longest, tokens[-1] if own is not None else _row_tokens(turns, chars * per_char * spread))
    return _Counted(tokens=tokens, numbers=numbers, longest=longest, num_counted=len(counted))


def _weights(parts: Sequence[_Counted], seen: Sequence[int]) -> NDArray[np.float64]:
    """[rows] times that a row of each source is seen in an epoch."""
    return np.concatenate(
        [np.full(len(part.tokens), rows / len(part.tokens)) for part, rows in zip(parts, seen, strict=True)]
    )


def _facts(samples: Samples, parts: Sequence[_Counted], seen: Sequence[int], seq_len: int) -> RowFacts:
    tokens = np.concatenate([np.asarray(part.tokens, dtype=np.int64) for part in parts])
    chars, said, turns = (
        np.concatenate([np.asarray(getattr(part.numbers, name), dtype=np.int64) for part in parts])
        for name in ("chars", "answer_chars", "turns")
    )
    facts = row_facts(tokens, tokens * said // np.maximum(1, chars), turns, _weights(parts, seen), seq_len)
    sources = [
        SourceFacts(
            name=part.name,
            rows=len(part.train),
            epoch_rows=part.epoch_rows,
            eval_rows=len(part.eval),
            mean_tokens=sum(counted.tokens) / len(counted.tokens),
            weight=part.weight,
            share=part.share,
        )
        for part, counted in zip(samples.parts, parts, strict=False)
    ]
    return replace(facts, sources=tuple(sources) if len(sources) > 1 else (), duplicates=samples.duplicates)


def _weighted_quantiles(tokens: NDArray[np.int64], weights: NDArray[np.float64]) -> tuple[int, ...]:
    """`_quantiles` of rows that are seen `weights` times each."""
    order = np.argsort(tokens, kind="stable")
    ends = np.cumsum(weights[order])
    num = min(_NUM_QUANTILES, len(tokens))
    at = np.searchsorted(ends, (np.arange(num) + 0.5) / num * ends[-1])
    return tuple(int(x) for x in tokens[order][np.minimum(at, len(tokens) - 1)])


def _quantiles(tokens: Sequence[int]) -> tuple[int, ...]:
    """Lengths of up to 32 equal shares of the rows: the middle of each share."""
    ordered = sorted(tokens)
    num = min(_NUM_QUANTILES, len(ordered))
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * num)] for i in range(num))


def _row_tokens(turns: int, text_tokens: float) -> int:
    return max(2, round(text_tokens) + _TOKENS_PER_TURN * turns)


def _ratios(numbers: RowNumbers, counted: dict[int, float]) -> tuple[float, float]:
    """(tokens a character over the rows counted, how far the densest row lies above that)."""
    num_chars = sum(numbers.chars[i] for i in counted)
    num_tokens = sum(counted.values())
    if not num_tokens:
        return _TOKENS_PER_CHAR, 1.0
    mean = num_tokens / num_chars
    densest = max(tokens / numbers.chars[i] for i, tokens in counted.items() if numbers.chars[i])
    return mean, min(_MAX_SPREAD, densest / mean)


def _text_tokens(tokenizer: Any, rows: Sequence[Sample]) -> list[float]:  # noqa: ANN401 - untyped
    """Tokens of the text of each row; of a long row the start is counted and the rest follows by its length."""
    found: list[float] = []
    for start in range(0, len(rows), _ROWS_PER_CALL):
        some = rows[start : start + _ROWS_PER_CALL]
        pieces = [_pieces(row) for row in some]
        texts = [piece for row in pieces for piece in row]
        lengths = iter([len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)])
        for row, parts in zip(some, pieces, strict=True):
            num_tokens = sum(next(lengths) for _ in parts)
            found.append(num_tokens * row.num_chars / max(1, sum(map(len, parts))))
    return found


def _pieces(sample: Sample) -> list[str]:
    left = MAX_COUNTED_CHARS
    pieces: list[str] = []
    for text in sample.texts:
        if left <= 0:
            break
        pieces.append(text[:left])
        left -= len(pieces[-1])
    return pieces


def _tokenizer(folder: Path) -> Any | None:  # noqa: ANN401 - untyped
    path = folder / "tokenizer.json"
    if not is_file(path):
        return None
    from tokenizers import Tokenizer

    with reading(path):
        content = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        found = f"not a tokenizer ({str(error).rstrip('. ')})"
        raise UserError(Problem(where=str(path), found=found, remedy="Download the model again.")) from error
    # A file may carry the settings it was last used with: they would cut or fill what is counted.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
