"""The words of nvidia-smi's matrices, and what a single clean line can be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.probe.smi_affinity import affinity_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MAX_COLUMNS: Final = 256
# Words that some write over a column of their own making; the kernel gives no network device such a name.
_NO_DEVICE: Final = re.compile(
    r"[A-Z]{1,32}\d{0,4}|(?i:cpu|numa|node|host|socket|memory|mem|dram|switch|nvswitch|affinity)\d{0,4}",
)
MAX_NVLINKS: Final = 36  # of one GPU; the most that any has, by the tables of link rates

_WORD: Final = re.compile(r"\S+")
_NAME: Final = re.compile(r"[A-Za-z][\w.:-]{0,63}")
GPU: Final = re.compile(r"GPU\d{1,4}")
_KNOWN_NAME: Final = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|mlx\d_\d{1,4}")
_GLUED_NAMES: Final = re.compile(rf"(?:{_KNOWN_NAME.pattern})+")
# Names of network interfaces are small letters with a number somewhere: mlx5_0, bnxt_re0, efa_0, ens1f0np0.
HEADER_WORD: Final = re.compile(
    _GLUED_NAMES.pattern + r"|(?=[a-z_.-]{1,32}\d)[a-z][\w.:-]{1,63}|CPU|NUMA|Node|Affinity|GPU|ID",
)
TITLE_WORDS: Final = frozenset({"CPU", "NUMA", "Node", "Affinity", "GPU", "ID"})
LABEL: Final = re.compile(r"X|NV[1-9]\d{0,2}|NVB|C2C|PIX|PXB|PHB|NODE|SYS|SOC")
# Labels whose tab is lost: no label begins another but NV1 NV18, where digits follow, so they part in one way only.
_GLUED_LABELS: Final = re.compile(rf"(?:{LABEL.pattern}){{2,256}}")
_CELL: Final = re.compile(rf"(?!(?:GPU|NIC|CPU|NUMA)\d*$)[A-Z][A-Z0-9]{{0,3}}\d{{0,3}}|{_GLUED_LABELS.pattern}")
P2P: Final = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "NA", "U"})  # `topo -p2p`, often in the same log
LEGEND: Final = re.compile(
    r"\b(NIC\d{1,4})\s{0,8}[:=]\s{0,8}([A-Za-z?][\w.?-]{0,63})|^(NIC\d{1,4})\s{1,8}([a-z][\w.-]{1,63})$",
)
_LISTED: Final = re.compile(r"\bGPU \d{1,4}: |\bMIG \S{1,24}\s{1,16}Device\b")
_MAX_PREFIX: Final = 8  # words of a log's prefix before a row or a header


def header_parts(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of devices and the columns of affinities of a header; no names if the line is none."""
    if "GPU" not in line:
        return (), ()
    front, columns = affinity_columns(line)
    words: list[str] = []
    for word in front.replace(",", " ").split():
        words += _KNOWN_NAME.findall(word) if _GLUED_NAMES.fullmatch(word) else [word]
    first = next((at for at, word in enumerate(words[: _MAX_PREFIX + 1]) if GPU.fullmatch(word)), len(words))
    names = tuple(words[first:])
    if not all(_NAME.fullmatch(name) and not LABEL.fullmatch(name) for name in names):
        return (), ()
    return names, columns


def row_words(line: str, names: Collection[str]) -> list[re.Match[str]] | None:
    """Find the first words of a row, from its name on: a name and a label beside it, perhaps after a log's prefix."""
    words = [match for match, _ in zip(_WORD.finditer(line), range(_MAX_PREFIX + 2), strict=False)]
    for at in range(len(words) - 1):
        name, cell = words[at].group(), words[at + 1].group()
        if not _CELL.fullmatch(cell) or LABEL.fullmatch(name):
            continue
        if name in names or _KNOWN_NAME.fullmatch(name):
            return words[at:]
        if at == 0 and names and _NAME.fullmatch(name) and all(LABEL.fullmatch(word) for word in line.split()[1:]):
            return words
    return None


def cells_of(row: str) -> tuple[tuple[str, ...], str]:
    """Return the labels after the name of a row, and the text that follows them."""
    cells: list[str] = []
    end = 0
    for match in _WORD.finditer(row):
        if end and not _CELL.fullmatch(match.group()):
            break
        word = match.group()
        cells += LABEL.findall(word) if end and _GLUED_LABELS.fullmatch(word) else [word]
        end = match.end()
    return tuple(cells[1:]), row[end:]


def is_device(name: str) -> bool:
    """Whether the name of a column can be that of a GPU or of a network device."""
    return _KNOWN_NAME.fullmatch(name) is not None or _NO_DEVICE.fullmatch(name) is None


def is_prose(line: str) -> bool:
    """Whether the line is of a text around matrices: no part of a legend, no command, no list of GPUs."""
    words = [word for word in line.split() if any(char.isalpha() for char in word)]
    if "nvidia-smi" in line:
        return len(words) > _MAX_PREFIX
    if "=" in line or "Legend:" in line or LEGEND.search(line) or _LISTED.search(line):
        return False
    return len(words) > 1 or line.endswith(":") or any(char.isalpha() and not char.isascii() for char in line)


def listed(names: Sequence[str]) -> str:
    """Write names one after the other, of many the first ones."""
    shown = 8
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
