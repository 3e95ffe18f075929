"""Bytes of a file or stream that may be anything: bounded, and refused by name where they are no text."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from topology.errors import TopologyError

MAX_BYTES: Final = 64 * 2**20  # a snapshot of a thousand hosts is about half of that
_STANDARD_INPUT: Final = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_MAGIC: Final = (
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"\x89PNG", "a picture: give the text it shows"),
    (b"\xff\xd8\xff", "a picture: give the text it shows"),
    (b"%PDF", "a PDF: give the text it shows"),
    (b"\x7fELF", "a program"),
)
# UTF-16 is what a shell on Windows writes when it redirects; longer marks first, since they begin alike.
_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def read_bounded(path: Path, asked: str) -> bytes:
    """Read a regular file, or standard input, of at most `MAX_BYTES`.

    Raises:
        TopologyError: it cannot be read, is no such file, or is larger.

    """
    try:
        mode = path.stat()
        if not stat.S_ISREG(mode.st_mode) and str(path) not in _STANDARD_INPUT:
            # A pipe may never answer, and a device never end.
            raise TopologyError(asked=asked, found="no regular file", remedy="give a file, a folder or /dev/stdin")
        if mode.st_size > MAX_BYTES:
            raise _too_large(asked, f"{mode.st_size} bytes")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        found = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TopologyError(asked=asked, found=found, remedy="give the path of a readable file") from error
    if len(content) > MAX_BYTES:
        raise _too_large(asked, f"more than {MAX_BYTES} bytes")
    return content


def _too_large(asked: str, found: str) -> TopologyError:
    return TopologyError(asked=asked, found=f"{found}; a description has at most {MAX_BYTES}", remedy="give it alone")


def _unmarked(content: bytes) -> str:
    # UTF-16 of ASCII without its mark: every other byte is NUL, and no other is.
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = content[start : 2**16 : 2]
        if zeros and not any(zeros) and all(content[1 - start : 2**16 : 2]):
            return encoding
    return "utf-8"


def text_of(content: bytes, asked: str) -> str:
    """Decode text: by its byte-order mark, else as UTF-8, else byte by byte where it holds no control characters.

    Raises:
        TopologyError: it is binary, or ends in the middle of a character.

    """
    for magic, what in _MAGIC:
        if content.startswith(magic):
            raise TopologyError(asked=asked, found=what, remedy="give a text file")
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), None) or _unmarked(content)
    if encoding == "utf-8" and b"\x00" in content:
        line = content.count(b"\n", 0, content.index(b"\x00")) + 1
        raise TopologyError(asked=asked, found=f"line {line}: a NUL byte: binary data", remedy="give a text file")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise TopologyError(asked=asked, found=str(error), remedy="save the file as UTF-8 text") from error
        # Prose around a matrix may be in any 8-bit code: what counts is ASCII in all of them.
        text = content.decode("latin-1")
    if "\x00" in text:
        raise TopologyError(asked=asked, found="a NUL character: binary data", remedy="give a text file")
    return text
