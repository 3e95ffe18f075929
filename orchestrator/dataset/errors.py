"""Errors in the user's data: where, what was found, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import Problem, UserError

if TYPE_CHECKING:
    from pathlib import Path

MAX_SHOWN = 10


class DataError(UserError):
    """One problem with the data.

    Attributes:
        path: the file or directory concerned.
        line: the 1-based line, or the row for formats without lines; None for the whole file.
        problem: what was found.
        remedy: what to do about it.
    """

    def __init__(self, *, path: Path, line: int | None, problem: str, remedy: str, unit: str = "line") -> None:
        """`unit` says what `line` counts: "line" or "row"."""
        self.path = path
        self.line = line
        self.problem = problem
        self.remedy = remedy
        where = str(path) if line is None else f"{path}, {unit} {line}"
        super().__init__(Problem(where=where, found=problem.rstrip(". \n"), remedy=remedy))


class NothingLeftError(DataError):
    """No row of a source has anything to learn."""


class DataErrors(UserError):
    """Several problems at once: the first `MAX_SHOWN`, and how many more there are.

    Attributes:
        errors: the first problems, in the order of the file.
        num_more: how many further ones are not shown.
    """

    def __init__(self, errors: tuple[DataError, ...], num_more: int) -> None:
        """Both come from a `Collector`."""
        self.errors = errors
        self.num_more = num_more
        rest = () if num_more == 0 else (_the_rest(errors[0].path, num_more),)
        super().__init__(*(error.problems[0] for error in errors), *rest)


class Collector:
    """Gathers problems while a file is read; memory is bounded however bad the file is."""

    def __init__(self) -> None:
        """Start with no problem."""
        self.errors: list[DataError] = []
        self.num_errors = 0

    def add(self, error: DataError) -> None:
        """Note a problem and go on."""
        self.num_errors += 1
        if len(self.errors) < MAX_SHOWN:
            self.errors.append(error)

    def extend(self, errors: DataErrors) -> None:
        """Take over what another collector gathered."""
        for error in errors.errors:
            self.add(error)
        self.num_errors += errors.num_more

    def raise_if_any(self) -> None:
        """Raise `DataErrors` with everything gathered, if anything was."""
        if self.errors:
            raise DataErrors(tuple(self.errors), self.num_errors - len(self.errors))


def _the_rest(path: Path, num_more: int) -> Problem:
    return Problem(
        where=str(path),
        found=f"{num_more} more problem{'s' if num_more > 1 else ''} not shown",
        remedy="Correct the ones above first; the rest is often the same mistake.",
    )
