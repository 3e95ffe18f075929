"""Headers and the rows below them, found among lines of anything, also where mail has broken them into several."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from topology.probe.smi_affinity import is_affinity_word, read_affinity
from topology.probe.smi_clean import MAX_PROBLEMS
from topology.probe.smi_lines import (
    GPU,
    HEADER_WORD,
    LABEL,
    LEGEND,
    MAX_COLUMNS,
    TITLE_WORDS,
    cells_of,
    header_parts,
    is_prose,
    listed,
    row_words,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from topology.probe.smi_page import Page

# `-mp`, or `--matrix_pci`: the PCIe distances of all pairs, also of those that NVLink joins.
_COMMAND: Final = re.compile(r"topo\s{1,8}(-mp|--?matrix[_-]pci|-m|--?matrix)\b")
_MAX_BLANKS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a matrix: its labels, its affinities, and what is odd or wrong with these."""

    name: str
    line: int
    cells: tuple[str, ...]
    numa: int | None
    cpus: str | None
    notes: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Block:
    """A header and the rows found below it, while it is read. `command` is `-m` or `-mp` where one stands above."""

    line: int
    num_lines: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    command: str | None = None
    is_after_words: bool = False
    rows: dict[str, Row] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    explained: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def blocks_of(page: Page) -> tuple[list[Block], list[str]]:
    """Find every header with its rows and legend; the second value names rows without a header."""
    blocks: list[Block] = []
    orphans: list[str] = []
    command, is_after_words = None, False
    at = 0
    while at < len(page.lines):
        line = page.lines[at]
        block = _header(page, at)
        if block is not None:
            block.command, block.is_after_words = command, is_after_words
            blocks.append(block)
            at = _read_rows(page, at + block.num_lines, block)
            if block.rows:
                command = None
            else:
                is_after_words = is_after_words or _is_after_words(line, blocks)
            continue
        asked = _COMMAND.search(line)
        command = command if asked is None else "-mp" if "p" in asked[1] else "-m"
        is_after_words = is_after_words or _is_after_words(line, blocks)
        if is_gpu_row(line) and len(orphans) < MAX_PROBLEMS:
            orphans.append(f"line {page.number(at)}: a row of a matrix without the header above it")
        elif blocks:
            _read_legend(line, blocks[-1])
        at += 1
    return blocks, orphans


def _is_after_words(line: str, blocks: Sequence[Block]) -> bool:
    return is_prose(line) and any(block.rows for block in blocks)


def is_gpu_row(line: str) -> bool:
    """Whether the line looks like a GPU's row, with an `X` for itself among its labels."""
    words = row_words(line, ()) if "GPU" in line else None
    if words is None or not GPU.fullmatch(words[0].group()):
        return False
    return "X" in cells_of(line[words[0].start() :])[0]


def _read_legend(line: str, block: Block) -> None:
    if "NIC" in line:
        block.legend.update((one or other, name or plain) for one, name, other, plain in LEGEND.findall(line))
    if "=" in line:
        block.explained.add(line.split("=", maxsplit=1)[0].strip()[:8])


def _header(page: Page, at: int) -> Block | None:
    names, columns = header_parts(page.lines[at])
    if not names:
        return None
    more = _continuation(page.lines, at, names)
    if more:
        names, columns = header_parts(" ".join(page.lines[at : at + 1 + more]))
    block = Block(line=page.number(at), num_lines=1 + more, names=names, columns=columns)
    if len(names) > MAX_COLUMNS:
        block.problems.append(f"line {block.line}: {len(names)} columns, more than {MAX_COLUMNS}")
        block.names = ()
    return block


def _continuation(lines: Sequence[str], at: int, first: Sequence[str]) -> int:
    # A mail program may break a long header: lines of column names alone belong to it.
    names = set(first)
    count = 0
    for number in range(at + 1, min(at + 2 + MAX_COLUMNS, len(lines))):
        words = lines[number].split(maxsplit=MAX_COLUMNS)
        if not words or words[0] in names or not all(HEADER_WORD.fullmatch(word) for word in words):
            break
        if not names.isdisjoint(header_parts(lines[number])[0]):  # a header of its own, whose names are glued
            break
        names.update(word for word in words if word not in TITLE_WORDS)
        count += 1
    return count


