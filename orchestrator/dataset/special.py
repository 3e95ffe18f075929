"""Which tokens of a tokenizer stand for no text."""

from __future__ import annotations

from typing import Any


def special_tokens(tokenizer: Any) -> frozenset[int]:  # noqa: ANN401 - untyped
    """Return them. Added ones are not all special: line breaks and `</think>` may be among them.

    The filler is one of them: rows are filled up later, so where it stands in a row the template wrote it.
    """
    added = {token for token, how in tokenizer.added_tokens_decoder.items() if how.special}
    return frozenset({*tokenizer.all_special_ids, *added} - {tokenizer.unk_token_id})
