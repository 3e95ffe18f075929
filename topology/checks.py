"""What every value of this package is checked with: quantities, PCI addresses, and all faults told at once."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from topology.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable

V = TypeVar("V")

_PCI: Final = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_LARGEST: Final = 1e24  # bytes, bytes per second, hertz: far above all of them, and still a float
_PLAIN_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def normal_pci(text: str) -> str | None:
    """Write a PCI address as sysfs does (`0000:18:00.0`), from NVML's and nvidia-smi's forms; None if it is none."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function or '0'}".lower()


def printable(text: str) -> str:
    """Write what a terminal would obey, or show in another order, as an escape: names may come from anyone."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def is_no_pci(text: str | None) -> bool:
    """Whether the text is there and not written as `normal_pci` writes addresses."""
    return text is not None and _is_odd(text)


@lru_cache(maxsize=1024)  # hosts of one kind have the same addresses
def _is_odd(text: str) -> bool:
    return not (_PLAIN_PCI.fullmatch(text) and text == normal_pci(text))


def negative(value: float | None) -> bool:
    """Whether the value is there and no quantity: NaN and infinity are none either, nor what no machine has."""
    return value is not None and not 0 <= value < _LARGEST


def doubles(values: Iterable[V]) -> list[V]:
    """Return the values that are there more than once."""
    values = list(values)
    if len(set(values)) == len(values):
        return []
    return [value for value, count in Counter(values).items() if count > 1]


def check(what: str, *rules: tuple[bool, str]) -> None:
    """Refuse a value by rules of (is it broken, what was found); all broken ones are told at once.

    Raises:
        TopologyError: if any rule is broken.

    """
    problems = tuple(found for broken, found in rules if broken)
    if problems:
        raise TopologyError(asked=what, problems=problems, remedy="correct the value where it is made")
