"""The grammar of `nvidia-smi topo -m` and `-mp`: text of any origin -> labelled matrices, or the lines at fault.

A matrix is a header of device names (then columns of affinities), and a row for each of them: its name, a label for
each column, its affinities. Every label is a word, so words are counted, and white space matters only where an
affinity is left blank. Around it anything may stand: prompts, prose, quotes, fences, colours, other matrices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from topology.probe.smi_blocks import blocks_of, is_gpu_row
from topology.probe.smi_clean import MAX_CHARS, check_is_text, failure
from topology.probe.smi_failures import failure_at
from topology.probe.smi_lines import GPU, LABEL, MAX_NVLINKS, P2P, is_device, listed
from topology.probe.smi_page import first_page, page_of, repaired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.smi_blocks import Block, Row
    from topology.probe.smi_page import Page

NOT_UNDERSTOOD: Final = "is not understood"
_REPAIRED: Final = "its lines were put together again by the count of labels"
# What the matrices of other vendors' tools, or the tools themselves, are headed with.
_VENDORS: Final = (
    (
        re.compile(r"ROCm System Management|rocm-smi|amd-smi|Link Type between|(?:LINK TYPE|HOPS) TABLE|\bXGMI\b"),
        "AMD's",
    ),
    (re.compile(r"\bmx-smi|MetaX|MarsLink"), "MetaX's"),
    (re.compile(r"\bhy-smi|\bHygon"), "Hygon's"),
    (re.compile(r"\bnpu-smi|\bHCCS\b"), "Huawei's"),
    (re.compile(r"\bmthreads-gmi|MTLink"), "Moore Threads'"),
    (re.compile(r"\bcnmon\b|MLU-?Link"), "Cambricon's"),
    (re.compile(r"\bxpu-smi|XeLink", re.IGNORECASE), "Intel's"),
)
_FOREIGN_TOPOLOGY: Final = re.compile(
    r"Link Type between|(?:LINK TYPE|HOPS|WEIGHT) TABLE|rocm-smi\s{1,9}--showtopo|(?:amd|mx|hy|npu|xpu)-smi\s{1,9}topo",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiMatrix:
    """One matrix: a label for each ordered pair of names, `X` on the diagonal, `SYS` also for the old `SOC`.

    `line` is that of the header, counted from 1; `lines` are those of the rows; `nic_names` is the NIC legend;
    `cpus` and `numa` are the affinities of the rows. `is_pcie_only` tells `-mp` from `-m`, None where nothing does.
    `is_after_words` tells that prose stands between the first matrix of the text and this one.
    """

    line: int
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    numa: tuple[int | None, ...]
    cpus: tuple[str | None, ...] = ()
    nic_names: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    is_pcie_only: bool | None = None
    is_after_words: bool = False

    @property
    def gpus(self) -> tuple[int, ...]:
        """Positions of the GPUs among the names."""
        return tuple(at for at, name in enumerate(self.names) if GPU.fullmatch(name))


def recognises(text: str) -> bool:
    """Whether the text holds something like a row of such a matrix, be it damaged or of another vendor."""
    text = text[:MAX_CHARS]
    if _FOREIGN_TOPOLOGY.search(text):
        return True
    lines = [line for line in first_page(text).lines if line]
    return any(is_gpu_row(line) for line in lines) or any(
        GPU.fullmatch(name) and LABEL.fullmatch(cells.split(maxsplit=1)[0])
        for name, cells in pairwise(lines)
        if "GPU" in name
    )


def read_matrices(text: str, numbers: Sequence[int] | None = None) -> tuple[SmiMatrix, ...]:
    """Read every matrix of the text, in order; those of `topo -p2p` are passed over.

    `numbers` are the lines' numbers in a larger text that they were taken from.

    Raises:
        TopologyError: if there is none, or one is cut, damaged or not NVIDIA's; each problem names its line.

    """
    check_is_text(text)
    matrices, problems, num_rows = _read(page_of(text, numbers))
    if not problems:
        return matrices
    for page in repaired(text, numbers) if num_rows else ():
        # Damage that only looks like a break would lose a row, or leave a rest behind the labels.
        again, faults, num_rows_again = _read(page)
        is_rest = any(NOT_UNDERSTOOD in note for matrix in again for note in matrix.notes)
        if not faults and not is_rest and num_rows_again >= num_rows:
            return tuple(replace(matrix, notes=(*matrix.notes, _REPAIRED)) for matrix in again)
    cause = failure_at(text) if not num_rows else None
    if cause is not None:
        line = cause[0] if numbers is None else numbers[min(cause[0], len(numbers)) - 1]
        raise failure([f"line {line}: {cause[1]}"])
    raise failure([*problems, *_foreign(text)])


def _read(page: Page) -> tuple[tuple[SmiMatrix, ...], list[str], int]:
    """Return the matrices, or what is wrong with them, and how many rows were seen."""
    blocks, orphans = blocks_of(page)
    found = [block for block in blocks if (block.rows or block.problems) and not _is_p2p(block)]
    problems = [problem for block in found for problem in (*block.problems, *_faults(block))] + orphans
    num_rows = sum(len(block.rows) for block in blocks) + len(orphans)
    if not found and not problems:
        problems = [_nothing(blocks)]
    return (() if problems else tuple(_matrix(block) for block in found)), problems, num_rows


def _foreign(text: str) -> list[str]:
    for pattern, vendor in _VENDORS:
        match = pattern.search(text)
        if match is not None:
            line = text.count("\n", 0, match.start()) + 1
            return [f"line {line}: {match[0]!r}: the output of {vendor} tool, which is not read"]
    return []


def _faults(block: Block) -> list[str]:
    faults = []
    others = [name for name in block.names if not is_device(name)]
    if others:
        text = "neither GPU nor NIC: not what nvidia-smi prints, but drawn by hand or damaged"
        faults.append(f"line {block.line}: column {listed(others)}, {text}")
    for name, row in block.rows.items():
        where = f"line {row.line}: row {name}"
        strange = sorted({cell for cell in row.cells if not LABEL.fullmatch(cell)})
        too_many = sorted({cell for cell in row.cells if cell[2:].isdecimal() and int(cell[2:]) > MAX_NVLINKS})
        if strange:
            faults.append(f"{where} has {listed(strange)}, no label of nvidia-smi's: another vendor's tool, or damage")
        elif too_many:
            faults.append(f"{where} has {listed(too_many)}, but no GPU has more than {MAX_NVLINKS} NVLinks")
        elif len(row.cells) != len(block.names):
            faults.append(f"{where} has {len(row.cells)} labels for {len(block.names)} columns")
        else:
            crossed = [name for name, cell in zip(block.names, row.cells, strict=True) if cell == "X"]
            if crossed != [name]:
                faults.append(f"{where} has X under {listed(crossed) or 'no column'} instead of under {name}")
        faults += row.faults
    return faults


def _is_p2p(block: Block) -> bool:
    cells = {cell for row in block.rows.values() for cell in row.cells} - {"X"}
    return bool(cells) and cells <= P2P


def _nothing(blocks: Sequence[Block]) -> str:
    if any(_is_p2p(block) for block in blocks):
        line = next(block.line for block in blocks if _is_p2p(block))
        return f"line {line}: a matrix of `nvidia-smi topo -p2p`, which tells permissions and no distances"
    if blocks:
        return f"no matrix: line {blocks[0].line} may be a header, but no row stands below it"
    return "no matrix in the whole text, from line 1 on: no header with a column GPU0"


def _matrix(block: Block) -> SmiMatrix:
    rows = [block.rows[name] for name in block.names]
    return SmiMatrix(
        line=block.line,
        names=block.names,
        cells=tuple(row.cells for row in rows),
        lines=tuple(row.line for row in rows),
        numa=tuple(row.numa for row in rows),
        cpus=tuple(row.cpus for row in rows),
        nic_names=tuple((name, block.legend[name]) for name in block.names if name in block.legend),
        notes=_notes(rows),
        is_pcie_only=_is_pcie_only(block),
        is_after_words=block.is_after_words,
    )


def _is_pcie_only(block: Block) -> bool | None:
    if any(cell.startswith("NV") for row in block.rows.values() for cell in row.cells):
        return False
    if block.command is not None:
        return block.command == "-mp"
    # The legend of `-mp` does not explain NV#.
    return True if "PIX" in block.explained and "NV#" not in block.explained else None


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    about: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            about.setdefault(note, []).append(row.name)
    gpus = [row for row in rows if GPU.fullmatch(row.name)]
    without = [row.name for row in gpus if row.numa is None and not row.notes]
    if without and any(row.numa is not None for row in gpus):
        about["no NUMA node, although other rows have one; the text may be cut"] = without
    return tuple(f"{listed(names)}: {note}" for note, names in about.items())
