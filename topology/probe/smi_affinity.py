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
# Columns parted by commas, as lists are: the blank or N/A of the last column tells where the list ends.
_CSV: Final = re.compile(rf"({_LIST.pattern}?|N/A|),(\d{{1,6}}|N/A|),{{1,2}}(N/A|)")
_MASK: Final = re.compile(r"0x[0-9a-fA-F]{1,512}")
_NONE: Final = frozenset({"", "N/A", "NA", "-", "-1", "<NULL>", "None", "[N/A]"})


class Column(StrEnum):
    """What a column of affinities holds. `memory` is the node of the GPU's own memory, on coherent platforms."""

    cpus = "cpus"
    numa = "numa"
    memory = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """The NUMA node and CPUs next to a device, None where the text does not tell; what is odd, and what is damaged."""

    numa: int | None = None
    cpus: str | None = None
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
    if not tail.strip(", \t"):
        return Affinity()
    parted = _CSV.fullmatch(tail.strip()) if len(columns) == len(Column) else None
    if parted is not None:
        return _told(dict(zip(columns, parted.groups(), strict=True)))
    labelled = _LABELLED.fullmatch(tail)
    if labelled is not None:
        return Affinity(numa=int(labelled[1]))
    words = [_listed(word) for word in tail.split()]
    damaged = [word for word in words if _is_damaged(word)]
    if damaged:
        return Affinity(faults=tuple(f"{word[:40]!r} is no list of CPUs or nodes" for word in damaged))
    if not all(word in _NONE or _LIST.fullmatch(word) for word in words):
        return Affinity(notes=(f"{tail.strip()[:40]!r} after the labels is not understood and left out",))
    return _node(tail, words, columns)


def is_value(word: str) -> bool:
    """Whether the word is a whole cell under a column of affinities."""
    return word in _NONE or _LIST.fullmatch(word) is not None


def is_affinity_word(word: str) -> bool:
    """Whether the word can stand under a column of affinities, as a line of its own where mail broke a row."""
    return word in _NONE or _LIST_LIKE.fullmatch(word) is not None or _MASK.fullmatch(word) is not None


def _listed(word: str) -> str:
    # A mask of CPUs as the list it stands for; 0-3,8 for 0x10f.
    if not _MASK.fullmatch(word):
        return word
    bits = [at for at, bit in enumerate(reversed(f"{int(word, 16):b}")) if bit == "1"]
    spans: list[list[int]] = []
    for bit in bits:
        if spans and spans[-1][1] == bit - 1:
            spans[-1][1] = bit
        else:
            spans.append([bit, bit])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans) or "N/A"


def _is_damaged(word: str) -> bool:
    if word in _NONE:
        return False
    if _LIST_LIKE.fullmatch(word) is None:
        return False
    if _LIST.fullmatch(word) is None:
        return True
    spans = (part.split("-") for part in word.split(",") if "-" in part)
    return any(int(first) > int(last) for first, last in spans)


def _node(tail: str, words: list[str], columns: tuple[str, ...]) -> Affinity:
    numa, cpus = Column.numa.value, Column.cpus.value
    if len(words) == len(columns):
        return _told(dict(zip(columns, words, strict=True)))
    if numa not in columns:
        # Tables cut by hand often keep the values of a column whose title is gone.
        if columns == (cpus,) and len(words) == 2 and words[1].isdecimal():  # noqa: PLR2004 - CPUs, node
            note = "the number after the CPU affinity is taken as its NUMA node"
            return Affinity(numa=int(words[1]), cpus=_cpus(words[0]), notes=(note,))
        return Affinity()
    # Blank cells: between tabs they can be counted. A tab too many pads the wide title of the NUMA column.
    first, *fields = tail.split("\t")
    if fields and not first.strip() and all(len(text.split()) <= 1 for text in fields):
        return _told(dict(zip(columns, (_listed(text.strip()) for text in fields), strict=False)))
    if any(word not in _NONE for word in words[-2:]) and len(words) != 1:
        return Affinity(notes=("blank cells make its NUMA node unclear; it stays unknown",))
    return Affinity()


def _told(values: dict[str, str]) -> Affinity:
    text = values.get(Column.numa.value, "")
    cpus = _cpus(values.get(Column.cpus.value, ""))
    if text in _NONE:
        return Affinity(cpus=cpus)
    node = int(re.split("[,-]", text, maxsplit=1)[0])
    several = (f"NUMA affinity {text[:40]} names several nodes; the first is taken",) if not text.isdecimal() else ()
    return Affinity(numa=node, cpus=cpus, notes=several)


def _cpus(text: str) -> str | None:
    return None if text in _NONE else text
