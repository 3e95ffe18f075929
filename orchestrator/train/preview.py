"""Rows as the model would get them, and nothing trained: `python -m orchestrator.train.preview` (a request on stdin).

The request is JSON: `config` (as `dump_config` writes it), `seq_len`, `rows`. The answer is one JSON document on
stdout, or the problems of the data in the form that `launch_inputs.told_error` reads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from launch.parent_death import die_with_parent
from orchestrator.errors import ExitCode, UserError
from orchestrator.train.worker import quiet_libraries, report

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from orchestrator.dataset.messages import Sample
    from orchestrator.dataset.samples import Samples

SCHEMA = 1
MOST_PACKED = 2000  # rows that are packed for a preview
_UNFINISHED = "\ufffd"  # what decoding makes of a part of a character
_MOST_PARTS = 4  # tokens that one character is spread over at most, in UTF-8
_IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """A row before it is cut: its place, source and tokens."""

    sample: Sample
    source: str
    ids: list[int]
    labels: list[int]


def main() -> int:
    """Answer the request."""
    die_with_parent()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    quiet_libraries()
    try:
        print(json.dumps(answer(json.load(sys.stdin))), flush=True)
    except UserError as error:
        report(error)
        return int(ExitCode.BAD_INPUT)
    return 0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the rows that are asked for.

    Raises:
        UserError: what is wrong with the data or the tokenizer.
    """
    from orchestrator.config_codec import parse_config
    from orchestrator.data_inputs import data_source
    from orchestrator.dataset.samples import load_samples
    from orchestrator.dataset.tokenise import check_tokenizer, encoder_of
    from orchestrator.train.rows import load_tokenizer

    config = parse_config(request["config"])
    seq_len, wanted = int(request["seq_len"]), int(request["rows"])
    tokenizer = load_tokenizer(config)
    check_tokenizer(tokenizer)
    samples = load_samples(data_source(config.data, config.seed))
    is_packed = bool(config.data.packing)
    chosen = list(islice(_in_turn(samples), MOST_PACKED if is_packed else wanted))
    encoder = encoder_of([sample for _, sample in chosen], tokenizer, assistant_only=config.data.assistant_only)
    documents = []
    for source, sample in chosen:
        ids, labels = encoder.encode(sample)
        documents.append(_Document(sample=sample, source=source, ids=ids, labels=labels))
    blocks = _blocks(documents, seq_len)[:wanted] if is_packed else [[document] for document in documents]
    notes = list(encoder.chat.notes) if encoder.chat else []
    if is_packed and len(samples.train) > len(chosen):
        notes.append(f"packed from the first {len(chosen):,} rows; the run packs all of them, so its blocks differ")
    return {
        "schema": SCHEMA,
        "seq_len": seq_len,
        "packing": is_packed,
        "assistant_only": config.data.assistant_only,
        "notes": notes,
        "rows": [[_shown(document, seq_len, tokenizer) for document in block] for block in blocks],
    }


def _in_turn(samples: Samples) -> Iterator[tuple[str, Sample]]:
    """(source, row), the first rows of each source in turn."""
    streams = [(part.name, iter(part.train)) for part in samples.parts]
    while streams:
        left = []
        for name, stream in streams:
            sample = next(stream, None)
            if sample is not None:
                yield name, sample
                left.append((name, stream))
        streams = left


def _blocks(documents: Sequence[_Document], seq_len: int) -> list[list[_Document]]:
    """Rows packed as the run packs them; rows without a token to learn are left out, as they are there."""
    from orchestrator.dataset.batching import pack
    from orchestrator.dataset.examples import make_example

    kept = [x for x in documents if any(label != _IGNORED for label in x.labels[1:seq_len])]
    packed = pack([make_example(x.ids[:seq_len], x.labels[:seq_len]) for x in kept], seq_len)
    waiting: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Document]] = {}
    for document in kept:
        waiting.setdefault((tuple(document.ids[:seq_len]), tuple(document.labels[:seq_len])), []).append(document)
    blocks = []
    for row in packed:
        block, start = [], 0
        for length in row.seq_lengths:
            end = start + length
            key = (tuple(row.input_ids[start:end].tolist()), tuple(row.labels[start:end].tolist()))
            block.append(waiting[key].pop(0))
            start = end
        blocks.append(block)
    return blocks


def _shown(document: _Document, seq_len: int, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    ids, labels = document.ids[:seq_len], document.labels[:seq_len]
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    # The first token is never predicted.
    trained = [False, *(label != _IGNORED for label in labels[1:])]
    sample = document.sample
    return {
        "source": document.source,
        "place": f"{sample.path}, {sample.unit} {sample.line}",
        "num_tokens": len(document.ids),
        "trained_tokens": sum(trained),
        "cut_tokens": max(0, len(document.ids) - seq_len),
        "cut_trained_tokens": sum(label != _IGNORED for label in document.labels[seq_len:]),
        "tokens": [
            {"id": token, "text": text, "trained": learned, "special": token in special}
            for token, text, learned in zip(ids, texts_of(ids, tokenizer), trained, strict=True)
        ],
    }


def texts_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Text of each token; of a character that is spread over several, the first has it all and the others nothing."""
    found: list[str] = []
    at = 0
    while at < len(ids):
        size, text = 1, _text([ids[at]], tokenizer)
        while _UNFINISHED in text and size < _MOST_PARTS and at + size < len(ids):
            size += 1
            text = _text(list(ids[at : at + size]), tokenizer)
        if _UNFINISHED in text:
            size, text = 1, _text([ids[at]], tokenizer)
        found += [text, *[""] * (size - 1)]
        at += size
    return found


def _text(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    first = str(tokenizer.convert_ids_to_tokens(ids[0]))
    # SentencePiece drops the space before the first word of what it decodes.
    return f" {text}" if first.startswith("\u2581") and not text.startswith(" ") else text


if __name__ == "__main__":
    sys.exit(main())
