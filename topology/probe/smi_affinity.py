"""The columns of affinities at the right of nvidia-smi's matrix: which there are, and the NUMA node of a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_COLUMN: Final = re.compile(r"(CPU|NUMA|Node)\s{0,16}Affinity|GPU\s{0,16}NUMA\s{0,16}ID")
_LIST: Final = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")
_LIST_LIKE: Final = re.compile(r"[\d,-]+")
_SPLIT_LIST: Final = re.compile(r",\s+(?=\d)")
_LABELLED: Final = re.compile(r"\s*NUMA\s+(\d{1,6})\s*")
_NONE: Final = frozenset({"", "N/A", "-1"})


class Column(StrEnum):
    """What a column of affinities holds. `memory` is the node of the GPU's own memory, on coherent platforms."""

    cpus = "cpus"
    numa = "numa"
    memory = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """The NUMA node next to a device, None where the text does not tell; what is odd, and what is damaged."""

    numa: int | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def affinity_columns(header: str) -> tuple[str, tuple[str, ...]]:
    """Split a header into what stands before its columns of affinities, and these, even glued to each other."""
    matches = list(_COLUMN.finditer(header))
    kinds = {"CPU": Column.cpus, "NUMA": Column.numa, "Node": Column.numa, None: Column.memory}
    front = header[: matches[0].start()] if matches else header
    return front, tuple(kinds[match.group(1)].value for match in matches)


def read_affinity(tail: str, columns: tuple[str, ...]) -> Affinity:
    """Read what follows the labels of a row, under these columns; either may have been edited."""
    tail = _SPLIT_LIST.sub(",", tail)
    labelled = _LABELLED.fullmatch(tail)
    if labelled is not None:
        return Affinity(numa=int(labelled[1]))
    words = tail.split()
    damaged = [word for word in words if _is_damaged(word)]
    if damaged:
        return Affinity(faults=tuple(f"{word[:40]!r} is no list of CPUs or nodes" for word in damaged))
    if not all(word in {"N/A", "-1"} or _LIST.fullmatch(word) for word in words):
        return Affinity(notes=(f"{tail.strip()[:40]!r} after the labels is not understood and left out",))
    return _node(tail, words, columns)


def _is_damaged(word: str) -> bool:
    return word != "-1" and _LIST_LIKE.fullmatch(word) is not None and _LIST.fullmatch(word) is None


def _node(tail: str, words: list[str], columns: tuple[str, ...]) -> Affinity:
    numa = Column.numa.value
    if numa not in columns:
        # Tables cut by hand often keep the values of a column whose title is gone.
        if columns == (Column.cpus.value,) and len(words) == 2 and words[1].isdecimal():  # noqa: PLR2004 - CPUs, node
            return Affinity(numa=int(words[1]), notes=("the number after the CPU affinity is taken as its NUMA node",))
        return Affinity()
    if len(words) == len(columns):
        return _first(words[columns.index(numa)])
    # Blank cells: between tabs they can be counted. A tab too many pads the wide title of the NUMA column.
    first, *fields = tail.split("\t")
    if fields and not first.strip() and all(len(text.split()) <= 1 for text in fields):
        at = columns.index(numa)
        return _first(fields[at].strip() if at < len(fields) else "")
    if any(word not in _NONE for word in words[-2:]) and len(words) != 1:
        return Affinity(notes=("blank cells make its NUMA node unclear; it stays unknown",))
    return Affinity()


def _first(text: str) -> Affinity:
    if text in _NONE:
        return Affinity()
    node = int(re.split("[,-]", text, maxsplit=1)[0])
    several = (f"NUMA affinity {text[:40]} names several nodes; the first is taken",) if not text.isdecimal() else ()
    return Affinity(numa=node, notes=several)
