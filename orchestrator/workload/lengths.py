"""Lengths of the rows in tokens, from a sample of them: what planning needs to know about the data.

The text of up to 512 rows is counted with the model's tokenizer; the others follow by their
characters. What the chat template adds is a fixed number of tokens a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.dataset.disk import is_file, reading
from orchestrator.dataset.messages import Sample
from orchestrator.dataset.samples import Samples
from orchestrator.errors import Problem, UserError
from orchestrator.workload.batch import DataStats

MAX_COUNTED_ROWS = 512
MAX_COUNTED_CHARS = 20_000  # of one row: tokenizers take about 5 MB of text a second on one core
_ROWS_PER_CALL = 64  # encodings hold much more than the ids, so not all of them are kept at once
_MAX_SPREAD = 1.5  # an odd short row must not stand for the longest ones
_NUM_QUANTILES = 32
_TOKENS_PER_TURN = 5  # role markers and line ends of a usual chat template
_TOKENS_PER_CHAR = 0.3  # English text and code under a 32k vocabulary; used without a tokenizer


def data_stats(samples: Samples, folder: Path | None) -> DataStats:
    """Count the rows' tokens, or estimate them.

    The longest row is the longest of those counted, and of the others as if each had the most
    tokens a character of any row counted (at most 1.5 times the mean).

    Args:
        samples: at least one training row.
        folder: of the model, for its tokenizer.json; None for a model without files.

    Raises:
        UserError: the tokenizer cannot be read.
    """
    train = samples.train
    tokenizer = _tokenizer(folder) if folder else None
    counted: dict[int, float] = {}
    source = "guessed from the length of the text (the model has no tokenizer.json)"
    if tokenizer is not None:
        num_counted = min(len(train), MAX_COUNTED_ROWS)
        chosen = [i * len(train) // num_counted for i in range(num_counted)]
        counted = dict(zip(chosen, _text_tokens(tokenizer, [train[i] for i in chosen]), strict=True))
        source = f"counted on {len(counted)} of {len(train)} rows"
    per_char, spread = _ratios(train, counted)
    tokens = [_row_tokens(sample, counted.get(i, sample.num_chars * per_char)) for i, sample in enumerate(train)]
    longest = [
        tokens[i] if i in counted else _row_tokens(sample, sample.num_chars * per_char * spread)
        for i, sample in enumerate(train)
    ]
    return DataStats(
        rows=len(train),
        eval_rows=len(samples.eval),
        mean_tokens=sum(tokens) / len(tokens),
        max_tokens=max(longest),
        total_tokens=sum(tokens),
        source=source,
        quantiles=_quantiles(tokens),
    )


def _quantiles(tokens: Sequence[int]) -> tuple[int, ...]:
    """Lengths of up to 32 equal shares of the rows: the middle of each share."""
    ordered = sorted(tokens)
    num = min(_NUM_QUANTILES, len(ordered))
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * num)] for i in range(num))


def _row_tokens(sample: Sample, text_tokens: float) -> int:
    return max(2, round(text_tokens) + _TOKENS_PER_TURN * len(sample.messages))


def _ratios(train: Sequence[Sample], counted: dict[int, float]) -> tuple[float, float]:
    """(tokens a character over the rows counted, how far the densest row lies above that)."""
    num_chars = sum(train[i].num_chars for i in counted)
    num_tokens = sum(counted.values())
    if not num_tokens:
        return _TOKENS_PER_CHAR, 1.0
    mean = num_tokens / num_chars
    densest = max(tokens / train[i].num_chars for i, tokens in counted.items() if train[i].num_chars)
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
    for message in sample.messages:
        if left <= 0:
            break
        pieces.append(message.content[:left])
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
