"""The light tier in one call: data sources -> checked training and eval samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.dataset.checked import Checked, Rows, check_rows
from orchestrator.dataset.duplicates import Duplicates
from orchestrator.dataset.errors import Collector, DataErrors
from orchestrator.dataset.joined import Joined
from orchestrator.dataset.locate import Located, locate_sides
from orchestrator.dataset.mixture import Part, epoch_rows
from orchestrator.dataset.sides import Read, sides_of
from orchestrator.dataset.source import DataSource, DataSpec, spec_of
from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.dataset.messages import Sample, Shape

__all__ = ["DataSource", "Joined", "Samples", "SourceRows", "load_samples", "located_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """The rows of one source, of both sides; `epoch_rows` of the training rows are seen in an epoch."""

    name: str
    train: Rows
    eval: Rows
    weight: float = 1.0
    share: float = 0.0
    epoch_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Checked samples, both sides non-empty unless no evaluation was asked for.

    Attributes:
        train: rows to learn from, of one source after the other.
        eval: rows held out; empty when neither a file, a fraction nor a count was given.
        shape: shape of the training rows (of the first source).
        files: every file read, for content keys.
        notes: what the user should know about choices made.
        parts: the sources that make up both sides.
        duplicates: rows that are there twice.
    """

    train: Sequence[Sample]
    eval: Sequence[Sample]
    shape: Shape
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    parts: tuple[SourceRows, ...] = ()
    duplicates: Duplicates | None = None


def load_samples(data: DataSource | DataSpec, beat: Callable[[], None] = lambda: None) -> Samples:
    """Read and check everything; problems of all files come together. `beat` is told while files are read.

    Raises:
        UserError: a file is missing or cannot be read, the split is impossible, or rows cannot be used.
    """
    spec = spec_of(data)
    reads, duplicates = sides_of(
        _checked_all(spec.sources, beat), deduplicate=spec.deduplicate, max_eval_rows=spec.max_eval_rows
    )
    parts = _parts(reads)
    return Samples(
        train=parts[0].train if len(parts) == 1 else Joined([part.train for part in parts]),
        eval=parts[0].eval if len(parts) == 1 else Joined([part.eval for part in parts]),
        shape=reads[0].train.shape,
        files=tuple(path for read in reads for path in read.files),
        notes=_notes(reads, duplicates),
        parts=parts,
        duplicates=duplicates,
    )


def located_all(sources: Sequence[DataSource]) -> list[Located]:
    """Files of each source.

    Raises:
        UserError: whatever is wrong with any path.
    """
    problems: list[Problem] = []
    found = []
    for source in sources:
        try:
            found.append(locate_sides(source.path, source.eval_path, source.key))
        except UserError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError(*problems)
    return found


def _checked_all(sources: Sequence[DataSource], beat: Callable[[], None]) -> list[Read]:
    """Check every file; of each source some problems are told, so that none hides another's."""
    reads: list[Read] = []
    errors: list[DataErrors] = []
    for source, located in zip(sources, located_all(sources), strict=True):
        collector = Collector()
        train = check_rows(located.train_files, source.shape, collector, beat)
        held = located.eval_files
        evaluation = check_rows(held, source.shape, collector, beat) if held else None
        try:
            collector.raise_if_any()
        except DataErrors as error:
            errors.append(error)
        if train is not None:
            reads.append(Read(source=source, train=train, eval=evaluation))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UserError(*(problem for error in errors for problem in error.problems))
    if len(reads) < len(sources):
        raise AssertionError  # without rows a problem was collected, and so raised above
    return reads


def _parts(reads: Sequence[Read]) -> tuple[SourceRows, ...]:
    mixed = [Part(rows=len(x.learned), weight=x.source.weight, share=x.source.share) for x in reads]
    return tuple(
        SourceRows(
            name=read.source.title,
            train=Rows(read.train, read.learned),
            eval=Rows(_eval_of(read), read.held),
            weight=part.weight,
            share=part.share,
            epoch_rows=rows,
        )
        for read, part, rows in zip(reads, mixed, epoch_rows(mixed), strict=True)
    )


def _eval_of(read: Read) -> Checked:
    return read.train if read.eval is None else read.eval


def _notes(reads: Sequence[Read], found: Duplicates) -> tuple[str, ...]:
    """A warning when rows of an eval file are also trained on: their loss then says nothing."""
    if found.dropped:
        return (f"{found.dropped} training rows were left out: they are there twice (data.deduplicate)",)
    if found.leaked_eval and any(read.eval is not None for read in reads):
        return (f"{found.leaked_eval} of {found.eval_rows} eval rows are also in the training data",)
    return ()