def _read_rows(page: Page, at: int, block: Block) -> int:
    """Read the rows below a header from line `at` on; return the line after them."""
    if not block.names:
        return at
    lines, wanted = page.lines, set(block.names)
    if len(wanted) < len(block.names):
        block.problems.append(f"line {block.line}: a column name more than once")
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        start = _row_start(lines, at, wanted)
        if start is None or (len(block.rows) == len(wanted) and _name_at(lines[at], start) in wanted):
            break
        text, used = _joined(lines, at, start, block)
        row = _row(text, page.number(at), block.columns)
        if row.name not in wanted:
            block.problems.append(f"line {row.line}: row {row.name} has no column")
        elif row.name in block.rows:
            block.problems.append(f"line {row.line}: row {row.name} for the second time")
        else:
            block.rows[row.name] = row
        at += used
    missing = [name for name in block.names if name not in block.rows]
    if block.rows and missing:
        end = page.number(max(at - 1, 0))
        block.problems.append(f"line {end}: the matrix ends without the rows {listed(missing)}")
    return at


def _name_at(line: str, start: int) -> str:
    return line[start:].split(maxsplit=1)[0]


def _row_start(lines: Sequence[str], at: int, wanted: Collection[str]) -> int | None:
    """Where in the line a row begins; mail may have broken it after its name."""
    words = row_words(lines[at], wanted)
    if words is not None:
        return words[0].start()
    if lines[at] not in wanted:
        return None
    following = next((line for line in lines[at + 1 : at + 2 + _MAX_BLANKS] if line), "")
    return 0 if following and LABEL.fullmatch(following.split(maxsplit=1)[0]) else None


def _joined(lines: Sequence[str], at: int, start: int, block: Block) -> tuple[str, int]:
    """Return the text of a row and over how many lines it goes: labels and affinities alone belong to it."""
    wanted, num_columns = set(block.names), len(block.names)
    parts, used = [lines[at][start:]], 1
    cells, tail = cells_of(parts[0])
    count, is_gpu = len(cells), GPU.fullmatch(_name_at(parts[0], 0)) is not None
    num_values = len(tail.split())
    while at + used < len(lines) and used <= 3 * (num_columns + _MAX_BLANKS):
        words = lines[at + used].split()
        if not words:
            blanks = _blanks(lines, at + used)
            if count >= num_columns or blanks > _MAX_BLANKS:
                break
            used += blanks
            continue
        if num_values and count < num_columns:  # values before all labels are there: a row that is cut
            break
        if _row_start(lines, at + used, wanted) is not None:
            break
        labels = next((at for at, word in enumerate(words) if not LABEL.fullmatch(word)), len(words))
        values = words[labels:]
        is_rest = count + labels == num_columns and is_gpu and all(is_affinity_word(word) for word in values)
        is_split = parts[-1].endswith(",")
        if values and (not is_rest or (num_values + len(values) > len(block.columns) and not is_split)):
            break
        if labels and (count + labels > num_columns):
            break
        parts.append(lines[at + used])
        count += labels
        num_values += len(values)
        used += 1
    return " ".join(parts), used


def _blanks(lines: Sequence[str], at: int) -> int:
    count = 0
    while at + count < len(lines) and not lines[at + count] and count <= _MAX_BLANKS:
        count += 1
    return count


def _row(text: str, line: int, columns: tuple[str, ...]) -> Row:
    cells, tail = cells_of(text)
    name = _name_at(text, 0)
    affinity = read_affinity(tail, columns)
    return Row(
        name=name,
        line=line,
        cells=tuple("SYS" if cell == "SOC" else cell for cell in cells),
        numa=affinity.numa,
        cpus=affinity.cpus,
        notes=affinity.notes,
        faults=tuple(f"line {line}: row {name}: {fault}" for fault in affinity.faults),
    )
