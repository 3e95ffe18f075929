"""A few numbers of each row: all that planning and the search for duplicates need once its text was read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.dataset.messages import Sample

_MOST_TURNS = 65_535  # what two bytes hold; no template adds as many
_KEY_BYTES = 8  # two of ten million texts get one key by chance with a probability of 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNumbers:
    """Columns over the rows, 30 bytes a row.

    Attributes:
        chars: characters of text.
        answer_chars: of them, what assistants say.
        turns: messages.
        keys: hash of the text, white space normalised.
        lines: line or row number in its file.
        files: index of the file.
    """

    chars: array[int] = field(default_factory=lambda: array("Q"))
    answer_chars: array[int] = field(default_factory=lambda: array("I"))
    turns: array[int] = field(default_factory=lambda: array("H"))
    keys: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("I"))
    files: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        """Rows."""
        return len(self.chars)

    def add(self, sample: Sample, file: int) -> None:
        """Note one more row."""
        self.chars.append(sample.num_chars)
        self.answer_chars.append(answer_chars(sample))
        self.turns.append(min(_MOST_TURNS, len(sample.messages)))
        self.keys.append(text_key(sample))
        self.lines.append(sample.line)
        self.files.append(file)

    def picked(self, index: Sequence[int]) -> RowNumbers:
        """The rows of these numbers, in their order."""
        names = ("chars", "answer_chars", "turns", "keys", "lines", "files")
        columns = {name: getattr(self, name) for name in names}
        return RowNumbers(**{name: array(of.typecode, (of[i] for i in index)) for name, of in columns.items()})


def numbers_of(samples: Iterable[Sample]) -> RowNumbers:
    """Those of samples at hand."""
    numbers = RowNumbers()
    for sample in samples:
        numbers.add(sample, 0)
    return numbers


def answer_chars(sample: Sample) -> int:
    """Characters that carry loss when only answers do."""
    said = sample.messages[sample.num_prompt_messages :]
    return sum(len(text) for message in said if message.role == "assistant" for text in message.texts)


def text_key(sample: Sample) -> int:
    """Hash of roles, texts, calls and tools; rows that differ in white space alone have the same."""
    digest = blake2b(digest_size=_KEY_BYTES)
    for message in sample.messages:
        text = " ".join(message.content.split())
        digest.update(f"{message.role}\1{text}\2".encode("utf-8", "surrogatepass"))
        if message.extra:
            digest.update(repr(sorted(message.extra.items())).encode("utf-8", "surrogatepass"))
    if sample.tools:
        digest.update(repr(sample.tools).encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "big")
