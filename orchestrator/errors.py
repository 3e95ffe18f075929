"""Errors a user can act on, and the exit codes of `trainmaster`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says when it ends (the contract with scripts and schedulers)."""

    DONE = 0
    BAD_INPUT = 2
    NOTHING_FITS = 3
    RUN_FAILED = 4
    RESUMABLE = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with what the user gave.

    Attributes:
        where: the key, file or file:line concerned.
        found: what was found there.
        remedy: what to do about it.
    """

    where: str
    found: str
    remedy: str

    def __str__(self) -> str:
        """One line: where, what, remedy."""
        where, found, remedy = self.parts()
        return f"{where}: {found}. {remedy}"

    def parts(self) -> tuple[str, str, str]:
        """Where, what and remedy, as they stand in the line."""
        remedy = self.remedy if self.remedy.endswith((".", "?", ")")) else f"{self.remedy}."
        return self.where, self.found.rstrip(". "), remedy


class UserError(Exception):
    """Bad input: ends with exit code 2 and one clear message, never with a traceback."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, *problems: Problem) -> None:
        """Carry every problem found, so that the user can fix them in one go."""
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class NothingFits(UserError):
    """No strategy fits the machine; carries the reason of every rejection."""

    exit_code = ExitCode.NOTHING_FITS


class RunFailed(UserError):
    """The run itself failed; the message says where the logs are."""

    exit_code = ExitCode.RUN_FAILED


class RunStopped(UserError):
    """The run was stopped on request and can be resumed."""

    exit_code = ExitCode.RESUMABLE
