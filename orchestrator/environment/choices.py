"""NCCL_ALGO and NCCL_PROTO as NCCL reads them: what a list leaves to each collective, and what it would refuse.

A list is `ring,tree` for all collectives, then perhaps `;allreduce:tree,nvls` for one of them; `^` in front excludes
(graph/tuning.cc, parseList). Since 2.24 NCCL adds nothing to a list: a collective with no valid member fails when it
is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ALGORITHMS: Final = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS: Final = ("ll", "ll128", "simple")
# By collective: what is always there, and what some machines have. (NCCL 2.30, graph/tuning.cc)
_SURE: Final = MappingProxyType(
    {
        "allreduce": frozenset({"tree", "ring"}),
        "allgather": frozenset({"ring"}),
        "reducescatter": frozenset({"ring"}),
        "broadcast": frozenset({"ring"}),
        "reduce": frozenset({"ring"}),
    }
)
_PERHAPS: Final = MappingProxyType(
    {
        "allreduce": frozenset({"collnetdirect", "collnetchain", "nvls", "nvlstree"}),
        "allgather": frozenset({"collnetdirect", "nvls", "pat"}),
        "reducescatter": frozenset({"collnetdirect", "nvls", "pat"}),
        "broadcast": frozenset[str](),
        "reduce": frozenset[str](),
    }
)


class UnknownTokenError(ValueError):
    """A word that NCCL does not know: it refuses to start."""


def allowed_by(value: str, members: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """What a list leaves to each collective.

    Raises:
        UnknownTokenError: a member or collective that does not exist.
    """
    found = dict.fromkeys(_SURE, frozenset(members))
    for at, section in enumerate(_words(value.lower(), ";")):
        *functions, text = _words(section, ":")[:2] or [section]
        chosen = _words(text.removeprefix("^"), ",")
        if not functions and at:
            raise UnknownTokenError(f"{section} without a collective, after the first entry")
        unknown = [name for name in functions if name not in _SURE] + [name for name in chosen if name not in members]
        if unknown:
            raise UnknownTokenError(", ".join(unknown))
        kept = frozenset(members) - frozenset(chosen) if text.startswith("^") else frozenset(chosen)
        found |= dict.fromkeys(functions or _SURE, kept)
    return found


def _words(text: str, mark: str) -> list[str]:
    """Parts between marks; as in NCCL, nothing between two marks is no part."""
    return [part for part in text.split(mark) if part]


def algorithm_faults(value: str) -> tuple[str, ...]:
    """What NCCL_ALGO breaks, in words."""
    try:
        found = allowed_by(value, ALGORITHMS)
    except UnknownTokenError as error:
        return (f"NCCL knows no {error}: it stops with an error",)
    none, some = [], []
    for name, kept in found.items():
        if not kept & (_SURE[name] | _PERHAPS[name]):
            none.append(name)
        elif not kept & _SURE[name]:
            some.append(name)
    return (
        *([f"it leaves no algorithm for {', '.join(none)}: they fail when they are called"] if none else []),
        *([f"{', '.join(some)} then fail where the machine lacks what it names"] if some else []),
    )


def protocol_faults(value: str) -> tuple[str, ...]:
    """What NCCL_PROTO breaks, in words."""
    try:
        found = allowed_by(value, PROTOCOLS)
    except UnknownTokenError as error:
        return (f"NCCL knows no {error}: it stops with an error",)
    # Excluding others forces what is left just as well.
    if any("ll128" in kept and kept != frozenset(PROTOCOLS) for kept in found.values()):
        return ("it forces LL128 where NCCL has not enabled it, and there it can corrupt data",)
    return ("it fixes the protocol for all sizes: NCCL chooses by size",)
