"""Which hosts did not take part in a start, from what the others told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.errors import Problem

_WHERE: Final = "host "
_GONE: Final = ("did not join", "nothing could be started there")
_FIRST_IS_GONE: Final = "could not reach the first host"
_CUT_OFF: Final = "is cut off from the first host"


def missing(problems: Sequence[Problem], names: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the hosts that are missing; none where anything else is wrong as well.

    Whoever is cut off from the first host is missing, unless that one is gone itself: then it is there alone.

    Args:
        problems: of the start, as hosts and the launching side tell them.
        names: of the hosts, in order, with or without a user.
    """
    known = [_address(name) for name in names]
    lost: set[int] = set()
    cut_off: set[int] = set()
    for problem in problems:
        told = [_address(name) for name in problem.where.removeprefix(_WHERE).split(", ")]
        if problem.found.startswith(_FIRST_IS_GONE):
            lost.add(0)
        elif problem.found.startswith((*_GONE, _CUT_OFF)) and set(told) <= set(known):
            (cut_off if problem.found.startswith(_CUT_OFF) else lost).update(known.index(name) for name in told)
        else:
            return ()
    return tuple(sorted(lost if 0 in lost else lost | cut_off))


def _address(name: str) -> str:
    """A host's name without a user, and an address without brackets."""
    return name.rpartition("@")[2].strip("[]")
