"""The words of nvidia-smi's matrices: text cleaned of what it was pasted into, and what a single line can be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.probe.smi_affinity import affinity_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ASKED: Final = "a topology from nvidia-smi text"
REMEDY: Final = "give the whole output of `nvidia-smi topo -m`, unedited"
MAX_CHARS: Final = 1 << 20  # a full matrix of 256 columns has half of it
MAX_COLUMNS: Final = 256
MAX_LINES: Final = 20_000
MAX_PROBLEMS: Final = 20

# Colours also as logs and web pages leave them: `^[[4m`, or `[4m` with the escape character lost.
_ESCAPE: Final = re.compile(r"(?:\x1b|\u241b|\^\[)\[[0-9;?]{0,32}[A-Za-z]|\[[0-9;]{0,8}m|\x1b[()][0-9A-Z]")
_NEW_LINE: Final = re.compile(r"\r\n|\n|\r")
_DECORATION: Final = " \t>#*;/!`\ufeff"
_WORD: Final = re.compile(r"\S+")
_NAME: Final = re.compile(r"[A-Za-z][\w.:-]{0,63}")
GPU: Final = re.compile(r"GPU\d{1,4}")
_KNOWN_NAME: Final = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|mlx\d_\d{1,4}")
_GLUED_NAMES: Final = re.compile(rf"(?:{_KNOWN_NAME.pattern})+")
HEADER_WORD: Final = re.compile(_GLUED_NAMES.pattern + r"|[a-z]{2,12}\d\w{0,50}|CPU|NUMA|Node|Affinity|GPU|ID")
_CELL: Final = re.compile(r"(?!(?:GPU|NIC|CPU|NUMA)\d*$)[A-Z][A-Z0-9]{0,3}\d{0,3}")
LABEL: Final = re.compile(r"X|NV[1-9]\d{0,2}|NVB|C2C|PIX|PXB|PHB|NODE|SYS|SOC")
P2P: Final = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "NA", "U"})  # `topo -p2p`, often in the same log
LEGEND: Final = re.compile(r"\b(NIC\d{1,4})\s{0,8}[:=]\s{0,8}([A-Za-z][\w.-]{0,63})")
_MAX_PREFIX: Final = 8  # words of a log's prefix before a row or a header


def failure(problems: Sequence[str]) -> TopologyError:
    """Make the error of this parser; a long list of problems is cut."""
    shown = tuple(problems[:MAX_PROBLEMS])
    more = len(problems) - len(shown)
    return TopologyError(asked=ASKED, problems=(*shown, *([f"{more} more"] if more else [])), remedy=REMEDY)


def check_is_text(text: str) -> None:
    """Refuse what is too long to be such an output, before reading it, and what is no text."""
    if len(text) > MAX_CHARS:
        raise failure([f"{len(text)} characters, more than {MAX_CHARS}: line 1 begins {text[:40]!r}"])
    lines = text.count("\n") + text.count("\r") - text.count("\r\n") + 1
    if lines > MAX_LINES:
        raise failure([f"{lines} lines, more than {MAX_LINES}"])
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise failure([f"line {line}: a NUL character: binary data, or UTF-16 read as something else"])


def clean(text: str) -> list[str]:
    """Split into lines without colours, quotes, comment signs and fences; one without a letter or digit is blank."""
    # `|` parts the columns of a Markdown table.
    plain = _ESCAPE.sub("", text).replace("|", " ")
    lines = (line.lstrip(_DECORATION).rstrip(" `") for line in _NEW_LINE.split(plain))
    return [line if any(char.isalnum() for char in line) else "" for line in lines]


def header_parts(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of devices and the columns of affinities of a header; no names if the line is none."""
    if "GPU" not in line:
        return (), ()
    front, columns = affinity_columns(line)
    words: list[str] = []
    for word in front.split():
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
        cells.append(match.group())
        end = match.end()
    return tuple(cells[1:]), row[end:]
