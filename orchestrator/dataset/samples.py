"""The light tier in one call: a data source -> checked training and eval samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.dataset.errors import Collector, DataError, DataErrors
from orchestrator.dataset.files import gather_rows
from orchestrator.dataset.locate import locate_sides
from orchestrator.dataset.shapes import Parsed, parse
from orchestrator.dataset.split import split_rows

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.dataset.messages import Sample, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """What the user said about the data.

    Attributes:
        path: a file, or a directory with train.* and perhaps eval|validation|test.*.
        eval_path: a separate eval file; wins over a directory's own and over a split.
        shape: the shape of the rows; None to recognise it.
        eval_fraction: share of the rows to hold out when there is no eval file.
        eval_count: or how many. Without either, or with a fraction of 0, there is no evaluation.
        max_rows: use only the first training rows; 0 for all. Alike max_eval_rows.
        seed: of the split.
    """

    path: Path
    eval_path: Path | None = None
    shape: Shape | None = None
    eval_fraction: float | None = None
    eval_count: int | None = None
    max_rows: int = 0
    max_eval_rows: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Checked samples, both sides non-empty unless no evaluation was asked for.

    Attributes:
        train: rows to learn from.
        eval: rows held out; empty when neither a file, a fraction nor a count was given.
        shape: shape of the training rows.
        files: every file read, for content keys.
        notes: what the user should know about choices made.
    """

    train: tuple[Sample, ...]
    eval: tuple[Sample, ...]
    shape: Shape
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def load_samples(source: DataSource) -> Samples:
    """Read and check everything; problems of the training and eval files come together.

    Raises:
        UserError: a file is missing or cannot be read, the split is impossible, or rows cannot be used.
    """
    located = locate_sides(source.path, source.eval_path)
    eval_files = located.eval_files
    collector = Collector()
    train = _parsed(located.train_files, source.shape, collector)
    evaluation = _parsed(eval_files, source.shape, collector) if eval_files else None
    collector.raise_if_any()
    if train is None:
        raise AssertionError  # without rows a problem was collected, and so raised above
    if evaluation is None:
        learned, held_out = _split(train.samples, source)
        notes: tuple[str, ...] = ()
    else:
        learned, held_out = train.samples, evaluation.samples
        notes = _overlap_notes(train, evaluation)
    return Samples(
        train=learned[: source.max_rows or None],
        eval=held_out[: source.max_eval_rows or None],
        shape=train.shape,
        files=located.train_files + eval_files,
        notes=notes,
    )


def _split(samples: tuple[Sample, ...], source: DataSource) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    if not source.eval_fraction and source.eval_count is None:
        return samples, ()
    split = split_rows(
        len(samples),
        path=source.path,
        seed=source.seed,
        fraction=source.eval_fraction,
        count=source.eval_count,
    )
    return tuple(samples[i] for i in split.train), tuple(samples[i] for i in split.eval)


def _parsed(files: tuple[Path, ...], shape: Shape | None, collector: Collector) -> Parsed | None:
    rows = gather_rows(files, collector)
    try:
        # Rows are checked even if some lines were unreadable, so that all problems come at once.
        return parse(rows, shape) if rows else None
    except DataErrors as errors:
        collector.extend(errors)
    except DataError as error:
        collector.add(error)
    return None


def _overlap_notes(train: Parsed, evaluation: Parsed) -> tuple[str, ...]:
    """A warning when eval rows are also trained on: their loss then says nothing."""
    seen = {_text(sample) for sample in train.samples}
    num_shared = sum(_text(sample) in seen for sample in evaluation.samples)
    if num_shared == 0:
        return ()
    return (f"{num_shared} of {len(evaluation.samples)} eval rows are also in the training data",)


def _text(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple((message.role, message.content) for message in sample.messages)
