"""The heavy tier in one call: samples -> token rows in the run directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.dataset.batching import pack_windows
from orchestrator.dataset.cache import Built, Cached, PartRows, Side, content_key, digests_of, own_suffix, prepare_once
from orchestrator.dataset.disk import reading
from orchestrator.dataset.errors import Collector, DataError, DataErrors, NothingLeftError
from orchestrator.dataset.joined import Joined
from orchestrator.dataset.samples import DataSource, SourceRows, load_samples, located_all
from orchestrator.dataset.signs import beating
from orchestrator.dataset.source import DataSpec, spec_of
from orchestrator.dataset.spool import Spool
from orchestrator.dataset.stats import summarise
from orchestrator.dataset.tokenise import Tokenised, check_tokenizer, tokenise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from orchestrator.dataset.examples import Example
    from orchestrator.dataset.locate import Located

# What a source says of its place in an epoch and in messages: no token depends on it.
_OF_THE_ORDER = ("name", "weight", "share", "key")


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
    data: DataSource | DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    options: TokenOptions,
    folder: Path,
    tell: Callable[[str], None],
    beat: Callable[[], None] = lambda: None,
) -> Cached:
    """Token rows of the data, made once per host and memory-mapped; `beat` is told meanwhile.

    Raises:
        UserError: what is wrong with the data or the tokenizer.
    """
    check_tokenizer(tokenizer)
    spec = spec_of(data)
    located = located_all(spec.sources)
    files = tuple(path for found in located for path in found.train_files + found.eval_files)
    with reading(folder):
        digests = digests_of(files, beat)
        key = content_key(files, tokenizer, _asked(spec, located, options), digests)
        return prepare_once(folder, key, lambda: build(spec, tokenizer, options, folder, beat), tell, digests, beat)


def _asked(spec: DataSpec, located: Sequence[Located], options: TokenOptions) -> dict[str, Any]:
    """What the rows depend on besides bytes: where files are does not matter, only how many are for which side."""
    sources = []
    for source, files in zip(spec.sources, located, strict=True):
        one = {key: value for key, value in asdict(source).items() if key not in _OF_THE_ORDER}
        sources.append(one | {"path": len(files.train_files), "eval_path": len(files.eval_files)})
    if not spec.is_mixture and not spec.deduplicate:
        return asdict(options) | sources[0]
    more = {"deduplicate": spec.deduplicate, "max_eval_rows": spec.max_eval_rows}
    return asdict(options) | {"sources": sources} | more


def build(
    data: DataSource | DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    options: TokenOptions,
    folder: Path | None = None,
    beat: Callable[[], None] = lambda: None,
) -> Built:
    """Read, tokenise and pack, without the cache; rows that are many wait in files in `folder`. `beat` is told."""
    spec = spec_of(data)
    samples = load_samples(spec, beat)
    work = _Work(tokenizer=tokenizer, options=options, folder=folder, beat=beat)
    notes = list(samples.notes)
    made: dict[str, list[_Made]] = {}
    collector = Collector()
    for name in ("train", "eval"):
        parts, empty = _made_of(name, samples.parts, work, collector)
        if parts:
            made[name] = parts
        if name == "eval" and parts:  # the others can be evaluated
            notes += [f"source {source}: {error.problem}, so it is not evaluated" for source, error in empty]
            continue
        for _, error in empty:
            collector.add(error)
    collector.raise_if_any()
    for name, parts in made.items():
        ones = [each.tokenised for each in parts]
        notes += [note for one in ones for note in one.notes if note not in notes]
        notes += _loss_notes(name, ones, options.seq_len)
    formats = [one.tokenised.chat for parts in made.values() for one in parts if one.tokenised.chat]
    return Built(
        sides={name: _side(parts, beat) for name, parts in made.items()},
        notes=tuple(dict.fromkeys(notes)),
        chat_template=next((chat.template for chat in formats if chat.is_new), None),
        parts={name: tuple(_part_rows(part, beat) for part in parts) for name, parts in made.items()}
        if spec.is_mixture
        else {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """One side of a source: its documents, and the rows made of them."""

    part: SourceRows
    tokenised: Tokenised
    rows: Sequence[Example]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What each part is made with."""

    tokenizer: PreTrainedTokenizerBase
    options: TokenOptions
    folder: Path | None
    beat: Callable[[], None]


def _made_of(
    name: str, parts: Sequence[SourceRows], work: _Work, collector: Collector
) -> tuple[list[_Made], list[tuple[str, NothingLeftError]]]:
    """Rows of one side by source, and sources of which no row is left; `collector` takes what else is wrong."""
    made, empty = [], []
    for at, part in enumerate(parts):
        chosen = part.train if name == "train" else part.eval
        if not chosen:
            continue
        try:
            one = _tokenised(chosen, work, _scratch(work.folder, f"{name}-{at}"))
        except NothingLeftError as error:
            empty.append((part.name, error))
            continue
        except (DataError, DataErrors) as error:
            collector.extend(error) if isinstance(error, DataErrors) else collector.add(error)
            continue
        packs = work.options.packing and name == "train"
        rows = _packed(one, work, _scratch(work.folder, f"{name}-{at}-packed")) if packs else one.examples
        made.append(_Made(part=part, tokenised=one, rows=rows))
    return made, empty


def _scratch(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / f"{name}{own_suffix()}.scratch"


def _tokenised(
    samples: Any,  # noqa: ANN401 - a sequence of samples
    work: _Work,
    scratch: Path | None,
) -> Tokenised:
    return tokenise(
        samples,
        work.tokenizer,
        seq_len=work.options.seq_len,
        assistant_only=work.options.assistant_only,
        spool=Spool(scratch),
        beat=work.beat,
    )


def _packed(made: Tokenised, work: _Work, scratch: Path | None) -> Sequence[Example]:
    spool = Spool(scratch)
    for row in beating(pack_windows(made.examples, work.options.seq_len), work.beat):
        spool.append(row)
    return spool.rows()


def _side(parts: Sequence[_Made], beat: Callable[[], None]) -> Side:
    rows, documents = (Joined([each.rows for each in parts]), Joined([each.tokenised.examples for each in parts]))
    truncated, dropped, lost = (
        sum(getattr(each.tokenised, name) for each in parts) for name in ("num_truncated", "num_dropped", "labels_lost")
    )
    return Side(examples=rows, stats=summarise(documents, len(rows), truncated, dropped, lost, beat))


def _part_rows(made: _Made, beat: Callable[[], None]) -> PartRows:
    stats = summarise(made.tokenised.examples, len(made.rows), 0, 0, beat=beat)
    return PartRows(
        name=made.part.name,
        rows=len(made.rows),
        documents=stats.rows,
        tokens=stats.tokens,
        label_tokens=stats.label_tokens,
    )


def _loss_notes(name: str, ones: Sequence[Tokenised], seq_len: int) -> list[str]:
    notes = []
    truncated, dropped = sum(one.num_truncated for one in ones), sum(one.num_dropped for one in ones)
    if truncated:
        notes.append(f"{truncated} {name} rows were cut at data.seq_len={seq_len} tokens")
    if dropped:
        notes.append(f"{dropped} {name} rows were dropped: nothing to learn in {seq_len} tokens")
    return notes
