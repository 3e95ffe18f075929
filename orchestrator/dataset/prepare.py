"""The heavy tier in one call: samples -> token rows in the run directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from orchestrator.dataset.batching import pack
from orchestrator.dataset.cache import Built, Cached, Side, content_key, prepare_once
from orchestrator.dataset.disk import reading
from orchestrator.dataset.locate import locate_sides
from orchestrator.dataset.samples import DataSource, load_samples
from orchestrator.dataset.stats import summarise
from orchestrator.dataset.tokenise import Tokenised, check_tokenizer, tokenise

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """How text becomes rows.

    Attributes:
        seq_len: most tokens of a row, packed or not.
        assistant_only: loss on what the assistant says; False for every token.
        packing: join short documents into rows of up to `seq_len`; eval rows stay apart.
    """

    seq_len: int
    assistant_only: bool = True
    packing: bool = False


def prepare(
    source: DataSource,
    tokenizer: PreTrainedTokenizerBase,
    options: TokenOptions,
    folder: Path,
    tell: Callable[[str], None],
) -> Cached:
    """Token rows of a data source, made once per host and memory-mapped.

    Raises:
        UserError: what is wrong with the data or the tokenizer.
    """
    check_tokenizer(tokenizer)
    files = locate_sides(source.path, source.eval_path)
    asked = asdict(options) | asdict(source)
    # Where the files are does not matter, only their bytes and which side they are for.
    asked |= {"path": len(files.train_files), "eval_path": len(files.eval_files)}
    with reading(folder):
        key = content_key(files.train_files + files.eval_files, tokenizer, asked)
        return prepare_once(folder, key, lambda: build(source, tokenizer, options), tell)


def build(source: DataSource, tokenizer: PreTrainedTokenizerBase, options: TokenOptions) -> Built:
    """Read, tokenise and pack, without the cache."""
    samples = load_samples(source)
    sides, notes = {}, list(samples.notes)
    template = None
    for name, chosen in (("train", samples.train), ("eval", samples.eval)):
        if not chosen:
            continue
        made = tokenise(
            chosen,
            tokenizer,
            seq_len=options.seq_len,
            assistant_only=options.assistant_only,
        )
        sides[name] = _side(made, options.seq_len, is_packed=options.packing and name == "train")
        notes += [note for note in made.notes if note not in notes]
        notes += _loss_notes(name, made, options.seq_len)
        if made.chat and made.chat.is_new:
            template = made.chat.template
    return Built(sides=sides, notes=tuple(notes), chat_template=template)


def _side(made: Tokenised, seq_len: int, *, is_packed: bool) -> Side:
    rows = pack(made.examples, seq_len) if is_packed else made.examples
    stats = summarise(made.examples, len(rows), made.num_truncated, made.num_dropped)
    return Side(examples=rows, stats=stats)


def _loss_notes(name: str, made: Tokenised, seq_len: int) -> list[str]:
    notes = []
    if made.num_truncated:
        notes.append(f"{made.num_truncated} {name} rows were cut at data.seq_len={seq_len} tokens")
    if made.num_dropped:
        notes.append(f"{made.num_dropped} {name} rows were dropped: nothing to learn in {seq_len} tokens")
    return notes
