"""Token rows -> packed rows -> tensors.

How a packed row must be given to a model (read in transformers 5.24 `masking_utils`, tested):
documents are told apart by `position_ids` that restart at 0, and only if there is no attention
mask *and no cache*. A model called with `use_cache=True` (the default of most configs) lets
documents see each other without a word, so pass `use_cache=False` (TRL does). With eager and sdpa
attention any number of packed rows may stand in a batch; flash attention honours restarts in
batches of one row only, hence `is_flat`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, table
from datasets.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from trl.data_utils import pack_dataset

from orchestrator.dataset.examples import IGNORED, Example
from orchestrator.dataset.store import list_array, list_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WINDOW_TOKENS = 16_000_000  # packed at once; libraries take some 24 bytes a token for it


def pack(examples: Sequence[Example], block_tokens: int) -> tuple[Example, ...]:
    """Best-fit-decreasing rows of at most `block_tokens` tokens; documents stay whole.

    TRL packs batches of 1000 by default; here all examples are one batch, which packs tighter.

    Raises:
        ValueError: an example is longer than a row, or packed already.
    """
    if not examples:
        return ()
    longest = max(len(example) for example in examples)
    if longest > block_tokens:
        msg = f"an example of {longest} tokens does not fit a row of {block_tokens}"
        raise ValueError(msg)
    if any(len(example.seq_lengths) > 1 for example in examples):
        msg = "the examples are packed already"
        raise ValueError(msg)
    columns = {
        "input_ids": list_array([example.input_ids for example in examples]),
        "labels": list_array([example.labels for example in examples]),
    }
    packed = _trl_pack(pa.table(columns), block_tokens, len(examples))
    ids, labels, seq_lengths = (list_views(packed.column(name)) for name in ("input_ids", "labels", "seq_lengths"))
    return tuple(
        Example(input_ids=i, labels=label, seq_lengths=tuple(n.tolist()))
        for i, label, n in zip(ids, labels, seq_lengths, strict=True)
    )


def pack_windows(examples: Sequence[Example], block_tokens: int) -> Iterator[Example]:
    """`pack`, window by window of at most `WINDOW_TOKENS` tokens: memory does not grow with the data.

    Each window leaves one block that may be less full, of hundreds or thousands.
    """
    window: list[Example] = []
    num_tokens = 0
    for example in examples:
        if window and num_tokens + len(example) > WINDOW_TOKENS:
            yield from pack(window, block_tokens)
            window, num_tokens = [], 0
        window.append(example)
        num_tokens += len(example)
    yield from pack(window, block_tokens)


def collate(
    rows: Sequence[Example],
    pad_token_id: int,
    *,
    pad_to: int | None = None,
    pad_multiple_of: int = 1,
    is_packed: bool | None = None,
    is_flat: bool = False,
) -> dict[str, torch.Tensor]:
    """A batch, [rows, tokens] int64 each.

    Unpacked: `input_ids`, `labels`, `attention_mask`. Packed: `input_ids`, `labels`,
    `position_ids`; padding is one more document that only sees itself.

    Args:
        rows: at least one.
        pad_token_id: fills rows up on the right; its labels are ignored.
        pad_to: pad to exactly this many tokens (static shapes); None for the longest row.
        pad_multiple_of: round the padded length up, for kernels that like multiples of 8.
        is_packed: None decides by the rows; name it where the keys must not vary by batch.
        is_flat: put all rows one after another into one (implies packed): flash attention.

    Raises:
        ValueError: a row is longer than `pad_to`, or packed where `is_packed` is False.
    """
    has_positions = _has_positions(rows, is_packed=is_packed, is_flat=is_flat)
    rows = (_concatenated(rows),) if is_flat else rows
    num_tokens = _padded_tokens(max(len(row) for row in rows), pad_to, pad_multiple_of)
    input_ids = torch.full((len(rows), num_tokens), pad_token_id, dtype=torch.int64)
    labels = torch.full_like(input_ids, IGNORED)
    for i, row in enumerate(rows):
        input_ids[i, : len(row)] = torch.from_numpy(row.input_ids.astype(np.int64))
        labels[i, : len(row)] = torch.from_numpy(row.labels.astype(np.int64))
    positions = torch.stack([_positions(row, num_tokens) for row in rows])
    # A document's first token would be predicted from the document before it.
    labels[positions == 0] = IGNORED
    if has_positions:
        return {"input_ids": input_ids, "labels": labels, "position_ids": positions}
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(num_tokens)[None, :] < lengths[:, None]).to(torch.int64)
    return {"input_ids": input_ids, "labels": labels, "attention_mask": mask}


def _has_positions(rows: Sequence[Example], *, is_packed: bool | None, is_flat: bool) -> bool:
    """Whether documents are told apart by positions, rather than padding by a mask."""
    must = is_flat or any(len(row.seq_lengths) > 1 for row in rows)
    if must and is_packed is False:
        msg = "packed rows cannot be collated with an attention mask"
        raise ValueError(msg)
    return must or is_packed is True


def _positions(row: Example, num_tokens: int) -> torch.Tensor:
    """[num_tokens] position in its document of each token; the padding is one more document."""
    num_padding = num_tokens - len(row)
    documents = (*row.seq_lengths, num_padding) if num_padding else row.seq_lengths
    return torch.cat([torch.arange(length) for length in documents])


def _padded_tokens(longest: int, pad_to: int | None, multiple: int) -> int:
    if pad_to is None:
        return -(-longest // multiple) * multiple
    if longest > pad_to or pad_to % multiple:
        msg = f"cannot pad {longest} tokens to {pad_to}, in multiples of {multiple}"
        raise ValueError(msg)
    return pad_to


def _concatenated(rows: Sequence[Example]) -> Example:
    return Example(
        input_ids=np.concatenate([row.input_ids for row in rows]),
        labels=np.concatenate([row.labels for row in rows]),
        seq_lengths=tuple(length for row in rows for length in row.seq_lengths),
    )


def _trl_pack(columns: Any, block_tokens: int, num_examples: int) -> Any:  # noqa: ANN401 - untyped
    """An Arrow table packed by TRL, in memory and without a progress bar."""
    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        packed = pack_dataset(
            Dataset(table.InMemoryTable(columns)),
            seq_length=block_tokens,
            map_kwargs={"batch_size": num_examples, "keep_in_memory": True},
        )
    finally:
        if not were_disabled:
            enable_progress_bars()
    return packed.with_format("arrow")[:]
