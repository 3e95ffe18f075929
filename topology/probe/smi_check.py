"""What a matrix of nvidia-smi must satisfy to be true of any machine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.probe.smi_text import SmiMatrix

# From near to far: how high in the PCIe tree the paths of two devices meet.
LEVELS: Final[Mapping[str, int]] = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The label of each unordered pair (positions, the lower first), what is wrong, and what was settled."""

    labels: Mapping[tuple[int, int], str]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check(matrix: SmiMatrix) -> Checked:
    """Both directions must agree, and the PCIe labels must form a tree."""
    labels, problems, warnings = _symmetric(matrix)
    if not problems:
        problems = _not_a_tree(matrix, labels)
    return Checked(
        labels=labels,
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def _symmetric(matrix: SmiMatrix) -> tuple[dict[tuple[int, int], str], list[str], list[str]]:
    labels, problems, warnings = {}, [], []
    for a, b in combinations(range(len(matrix.names)), 2):
        one, other = matrix.cells[a][b], matrix.cells[b][a]
        labels[a, b] = one
        if one == other:
            continue
        pair = f"{matrix.names[a]} - {matrix.names[b]}"
        if _num_links(one) and _num_links(other):
            # As with counts read from the driver: a link down at one end carries nothing.
            labels[a, b] = min(one, other, key=_num_links)
            warnings.append(f"{pair}: {one} one way and {other} the other; the smaller count holds")
        else:
            lines = f"lines {matrix.lines[a]} and {matrix.lines[b]}"
            problems.append(f"{lines}: {pair} is {one} one way and {other} the other")
    return labels, problems, warnings


def _num_links(label: str) -> int:
    return int(label[2:]) if label.startswith("NV") and label[2:].isdecimal() else 0


def _not_a_tree(matrix: SmiMatrix, labels: Mapping[tuple[int, int], str]) -> list[str]:
    # Ultrametric: no pair is farther apart than the widest step of any way round. Pairs behind NVLink are unknown.
    near: list[list[tuple[int, int]]] = [[] for _ in matrix.names]
    for (a, b), label in labels.items():
        if label in LEVELS:
            near[a].append((b, LEVELS[label]))
            near[b].append((a, LEVELS[label]))
    for level, word in enumerate(list(LEVELS)[:-1]):
        group = _groups(near, level)
        for (a, b), label in labels.items():
            if LEVELS.get(label, -1) > level and group[a] == group[b]:
                way = " - ".join(matrix.names[at] for at in _way(near, level, a, b))
                pair = f"{matrix.names[a]} - {matrix.names[b]}"
                found = f"{pair} is {label}, but {way} are joined by {word} or nearer: no PCIe tree has both"
                return [f"line {matrix.lines[a]}: {found}"]
    return []


def _groups(near: Sequence[Sequence[tuple[int, int]]], level: int) -> list[int]:
    group = [-1] * len(near)
    for start in range(len(near)):
        if group[start] >= 0:
            continue
        group[start], open_ = start, [start]
        while open_:
            for other, step in near[open_.pop()]:
                if step <= level and group[other] < 0:
                    group[other] = start
                    open_.append(other)
    return group


def _way(near: Sequence[Sequence[tuple[int, int]]], level: int, start: int, end: int) -> list[int]:
    came_from = {start: start}
    open_ = deque([start])
    while end not in came_from:
        here = open_.popleft()
        for other, step in near[here]:
            if step <= level and other not in came_from:
                came_from[other] = here
                open_.append(other)
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]
