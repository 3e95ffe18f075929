"""Parts of an estimate that many settings of one search share, counted once.

A search asks about thousands of settings that differ in where bytes lie, how many steps follow each other, or what
links reach. What does not depend on that is kept, keyed by every other field of the setting: a field that is added
later is part of the key until somebody says that it does not matter. A test changes each field that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import wraps
from operator import attrgetter
from typing import Concatenate, Final, ParamSpec, TypeVar

from orchestrator.estimate.setting import Machine, Setting

# Fields of a machine that only what travels depends on.
LINKS: Final = (
    *("machine.link_bytes_per_second", "machine.gather_bytes_per_second", "machine.link_alpha_seconds"),
    *("machine.gather_alpha_seconds", "machine.h2d_bytes_per_second"),
)
_MOST: Final = 4096  # of each function; a search needs a few hundred
P = ParamSpec("P")
T = TypeVar("T")


def kept(
    *without: str, only_gpu: bool = False
) -> Callable[[Callable[Concatenate[Setting, P], T]], Callable[Concatenate[Setting, P], T]]:
    """Keep what a function of a setting returns, whatever the fields `without` are.

    Args:
        without: names of fields of the setting, or `machine.` and one of the machine.
        only_gpu: of the machine, nothing matters but whether it is a GPU.
    """
    inside = [f"machine.{field.name}" for field in fields(Machine)]
    names = [field.name for field in fields(Setting) if field.name != "machine"]
    names += ["machine.is_gpu"] if only_gpu else inside
    unknown = set(without) - set(names)
    if unknown:
        raise ValueError(f"a setting has no {sorted(unknown)}")
    key_of = attrgetter(*(name for name in names if name not in without))

    def keep(function: Callable[Concatenate[Setting, P], T]) -> Callable[Concatenate[Setting, P], T]:
        known: dict[Hashable, T] = {}

        @wraps(function)
        def found(setting: Setting, /, *args: P.args, **more: P.kwargs) -> T:
            key = (key_of(setting), args, *more.items())
            value = known.get(key)
            if value is None:
                if len(known) >= _MOST:
                    known.clear()
                value = known[key] = function(setting, *args, **more)
            return value

        found.left_out = without  # type: ignore[attr-defined]
        return found

    return keep
