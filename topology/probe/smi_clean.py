"""Text of any origin -> plain lines: without colours, quotes, fences, entities, and of a length that can be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASKED: Final = "a topology from nvidia-smi text"
REMEDY: Final = "give the whole output of `nvidia-smi topo -m`, unedited"
MAX_CHARS: Final = 1 << 20  # a full matrix of 256 columns has half of it
MAX_LINES: Final = 20_000
MAX_LINE: Final = 1 << 16  # characters; a row of 256 columns has 2,000, a whole small matrix may be on one line
MAX_PROBLEMS: Final = 20

# Colours also as logs and web pages leave them: `^[[4m`, or `[4m` with the escape character lost. `script` also
# records window titles and keypad modes.
_ESCAPE: Final = re.compile(
    r"(?:\x1b|\u241b|\^\[)\[[0-9;?]{0,32}[A-Za-z]|\[[0-9;]{0,8}m"
    r"|\x1b\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|\x1b[()][0-9A-Z]|\x1b[=>]",
)
_NEW_LINE: Final = re.compile(r"\r{0,3}\n|\r")
_DECORATION: Final = " \t\x0b>#*;/!`'\ufeff"
_TAG: Final = re.compile(
    r"</?(?:pre|code|samp|table|thead|tbody|tr|td|th|br|p|div|span|b|i|u|html|body|font)\b[^<>\n]{0,256}>",
    re.IGNORECASE,
)
# A break inside a line of the text, which keeps its number.
BREAK: Final = "\x0b"
_BREAK: Final = re.compile(r"<br ?/?>(?!\s{0,8}\n)", re.IGNORECASE)
_ENTITY: Final = re.compile(
    r"&(?:amp;)?(nbsp|gt|lt|quot|ensp|emsp|#160|#xa0|#9|#62|#60|#45|minus|ndash|#8209);", re.IGNORECASE
)
_ENTITIES: Final[Mapping[str, str]] = {
    "gt": ">",
    "#62": ">",
    "lt": "<",
    "#60": "<",
    "quot": '"',
    "#9": "\t",
    "#45": "-",
    "minus": "-",
    "ndash": "-",
    "#8209": "-",
}
# Text kept in a string of JSON or of a log: the letters stand for the characters.
_ESCAPED_LINES: Final = re.compile(r"\\n(?:\\t|[ \t>#|]){0,8}(?:\\u001b\[4m)?(?:GPU|NIC)\d")
# A matrix in the output of `diff` or `git diff`: each line has the same sign in front.
_SIGNED: Final = re.compile(r"^([+-]?)[ \t]{0,32}GPU\d", re.MULTILINE)
_SIGN: Final = re.compile(r"^[+-]", re.MULTILINE)
_ESCAPED: Final = re.compile(r"\\(t|_|u001b|x1b|033|r(?=\\n)|n)")
_LABELS: Final = r"(?:X|NV\d{1,3}|NVB|C2C|PIX|PXB|PHB|NODE|SYS|SOC)"
_COMMA: Final = re.compile(rf",(?=\s{{0,8}}(?:{_LABELS}|GPU ?\d|GPU NUMA|NIC\d|CPU |NUMA |Node )\b)")
_LABEL_COMMA: Final = re.compile(rf"\b({_LABELS})\s{{0,8}},")


def _table() -> dict[int, str | None]:
    # Full-width letters, spaces and dashes of many kinds, and frames drawn around tables.
    wide: dict[int, str | None] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    spaces = (0xA0, 0x85, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
    wide |= dict.fromkeys((*spaces, *range(0x2500, 0x2580)), " ")
    wide |= dict.fromkeys((*range(0x2010, 0x2016), 0x2212, 0xFE58, 0xFE63), "-")
    return wide | dict.fromkeys((*range(0x200B, 0x2010), 0xAD, 0x2060, 0xFEFF))


_PLAIN: Final = _table()


def failure(problems: Sequence[str]) -> TopologyError:
    """Make the error of this parser; a long list of problems is cut."""
    shown = tuple(problems[:MAX_PROBLEMS])
    more = len(problems) - len(shown)
    return TopologyError(asked=ASKED, problems=(*shown, *([f"{more} more"] if more else [])), remedy=REMEDY)


def check_is_text(text: str, *, max_chars: int = MAX_CHARS, max_lines: int = MAX_LINES) -> None:
    """Refuse what is too long to be such an output, before reading it, and what is no text."""
    if len(text) > max_chars:
        raise failure([f"{len(text)} characters, more than {max_chars}: line 1 begins {text[:40]!r}"])
    lines = text.count("\n") + text.count("\r") - text.count("\r\n") + 1
    if lines > max_lines:
        raise failure([f"{lines} lines, more than {max_lines}"])
    if max(map(len, text.split("\n"))) > MAX_LINE:
        for at, line in enumerate(_NEW_LINE.split(text), start=1):
            if len(line) > MAX_LINE:
                raise failure([f"line {at}: {len(line)} characters, more than {MAX_LINE}; it begins {line[:40]!r}"])
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise failure([f"line {line}: a NUL character: binary data, or UTF-16 read as something else"])


def plain_lines(text: str) -> list[str]:
    """Split into lines of plain characters, with their quotes and signs still there; O(characters)."""
    if not text.isascii():
        text = text.translate(_PLAIN)
    if "&" in text:
        text = _ENTITY.sub(lambda match: _ENTITIES.get(match[1].lower(), " "), text)
    if "\\" in text:
        has_lines = _ESCAPED_LINES.search(text) is not None
        text = _ESCAPED.sub(lambda match: _unescaped(match[1], match[0], has_lines=has_lines), text)
    if "<" in text:
        text = _TAG.sub(" ", _BREAK.sub(BREAK, text))
    if "\b" in text:
        text = _without_backspaces(text)
    return _NEW_LINE.split(_without_signs(_ESCAPE.sub("", text)))


def _without_signs(text: str) -> str:
    # Only where all rows and headers have one sign: a change of some rows is no matrix.
    signs = {match[1] for match in _SIGNED.finditer(text)}
    return _SIGN.sub("", text) if signs in ({"+"}, {"-"}) else text


def _unescaped(letter: str, whole: str, *, has_lines: bool) -> str:
    if letter in {"n", "r"}:
        return ("\n" if letter == "n" else "") if has_lines else whole
    return {"t": "\t", "_": "_"}.get(letter, "\x1b")


def _without_backspaces(text: str) -> str:
    kept: list[str] = []
    for char in text:
        if char != "\b":
            kept.append(char)
        elif kept and kept[-1] not in "\r\n":
            kept.pop()
    return "".join(kept)


def clean_line(line: str) -> str:
    """Take a plain line out of its quotes, its comment, or the columns of a table of Markdown or CSV.

    A line without a letter or digit becomes blank.
    """
    line = line.replace("|", " ").replace("**", "").replace(";", " ")
    if '"' in line:
        line = line.replace('",', " ").replace(',"', " ").replace('"', " ")
    if "," in line:
        line = _LABEL_COMMA.sub(r"\1 ", _COMMA.sub(" ", line))
    if "`" in line:
        line = line.replace("`", " ")
    line = line.lstrip(_DECORATION).rstrip(" '")
    return line if any(char.isalnum() for char in line) else ""
