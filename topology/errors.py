"""The one error of this package: it carries what was asked, what was found and what to do."""

from __future__ import annotations


class TopologyError(Exception):
    """A topology value, file or name that cannot be used.

    `problems` lists every fault found, one an entry; `found` is their text when it is not given.
    """

    def __init__(self, *, asked: str, remedy: str, found: str = "", problems: tuple[str, ...] = ()) -> None:
        """Keep the parts, so that a caller may print or test them one by one."""
        self.asked = asked
        self.found = found or "; ".join(problems)
        self.remedy = remedy
        self.problems = problems or (self.found,)
        super().__init__(f"asked: {self.asked}; found: {self.found}; do: {self.remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive pickling between processes, which the keyword-only constructor would break."""
        return (_rebuild, (self.asked, self.found, self.remedy, self.problems))


def _rebuild(asked: str, found: str, remedy: str, problems: tuple[str, ...]) -> TopologyError:
    return TopologyError(asked=asked, found=found, remedy=remedy, problems=problems)
