"""The lines of a text as a page to read, and that page again with the line breaks put back where a row begins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from topology.probe.smi_affinity import is_value
from topology.probe.smi_clean import BREAK, MAX_CHARS, MAX_LINE, MAX_LINES, clean_line, failure, plain_lines
from topology.probe.smi_lines import LABEL, MAX_COLUMNS, TITLE_WORDS, header_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A name with a label beside it begins a row, wherever it stands: in a header, names stand beside names.
_ROW: Final = re.compile(
    rf"(?<!\S)(?:(?:GPU|NIC)\d{{1,4}}|[a-z][\w.:-]{{1,63}})\s{{1,64}}(?=(?:{LABEL.pattern})(?!\S))",
)
_LEGEND: Final = re.compile(r"(?<!\S)(?:NIC )?Legend:")
_MIN_WIDTH: Final = 40  # of a terminal
_MAX_REPAIRED: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Page:
    """Clean lines with the number of each in the text they come from."""

    lines: Sequence[str]
    numbers: Sequence[int]

    def number(self, at: int) -> int:
        """Number, from 1, of the line at that position; of the last line, beyond it."""
        return self.numbers[min(at, len(self.numbers) - 1)] if self.numbers else 1


def page_of(text: str, numbers: Sequence[int] | None = None) -> Page:
    """Clean the lines of a text; `numbers` are their places in a larger text they were taken from.

    Raises:
        TopologyError: if line breaks written as letters make too many lines.

    """
    lines = plain_lines(text)
    if len(lines) > MAX_LINES:
        raise failure([f"line 1: {len(lines)} lines, more than {MAX_LINES}"])
    return _page([(line, at) for at, line in enumerate(lines)], numbers)


def first_page(text: str) -> Page:
    """Clean the first lines of a text of any size, without those that are too long to be of a matrix."""
    lines = plain_lines(text[:MAX_CHARS])[:MAX_LINES]
    return _page([(line, at) for at, line in enumerate(lines) if len(line) <= MAX_LINE], None)


def repaired(text: str, numbers: Sequence[int] | None = None) -> Iterator[Page]:
    """Yield pages that the text may have been: of a terminal that broke words, of paragraphs that were filled."""
    if len(text) > _MAX_REPAIRED:
        return
    lines = plain_lines(text)
    width = max(map(len, lines))
    if width >= _MIN_WIDTH and sum(1 for line in lines if len(line) == width) > 1:
        yield _page(_unbroken(lines, width), numbers)
    yield _page(_paragraphs(lines), numbers)


def _page(lines: Sequence[tuple[str, int]], numbers: Sequence[int] | None) -> Page:
    # The bar of a table, broken off its line, is no blank line.
    kept = ((line, at) for line, at in lines if line.strip(" \t>") != "|")
    made = [(row, at) for line, at in kept for part in line.split(BREAK) for row in _rows_apart(clean_line(part))]
    last = len(numbers) - 1 if numbers is not None else 0
    return Page(
        [line for line, _ in made],
        [at + 1 if numbers is None else numbers[min(at, last)] for _, at in made],
    )


def _rows_apart(line: str) -> list[str]:
    if "GPU" not in line:
        return [line]
    starts = [match.start() for match in _ROW.finditer(line)]
    front = line[: starts[0]] if starts else ""
    is_other = bool(header_parts(front)[0]) or _is_rest(front)
    if not starts or (len(starts) == 1 and not is_other) or len(starts) > MAX_COLUMNS:
        return [line]
    starts = starts if is_other else starts[1:]
    end = _LEGEND.search(line, starts[-1])
    cuts = [0, *starts, *([end.start()] if end is not None else []), len(line)]
    return [line[start:stop].strip() for start, stop in pairwise(cuts)]


def _is_rest(front: str) -> bool:
    # The end of the row before, or of the header; a number alone is rather that of a line.
    words = front.split(maxsplit=MAX_COLUMNS)
    if words and TITLE_WORDS.issuperset(words):
        return True
    return all(LABEL.fullmatch(word) or is_value(word) for word in words) and (len(words) > 1 or words == ["N/A"])


def _unbroken(lines: Sequence[str], width: int) -> list[tuple[str, int]]:
    joined: list[tuple[str, int]] = []
    is_open = False
    for at, line in enumerate(lines):
        joined[-1:] = [(joined[-1][0] + line, joined[-1][1])] if is_open else [*joined[-1:], (line, at)]
        is_open = len(line) == width
    return joined


def _paragraphs(lines: Sequence[str]) -> list[tuple[str, int]]:
    made: list[tuple[list[str], int]] = []
    is_open = False
    for at, line in enumerate(map(clean_line, lines)):
        if line and is_open:
            made[-1][0].append(line)
        else:
            made.append(([line], at))
        is_open = bool(line)
    return [(" ".join(parts), at) for parts, at in made]
