"""A byte-level tokenizer made on the spot: no file, no download."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>")

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]


def _make_tokenizer(
    chat_template: str | None = None, *, more_special: tuple[str, ...] = (), adds_bos: bool = True
) -> PreTrainedTokenizerFast:
    special = SPECIAL + more_special
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(special))
    if adds_bos:  # as Llama's tokenizers do
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    return _make_tokenizer
