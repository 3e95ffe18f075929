"""Which rows of checked sources are learned from and which are held out, and which are there twice."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.dataset.duplicates import MAX_EXAMPLES, Duplicates, firsts, own_numbers, places_of, seen_in
from orchestrator.dataset.errors import DataError
from orchestrator.dataset.mixture import allotted
from orchestrator.dataset.split import held_out
from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.dataset.checked import Checked
    from orchestrator.dataset.source import DataSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One source, its files checked.

    Attributes:
        source: as the user gave it.
        train: rows of its training files.
        eval: rows of its eval files; None where held-out rows are split off the training rows.
        learned, held: which of them are for what, ascending.
    """

    source: DataSource
    train: Checked
    eval: Checked | None
    learned: Sequence[int] = ()
    held: Sequence[int] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All of its files."""
        return self.train.files + (() if self.eval is None else self.eval.files)


def sides_of(
    reads: Sequence[Read], *, deduplicate: bool = False, max_eval_rows: int = 0
) -> tuple[list[Read], Duplicates]:
    """Split each source by itself, so that each is represented among the held-out rows; compare both sides.

    Raises:
        UserError: a split is impossible, or nothing is left of a source; all of them at once.
    """
    again = [_repeated([read], [range(len(read.train))]) if deduplicate else _Repeated() for read in reads]
    reads = _split_all(reads, again)
    counts = allotted([len(read.held) for read in reads], max_eval_rows)
    within = sum(_num_passed_over(read, one) for read, one in zip(reads, again, strict=True))
    reads = [
        replace(read, learned=read.learned[: read.source.max_rows or None], held=read.held[:count])
        for read, count in zip(reads, counts, strict=True)
    ]
    # Only now: a row that no source uses is no reason to leave out its like in another.
    repeated = _repeated(reads, [read.learned for read in reads])
    if deduplicate:
        reads = _without(reads, repeated.rows)
    leaked, found = _leaked(reads)
    examples = (*(pair for one in again for pair in one.examples), *repeated.examples)[:MAX_EXAMPLES]
    found = replace(found, repeated=within + len(repeated.rows), repeated_examples=examples)
    if not deduplicate:
        return reads, found
    reads = _without(reads, leaked)
    if empty := [read.source for read in reads if not read.learned]:
        remedy = "Give it other rows, or use data.deduplicate=false."
        raise UserError(
            *(Problem(where=str(x.path), found="each of its rows is there already", remedy=remedy) for x in empty)
        )
    return reads, replace(found, dropped=found.repeated + len(leaked), train_rows=found.train_rows - len(leaked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    """Rows, counted over the chosen ones of all sources, that stand further up; and a few pairs of places."""

    rows: frozenset[int] = frozenset()
    examples: tuple[tuple[str, str], ...] = ()


def _repeated(reads: Sequence[Read], chosen: Sequence[Sequence[int]]) -> _Repeated:
    keys = array("Q")
    for read, rows in zip(reads, chosen, strict=True):
        keys.extend(read.train.numbers.keys[i] for i in rows)
    first = firsts(keys)
    again = places_of(first != own_numbers(first))
    name = _Places([(read.train, rows) for read, rows in zip(reads, chosen, strict=True)])
    examples = tuple((name(int(first[at])), name(at)) for at in again[:MAX_EXAMPLES])
    return _Repeated(rows=frozenset(again), examples=examples)


def _num_passed_over(read: Read, repeated: _Repeated) -> int:
    """Repeated rows in front of the last one that the source may give."""
    most = read.source.max_rows
    if not most or len(read.learned) <= most:
        return len(repeated.rows)
    return sum(row < read.learned[most - 1] for row in repeated.rows)


def _split_all(reads: Sequence[Read], repeated: Sequence[_Repeated]) -> list[Read]:
    problems: list[Problem] = []
    split: list[Read] = []
    for read, again in zip(reads, repeated, strict=True):
        usable: Sequence[int] = range(len(read.train))
        if again.rows:
            usable = array("q", (i for i in usable if i not in again.rows))
        try:
            split.append(_split(read, usable))
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError(*problems)
    return split


def _split(read: Read, usable: Sequence[int]) -> Read:
    source = read.source
    if read.eval is not None:
        return replace(read, learned=usable, held=range(len(read.eval))[: source.max_eval_rows or None])
    if not usable or (not source.eval_fraction and source.eval_count is None):
        return replace(read, learned=usable)
    chosen = held_out(
        len(usable), path=source.path, seed=source.seed, fraction=source.eval_fraction, count=source.eval_count
    )
    out = frozenset(chosen)
    learned = array("q", (row for at, row in enumerate(usable) if at not in out))
    held = array("q", (usable[at] for at in chosen))
    return replace(read, learned=learned, held=held[: source.max_eval_rows or None])


def _leaked(reads: Sequence[Read]) -> tuple[frozenset[int], Duplicates]:
    """Training rows, counted over all sources, that are held-out rows as well; and what is to be told of them."""
    keys, held_keys = array("Q"), array("Q")
    for read in reads:
        keys.extend(read.train.numbers.keys[i] for i in read.learned)
        held_keys.extend(_eval(read).numbers.keys[i] for i in read.held)
    twin = seen_in(keys, held_keys)
    leaked = places_of(twin >= 0)
    known = {keys[at] for at in leaked}
    train = _Places([(read.train, read.learned) for read in reads])
    held = _Places([(_eval(read), read.held) for read in reads])
    return frozenset(leaked), Duplicates(
        train_rows=len(keys),
        eval_rows=len(held_keys),
        leaked=len(leaked),
        leaked_eval=sum(key in known for key in held_keys),
        leaked_examples=tuple((train(at), held(int(twin[at]))) for at in leaked[:MAX_EXAMPLES]),
    )


def _without(reads: Sequence[Read], leaked: frozenset[int]) -> list[Read]:
    if not leaked:
        return list(reads)
    found, start = [], 0
    for read in reads:
        rows = read.learned
        found.append(replace(read, learned=array("q", (r for at, r in enumerate(rows) if start + at not in leaked))))
        start += len(rows)
    return found


class _Places:
    """Names the place of a row that is counted over all sources."""

    def __init__(self, parts: Sequence[tuple[Checked, Sequence[int]]]) -> None:
        self._parts = parts

    def __call__(self, at: int) -> str:
        return next(self._names(at))

    def _names(self, at: int) -> Iterator[str]:
        for checked, rows in self._parts:
            if at < len(rows):
                numbers = checked.numbers
                yield f"{checked.files[numbers.files[rows[at]]]}, line {numbers.lines[rows[at]]}"
            at -= len(rows)


def _eval(read: Read) -> Checked:
    return read.train if read.eval is None else read.eval
