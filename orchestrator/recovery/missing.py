"""Which hosts did not take part in a start, from what the others told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.errors import Problem

_WHERE: Final = "host "
_GONE: Final = ("did not join", "nothing could be started there", "is cut off from the first host")
_FIRST_IS_GONE: Final = "could not reach the first host"


def missing(problems: Sequence[Problem], names: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the hosts that are missing; none where anything else is wrong as well.

    Args:
        problems: of the start, as hosts and the launching side tell them.
        names: of the hosts, in order.
    """
    lost: set[int] = set()
    for problem in problems:
        told = problem.where.removeprefix(_WHERE).split(", ")
        if problem.found.startswith(_FIRST_IS_GONE):
            lost.add(0)
        elif problem.found.startswith(_GONE) and set(told) <= set(names):
            lost.update(names.index(name) for name in told)
        else:
            return ()
    return tuple(sorted(lost))
