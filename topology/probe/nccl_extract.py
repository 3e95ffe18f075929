"""A topology file inside something else: a Markdown fence, a quoted mail, a shell script, a log, an escaped web page.

Linear in the size of the text. The lines of what is found are told as they are counted in the whole.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

# The longer marks first: UTF-32 begins as UTF-16 does.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_HEAD: Final = 2**16
_MAX_BODY: Final = 2**23  # with what stands before each of its lines
_MAX_COPIES: Final = 64
_BEFORE_ROOT: Final = re.compile(rb"(?:\s+|<\?[^>]{0,200}\?>)*")
_ROOT: Final = re.compile(rb"<system\s[^<>]{0,4096}?\bversion\s*=")
_ESCAPED_ROOT: Final = re.compile(rb"&lt;system\s[^<>]{0,4096}?\bversion\s*=")
_ESCAPES: Final = (
    (rb"&lt;", b"<"),
    (rb"&gt;", b">"),
    (rb"&quot;|&#34;|&#x22;", b'"'),
    (rb"&apos;|&#39;|&#x27;", b"'"),
    (rb"&amp;", b"&"),  # the last one: `&amp;lt;` is `&lt;` once
)
_END, _ESCAPED_END = b"</system>", b"&lt;/system&gt;"
_DOCTYPE: Final = re.compile(rb"<!DOCTYPE\s+(?!html\b)", re.IGNORECASE)
_OUR_DOCTYPE: Final = re.compile(rb"<!DOCTYPE\s+system\b", re.IGNORECASE)
_JSON: Final = re.compile(rb"\s*(?:\{|\[\s*[\[{\"\]])")
# A matrix of `nvidia-smi topo -m` beside it tells more: names and memory go by what comes with it.
_MATRIX: Final = re.compile(rb"\bGPU0\s{1,40}(?:GPU1\b|NIC0\b|CPU Affinity)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The bytes of one `system` element, or of a whole file, and the line they begin on.

    `again` is the line of another element that differs; `is_decoded` says that the text was UTF-16 or UTF-32.
    """

    content: bytes
    first_line: int = 1
    again: int | None = None
    is_decoded: bool = False


def recognises(content: bytes) -> bool:
    """Whether this is a topology file, or text that has one inside: then its parser is to say what is wrong with it."""
    try:
        text = _decoded(content)[0]
    except UnicodeDecodeError:
        text = content[:_HEAD].replace(b"\0", b"")
    # Text of two or four bytes a character without a mark: enough of it to see what it is.
    head = text[:_HEAD].replace(b"\0", b"") if text[:4].count(b"\0") in {2, 3} else text[:_HEAD]
    at = _root(head)
    if _ROOT.match(head, at) is not None:
        return True
    if _DOCTYPE.match(head, at) is not None:
        return _OUR_DOCTYPE.match(head, at) is not None or _ROOT.search(head) is not None
    if _JSON.match(text) is not None or _MATRIX.search(text) is not None:
        return False
    return _ROOT.search(text) is not None or _ESCAPED_ROOT.search(text) is not None


def find_system(content: bytes) -> Found:
    """Return the `system` element of a text, or the text itself where it is all there is or where there is none.

    Raises:
        UnicodeDecodeError: if it is marked as UTF-16 or UTF-32 and is not.

    """
    text, is_decoded = _decoded(content)
    at = _root(text)
    whole = Found(content=text, is_decoded=is_decoded)
    if _DOCTYPE.match(text, at) is not None:
        return whole
    starts, is_escaped = _starts(text, _ROOT, at), False
    if not starts:
        starts, is_escaped = _starts(text, _ESCAPED_ROOT, at), True
    if not starts or (starts == [at] and not is_escaped and _is_all(text, at)):
        return whole
    return _elements(text, starts, is_decoded=is_decoded, is_escaped=is_escaped)


def _decoded(content: bytes) -> tuple[bytes, bool]:
    mark, encoding = next(((mark, name) for mark, name in _MARKS if content.startswith(mark)), (b"", "utf-8"))
    if encoding == "utf-8":
        return content.removeprefix(mark), False
    return content[len(mark) :].decode(encoding).encode(), True


def _root(text: bytes, at: int = 0) -> int:
    # Where the first thing is that is no blank, comment or declaration.
    at = _skip(text, at)
    while text.startswith(b"<!--", at):
        end = text.find(b"-->", at)
        if end < 0:
            return at
        at = _skip(text, end + 3)
    return at


def _skip(text: bytes, at: int) -> int:
    match = _BEFORE_ROOT.match(text, at)
    return at if match is None else match.end()


def _starts(text: bytes, root: re.Pattern[bytes], at: int) -> list[int]:
    return [match.start() for match in islice(root.finditer(text, at), _MAX_COPIES)]


def _is_all(text: bytes, at: int) -> bool:
    # Without an end, the parser tells where the text is cut.
    end = text.rfind(_END, at)
    return end < 0 or _root(text, end + len(_END)) == len(text)


def _elements(text: bytes, starts: list[int], *, is_decoded: bool, is_escaped: bool) -> Found:
    end = _ESCAPED_END if is_escaped else _END
    lines, first = [1 + text.count(b"\n", 0, starts[0])], b""
    for this, other in pairwise(starts):
        lines.append(lines[-1] + text.count(b"\n", this, other))
    bodies: list[bytes] = []
    for at, (start, line) in enumerate(zip(starts, lines, strict=True)):
        upper = starts[at + 1] if at + 1 < len(starts) else len(text)
        found = text.find(end, start, upper)
        body = text[start : min(upper if found < 0 else found + len(end), start + _MAX_BODY)]
        body = _without_prefix(text[text.rfind(b"\n", 0, start) + 1 : start], _unescaped(body) if is_escaped else body)
        if found < 0 and not bodies:
            return Found(content=body, first_line=line, is_decoded=is_decoded)
        bodies.append(body)
        first = first or _compared(body)
        if _compared(body) != first:
            return Found(content=bodies[0], first_line=lines[0], again=line, is_decoded=is_decoded)
    return Found(content=bodies[0], first_line=lines[0], is_decoded=is_decoded)


def _compared(body: bytes) -> bytes:
    return b"\n".join(line.strip() for line in body.split(b"\n"))


def _unescaped(body: bytes) -> bytes:
    for pattern, plain in _ESCAPES:
        body = re.sub(pattern, plain, body)
    return body


def _without_prefix(prefix: bytes, body: bytes) -> bytes:
    """Take what stands before the element on its first line off the others: `> `, or what a logger writes.

    NCCL writes one tag a line, so that what comes before the first `<` is no part of it; that differs from line to line
    in a log.
    """
    if not prefix.strip():
        return body
    short = prefix.rstrip()
    lines = body.split(b"\n")
    for at, line in enumerate(lines[1:], 1):
        if line.startswith(prefix):
            lines[at] = line[len(prefix) :]
        elif line.startswith(short):
            lines[at] = line[len(short) :]
        elif b"<" not in prefix and b"<" in line and b">" not in line.partition(b"<")[0]:
            lines[at] = line[line.index(b"<") :]
    return b"\n".join(lines)
