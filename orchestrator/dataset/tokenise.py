"""Samples -> token rows with labels on what the assistant says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.dataset.chat import ChatFormat, Source, adds_bos, choose_format
from orchestrator.dataset.errors import Collector, DataError, NothingLeftError
from orchestrator.dataset.examples import IGNORED, Example, make_example
from orchestrator.dataset.signs import beating
from orchestrator.dataset.spans import marked_tokens, prefix_spans, prompt_chars, render
from orchestrator.dataset.special import special_tokens
from orchestrator.dataset.spool import Spool
from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from orchestrator.dataset.messages import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenised:
    """Token rows and what was lost on the way.

    Attributes:
        examples: in the order of the samples, without the dropped ones.
        num_truncated: rows cut to `seq_len`, kept or dropped.
        num_dropped: rows without a token to learn within `seq_len`.
        labels_lost: tokens with loss that were cut off.
        chat: the template used; None when every sample was a plain prompt and completion.
        notes: what the user should know.
    """

    examples: Sequence[Example]
    num_truncated: int
    num_dropped: int
    labels_lost: int = 0
    chat: ChatFormat | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A tokenizer with the choices made once for all rows."""

    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat | None
    adds_bos: bool
    assistant_only: bool

    def encode(self, sample: Sample) -> tuple[list[int], list[int]]:
        """(input ids, labels) of one sample, not yet truncated."""
        if sample.is_plain:
            return self._plain(sample)
        if self.chat is None:
            raise AssertionError  # a format is chosen whenever a conversation is present
        template = self.chat.template
        if self.assistant_only and self.chat.source is Source.markers:
            return self._marked(sample, template)
        full = render(sample, self.tokenizer, template, sample.messages)
        ids, offsets = self._offsets(full)
        if not self.assistant_only:
            return ids, list(ids)
        spans = prefix_spans(sample, self.tokenizer, template, full)
        # A token over the end of a turn starts what follows it: not the assistant's to say.
        is_label = [any(start < e <= end for start, end in spans) for _, e in offsets]
        return ids, _labels(ids, is_label)

    def _marked(self, sample: Sample, template: str) -> tuple[list[int], list[int]]:
        ids, mask = marked_tokens(sample, self.tokenizer, template)
        num_prompt_chars = prompt_chars(sample, self.tokenizer, template)
        if num_prompt_chars:
            _, offsets = self._offsets(render(sample, self.tokenizer, template, sample.messages))
            mask = [int(m and e > num_prompt_chars) for m, (_, e) in zip(mask, offsets, strict=True)]
        return ids, _labels(ids, mask)

    def _plain(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Prompt and completion as one text, so that tokens at the seam are the usual ones."""
        prompt, completion = (message.content for message in sample.messages)
        ids, offsets = self._offsets(prompt + completion)
        is_label = [end > len(prompt) for _, end in offsets]
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if self.adds_bos and ids[:1] != [bos]:
            ids, is_label = [bos, *ids], [False, *is_label]
        if eos is not None and ids[-1:] != [eos]:
            ids, is_label = [*ids, eos], [*is_label, True]
        return ids, _labels(ids, is_label) if self.assistant_only else list(ids)

    def _offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # Special tokens are off: templates write BOS themselves, and two of them would be wrong.
        out: Mapping[str, Any] = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return out["input_ids"], out["offset_mapping"]


def tokenise(
    samples: Sequence[Sample],
    tokenizer: PreTrainedTokenizerBase,
    *,
    seq_len: int,
    assistant_only: bool = True,
    spool: Spool | None = None,
    beat: Callable[[], None] = lambda: None,
) -> Tokenised:
    """Token rows of at most `seq_len` tokens, the start kept.

    With `assistant_only` the loss is on assistant turns and their end-of-turn token, or on the
    completion and EOS of a plain prompt and completion; otherwise on every token. `spool` takes the rows; without one
    they are kept in memory. `beat` is told meanwhile.

    Raises:
        NothingLeftError: no row is left.
        UserError: the tokenizer cannot be used, or rows that the chat template refuses or renders inconsistently.
    """
    if not samples:
        return Tokenised(examples=(), num_truncated=0, num_dropped=0, chat=None, notes=())
    check_tokenizer(tokenizer)
    encoder = encoder_of(samples, tokenizer, assistant_only=assistant_only)
    chat = encoder.chat
    spool = Spool() if spool is None else spool
    examples, num_truncated, labels_lost = _encode_all(samples, encoder, seq_len, spool, beat)
    notes = (chat.notes if chat else ()) + _stop_notes(examples, tokenizer, seq_len)
    return Tokenised(
        examples=examples,
        num_truncated=num_truncated,
        num_dropped=len(samples) - len(examples),
        labels_lost=labels_lost,
        chat=chat,
        notes=notes,
    )


def encoder_of(samples: Iterable[Sample], tokenizer: PreTrainedTokenizerBase, *, assistant_only: bool) -> Encoder:
    """The choices that are made once for all rows; a template only where one of them is a conversation."""
    has_chat = any(not sample.is_plain for sample in samples)
    return Encoder(
        tokenizer=tokenizer,
        chat=choose_format(tokenizer) if has_chat else None,
        adds_bos=adds_bos(tokenizer),
        assistant_only=assistant_only,
    )


def _encode_all(
    samples: Sequence[Sample], encoder: Encoder, seq_len: int, spool: Spool, beat: Callable[[], None]
) -> tuple[Sequence[Example], int, int]:
    """(rows with something to learn, number of rows cut, tokens with loss that were cut off)."""
    collector = Collector()
    num_kept, num_truncated, labels_lost = 0, 0, 0
    for sample in beating(samples, beat):
        try:
            ids, labels = encoder.encode(sample)
        except DataError as error:
            collector.add(error)
            continue
        if len(ids) > seq_len:
            num_truncated += 1
            labels_lost += sum(label != IGNORED for label in labels[seq_len:])
            ids, labels = ids[:seq_len], labels[:seq_len]
        # The first token is never predicted, so a label there alone is nothing to learn.
        if any(label != IGNORED for label in labels[1:]):
            spool.append(make_example(ids, labels))
            num_kept += 1
    examples = spool.rows()
    collector.raise_if_any()
    if not num_kept:
        raise _nothing_left(samples, seq_len)
    return examples, num_truncated, labels_lost


def _labels(ids: list[int], is_label: Sequence[bool | int]) -> list[int]:
    return [token if keep else IGNORED for token, keep in zip(ids, is_label, strict=True)]


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check what no row can make up for.

    Raises:
        UserError: tokens cannot be traced to characters, or rows cannot be ended and padded.
    """
    where = f"tokenizer of {tokenizer.name_or_path or 'the model'}"
    if not tokenizer.is_fast:
        found = f"{type(tokenizer).__name__} cannot map tokens to characters"
        raise UserError(Problem(where=where, found=found, remedy="Use the model's fast tokenizer (a tokenizer.json)."))
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        found = "the tokenizer names neither a pad nor an eos token"
        raise UserError(Problem(where=where, found=found, remedy="Set one in tokenizer_config.json."))


def _nothing_left(samples: Sequence[Sample], seq_len: int) -> NothingLeftError:
    return NothingLeftError(
        path=samples[0].path,
        line=None,
        problem=f"none of {len(samples)} rows has a token to learn in its first {seq_len} tokens",
        remedy="Raise data.seq_len, or shorten the prompts.",
    )


def _stop_notes(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, seq_len: int) -> tuple[str, ...]:
    """A warning when no learned turn ends in a special token: the model could not stop."""
    special = special_tokens(tokenizer)
    whole = [example for example in examples[:32] if len(example) < seq_len]
    # The end-of-turn token may be followed by a line break or two.
    learned = [example.labels[example.labels != IGNORED][-3:] for example in whole]
    if not learned or any(special.intersection(tail.tolist()) for tail in learned):
        return ()
    return ("no assistant turn ends in a special token, so the model may not learn to stop",)
