"""Which of several matrices in one text counts: repeats are one, `-m` and `-mp` complete each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topology.errors import TopologyError
from topology.probe.smi_check import LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.smi_text import SmiMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The matrix of `-m`, the one that tells the PCIe places of the same machine (None: no other), and warnings."""

    matrix: SmiMatrix
    places: SmiMatrix | None = None
    warnings: tuple[str, ...] = ()


def choose(matrices: Sequence[SmiMatrix], number: int | None = None) -> Chosen:
    """Take the matrix of that number (from 1), else the first with all that agrees with it.

    Raises:
        TopologyError: if there is no matrix of that number.

    """
    if number is not None:
        if not 1 <= number <= len(matrices):
            lines = ", ".join(str(matrix.line) for matrix in matrices)
            raise TopologyError(
                asked=f"matrix {number} of the text",
                found=f"{len(matrices)} matrices, with headers at lines {lines}",
                remedy=f"give topology.matrix a number from 1 to {len(matrices)}",
            )
        return Chosen(matrix=matrices[number - 1])
    first, places, others = matrices[0], None, []
    for other in matrices[1:]:
        if _is_repeat(first, other):
            first = _completed(first, other)
        elif places is not None and _is_repeat(places, other):
            places = _completed(places, other)
        elif places is None and _is_one_machine(first, other) and _tells_places(first, other):
            places = other
        elif places is None and _is_one_machine(first, other) and _tells_places(other, first):
            first, places = other, first
        else:
            others.append(other)
    warnings = [f"the PCIe places are those of the matrix at line {places.line}"] if places is not None else []
    if others:
        warnings.append(_left_out(matrices, first, others))
    if places is not None:
        first = _completed(first, places)
    return Chosen(matrix=first, places=places, warnings=tuple(warnings))


def _left_out(matrices: Sequence[SmiMatrix], first: SmiMatrix, others: Sequence[SmiMatrix]) -> str:
    lines = ", ".join(str(other.line) for other in others)
    number = next(at for at, matrix in enumerate(matrices, start=1) if matrix.line == others[0].line)
    count = "a matrix that differs" if len(others) == 1 else f"{len(others)} matrices that differ"
    return (
        f"the matrix at line {first.line} is taken; {count} from it, at line(s) {lines}, not: "
        f"topology.matrix={number} takes that of line {others[0].line}"
    )


def _is_repeat(one: SmiMatrix, other: SmiMatrix) -> bool:
    # A text may leave out the affinities or the legend once; where both tell, they must agree.
    if (one.names, one.cells) != (other.names, other.cells) or _agrees_not(one.numa, other.numa):
        return False
    names = dict(one.nic_names)
    return not _agrees_not(one.cpus, other.cpus) and all(names.get(nic, name) == name for nic, name in other.nic_names)


def _agrees_not(one: Sequence[object], other: Sequence[object]) -> bool:
    return any(a is not None and b is not None and a != b for a, b in zip(one, other, strict=True))


def _is_one_machine(one: SmiMatrix, later: SmiMatrix) -> bool:
    # Affinities are the machine's own. Words between two matrices mostly say that the second is of another machine,
    # or of another day: then only its command or its legend can make it the `-mp` of the first.
    if one.names != later.names or _agrees_not(one.numa, later.numa) or _agrees_not(one.cpus, later.cpus):
        return False
    return not later.is_after_words or True in {one.is_pcie_only, later.is_pcie_only}


def _completed(one: SmiMatrix, other: SmiMatrix) -> SmiMatrix:
    return replace(
        one,
        numa=tuple(b if a is None else a for a, b in zip(one.numa, other.numa, strict=True)),
        cpus=tuple(b if a is None else a for a, b in zip(one.cpus, other.cpus, strict=True)),
        nic_names=tuple({**dict(other.nic_names), **dict(one.nic_names)}.items()),
        notes=(*one.notes, *(note for note in other.notes if note not in one.notes)),
    )


def _tells_places(one: SmiMatrix, other: SmiMatrix) -> bool:
    """Whether `other`, of the same names, has the PCIe distance of every pair, and `one` NVLinks over some of them."""
    if other.is_pcie_only is False:
        return False
    if any(cell not in LEVELS and cell != "X" for row in other.cells for cell in row):
        return False
    pairs = [
        (a, b) for row, others in zip(one.cells, other.cells, strict=True) for a, b in zip(row, others, strict=True)
    ]
    has_nvlink = any(a.startswith("NV") for a, _ in pairs)
    return has_nvlink and all(a == b for a, b in pairs if a in LEVELS)
