"""The grammar of `nvidia-smi topo -m` and `-mp`: text of any origin -> labelled matrices, or the lines at fault.

A matrix is a header of device names (then columns of affinities), and a row for each of them: its name, a label for
each column, its affinities. Every label is a word, so words are counted, and white space matters only where an
affinity is left blank. Around it anything may stand: prompts, prose, quotes, fences, colours, other matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topology.probe.smi_affinity import read_affinity
from topology.probe.smi_lines import (
    GPU,
    HEADER_WORD,
    LABEL,
    LEGEND,
    MAX_CHARS,
    MAX_COLUMNS,
    MAX_LINES,
    MAX_PROBLEMS,
    P2P,
    cells_of,
    check_is_text,
    clean,
    failure,
    header_parts,
    row_words,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiMatrix:
    """One matrix: a label for each ordered pair of names, `X` on the diagonal, `SYS` also for the old `SOC`.

    `line` is that of the header, counted from 1; `lines` are those of the rows; `nic_names` is the NIC legend.
    """

    line: int
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    numa: tuple[int | None, ...]
    nic_names: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """Positions of the GPUs among the names."""
        return tuple(at for at, name in enumerate(self.names) if GPU.fullmatch(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    line: int
    cells: tuple[str, ...]
    numa: int | None
    notes: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Block:
    # A header and the rows found below it, while it is read.
    line: int
    num_lines: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: dict[str, _Row] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def recognises(text: str) -> bool:
    """Whether the text holds something like a row of such a matrix, be it damaged or of another vendor."""
    return any(_is_gpu_row(line) for line in clean(text[:MAX_CHARS])[:MAX_LINES])


def read_matrices(text: str) -> tuple[SmiMatrix, ...]:
    """Read every matrix of the text, in order; those of `topo -p2p` are passed over.

    Raises:
        TopologyError: if there is none, or one is cut, damaged or not NVIDIA's; each problem names its line.

    """
    check_is_text(text)
    lines = clean(text)
    blocks, orphans = _blocks(lines)
    found = [block for block in blocks if (block.rows or block.problems) and not _is_p2p(block)]
    problems = [problem for block in found for problem in (*block.problems, *_faults(block))] + orphans
    if problems:
        raise failure(problems)
    if not found:
        raise failure([_nothing(blocks)])
    return tuple(_matrix(block) for block in found)


def _blocks(lines: Sequence[str]) -> tuple[list[_Block], list[str]]:
    blocks: list[_Block] = []
    orphans: list[str] = []
    at = 0
    while at < len(lines):
        block = _header(lines, at)
        if block is not None:
            blocks.append(block)
            at = _read_rows(lines, at + block.num_lines, block)
            continue
        if _is_gpu_row(lines[at]) and len(orphans) < MAX_PROBLEMS:
            orphans.append(f"line {at + 1}: a row of a matrix without the header above it")
        elif blocks:
            blocks[-1].legend.update(LEGEND.findall(lines[at]))
        at += 1
    return blocks, orphans


def _header(lines: Sequence[str], at: int) -> _Block | None:
    names, columns = header_parts(lines[at])
    if not names:
        return None
    more = _continuation(lines, at, names)
    if more:
        names, columns = header_parts(" ".join(lines[at : at + 1 + more]))
    block = _Block(line=at + 1, num_lines=1 + more, names=names, columns=columns)
    if len(names) > MAX_COLUMNS:
        block.problems.append(f"line {at + 1}: {len(names)} columns, more than {MAX_COLUMNS}")
        block.names = ()
    return block


def _continuation(lines: Sequence[str], at: int, first: Sequence[str]) -> int:
    # A mail program may break a long header: lines of column names alone belong to it.
    names = set(first)
    count = 0
    for line in lines[at + 1 : at + 1 + MAX_COLUMNS]:
        words = line.split()
        if not words or words[0] in names or not all(HEADER_WORD.fullmatch(word) for word in words):
            break
        if not names.isdisjoint(header_parts(line)[0]):  # a header of its own, whose names are glued
            break
        names.update(words)
        count += 1
    return count


def _read_rows(lines: Sequence[str], at: int, block: _Block) -> int:
    """Read the rows below a header from line `at` on; return the line after them."""
    if not block.names:
        return at
    start, wanted = at, set(block.names)
    if len(wanted) < len(block.names):
        block.problems.append(f"line {block.line}: a column name more than once")
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        words = row_words(lines[at], wanted)
        if words is None or (len(block.rows) == len(wanted) and words[0].group() in wanted):
            break
        text, used = _joined(lines, at, words[0].start(), wanted)
        row = _row(text, at + 1, block.columns)
        if row.name not in wanted:
            block.problems.append(f"line {row.line}: row {row.name} has no column")
        elif row.name in block.rows:
            block.problems.append(f"line {row.line}: row {row.name} for the second time")
        else:
            block.rows[row.name] = row
        at += used
    missing = [name for name in block.names if name not in block.rows]
    if block.rows and missing:
        block.problems.append(f"line {min(at, len(lines))}: the matrix ends without the rows {_listed(missing)}")
    return max(at, start)


def _is_gpu_row(line: str) -> bool:
    words = row_words(line, ()) if "GPU" in line else None
    if words is None or not GPU.fullmatch(words[0].group()):
        return False
    return "X" in cells_of(line[words[0].start() :])[0]


def _joined(lines: Sequence[str], at: int, start: int, wanted: Collection[str]) -> tuple[str, int]:
    # Likewise a row: lines that begin with a label, or hold affinities alone, belong to it.
    text, used, num_columns = lines[at][start:], 1, len(wanted)
    count = len(cells_of(text)[0])
    while at + used < len(lines) and used <= num_columns:
        words = lines[at + used].split()
        if not words or row_words(lines[at + used], wanted) is not None:
            break
        is_more = LABEL.fullmatch(words[0]) is not None and count < num_columns
        is_affinity = count == num_columns and all(word == "N/A" or set(word) <= set("0123456789,-") for word in words)
        if not is_more and not is_affinity:
            break
        count += sum(1 for word in words if LABEL.fullmatch(word))
        text = f"{text} {lines[at + used]}"
        used += 1
    return text, used


def _row(text: str, line: int, columns: tuple[str, ...]) -> _Row:
    cells, tail = cells_of(text)
    name = text.split(maxsplit=1)[0]
    affinity = read_affinity(tail, columns)
    return _Row(
        name=name,
        line=line,
        cells=tuple("SYS" if cell == "SOC" else cell for cell in cells),
        numa=affinity.numa,
        notes=affinity.notes,
        faults=tuple(f"line {line}: row {name}: {fault}" for fault in affinity.faults),
    )


def _faults(block: _Block) -> list[str]:
    faults = []
    for name, row in block.rows.items():
        where = f"line {row.line}: row {name}"
        strange = sorted({cell for cell in row.cells if not LABEL.fullmatch(cell)})
        if strange:
            faults.append(f"{where} has {_listed(strange)}, no label of nvidia-smi's: another vendor's tool, or damage")
        elif len(row.cells) != len(block.names):
            faults.append(f"{where} has {len(row.cells)} labels for {len(block.names)} columns")
        else:
            crossed = [name for name, cell in zip(block.names, row.cells, strict=True) if cell == "X"]
            if crossed != [name]:
                faults.append(f"{where} has X under {_listed(crossed) or 'no column'} instead of under {name}")
        faults += row.faults
    return faults


def _is_p2p(block: _Block) -> bool:
    cells = {cell for row in block.rows.values() for cell in row.cells} - {"X"}
    return bool(cells) and cells <= P2P


def _nothing(blocks: Sequence[_Block]) -> str:
    if any(_is_p2p(block) for block in blocks):
        line = next(block.line for block in blocks if _is_p2p(block))
        return f"line {line}: a matrix of `nvidia-smi topo -p2p`, which tells permissions and no distances"
    if blocks:
        return f"no matrix: line {blocks[0].line} may be a header, but no row stands below it"
    return "no matrix in the whole text, from line 1 on: no header with a column GPU0"


def _matrix(block: _Block) -> SmiMatrix:
    rows = [block.rows[name] for name in block.names]
    return SmiMatrix(
        line=block.line,
        names=block.names,
        cells=tuple(row.cells for row in rows),
        lines=tuple(row.line for row in rows),
        numa=tuple(row.numa for row in rows),
        nic_names=tuple((name, block.legend[name]) for name in block.names if name in block.legend),
        notes=_notes(rows),
    )


def _notes(rows: Sequence[_Row]) -> tuple[str, ...]:
    about: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            about.setdefault(note, []).append(row.name)
    return tuple(f"{_listed(names)}: {note}" for note, names in about.items())


def _listed(names: Sequence[str]) -> str:
    shown = 8
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
