"""The XML of NCCL and RCCL topology files as a small tree: checked against the format's grammar, and bounded.

Grammar (NVIDIA/nccl src/graph/xml.cc, 2.4 to 2.30): system holds cpu; cpu holds pci and nic; pci holds pci, gpu, nic
and pcilink; gpu holds nvlink, c2c and (RCCL) xgmi; nic holds net. Elements of other names are skipped, as NCCL does.
`trainmaster_*` attributes are this package's own: NCCL and RCCL read no attributes but those they ask for by name.
A file may come from anyone: no document type, no entities, and limits on size, depth and number of elements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.parsers import expat

from topology.checks import normal_pci
from topology.errors import TopologyError
from topology.probe.nccl_extract import find_system

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from topology.probe.nccl_extract import Found

# Real files are under 1 MiB: NCCL itself stops at 4096 elements and real PCI trees are some ten levels deep.
MAX_BYTES: Final = 2 * 2**20
_MAX_DEPTH: Final = 64
_MAX_ELEMENTS: Final = 8192
_MAX_ATTRIBUTES: Final = 64
_MAX_VALUE: Final = 1024
_MAX_PROBLEMS: Final = 20
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_WIDE: Final = re.compile(r"utf-?(?:16|32)|ucs|iso-10646", re.IGNORECASE)
_VERSIONS: Final = frozenset({"1", "2"})  # NCCL, RCCL

_CHILDREN: Final[Mapping[str, frozenset[str]]] = {
    "system": frozenset({"cpu"}),
    "cpu": frozenset({"pci", "nic"}),
    "pci": frozenset({"pci", "gpu", "nic", "pcilink"}),
    "gpu": frozenset({"nvlink", "xgmi", "c2c"}),
    "nic": frozenset({"net"}),
    **dict.fromkeys(("nvlink", "xgmi", "c2c", "net", "pcilink"), frozenset[str]()),
}
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "system": ("version",),
    "cpu": ("numaid",),
    "pci": ("busid",),
    "nvlink": ("target", "count"),
    "xgmi": ("target", "count"),
    "net": ("name",),
    "pcilink": ("target",),
}
_WHOLE: Final = r"-?\d{1,15}"
_HEX: Final = r"0x[0-9a-fA-F]{1,16}"
# What the value of an attribute must look like; those not named here may hold anything.
_PATTERNS: Final[Mapping[tuple[str, str], re.Pattern[str]]] = {
    key: re.compile(pattern, re.ASCII)
    for key, pattern in {
        ("cpu", "numaid"): r"-1|\d{1,6}|0[xX][0-9a-fA-F]{1,5}",
        ("cpu", "host_hash"): r"(?:0x)?[0-9a-fA-F]{1,16}",
        ("cpu", "affinity"): r"(?:[0-9a-fA-F]+(?:,[0-9a-fA-F]+)*)?",
        ("cpu", "familyid"): _WHOLE,
        ("cpu", "modelid"): _WHOLE,
        ("pci", "class"): _HEX,
        ("pci", "trainmaster_bridge"): r"(?:(?:bridge|pci)[\w.:-]{0,80})?",
        ("pci", "link_width"): r"\d{0,3}",
        ("gpu", "dev"): _WHOLE,
        ("gpu", "rank"): _WHOLE,
        ("gpu", "sm"): r"\d{1,4}",
        ("gpu", "mlopart"): _WHOLE,
        ("gpu", "trainmaster_memory_bytes"): r"\d{1,15}",
        ("gpu", "trainmaster_uuid"): r"[\w./:-]{1,120}",
        ("nvlink", "target"): r"[0-9a-fA-F:.]+",
        ("nvlink", "count"): r"\d{1,3}",
        ("nvlink", "tclass"): _HEX,
        ("xgmi", "target"): r"[0-9a-fA-F:.]+",
        ("xgmi", "count"): r"\d{1,3}",
        ("c2c", "bw"): _WHOLE,
        ("c2c", "count"): r"\d{1,3}",
        ("net", "name"): r"(?s:.+)",
        ("net", "speed"): _WHOLE,
        ("net", "port"): _WHOLE,
        ("net", "guid"): rf"{_HEX}|\d{{1,20}}",
    }.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element: its name, the line it starts on, its attributes and the known elements inside it."""

    tag: str
    line: int
    attributes: Mapping[str, str]
    children: tuple[Element, ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value of an attribute without surrounding blanks; None if it is absent or empty."""
        return self.attributes.get(name, "").strip() or None

    def inside(self, tag: str) -> tuple[Element, ...]:
        """Return the elements of one name directly inside this one."""
        return tuple(child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """Give this element and all below it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The `system` element, and the names of elements that were skipped."""

    root: Element
    skipped: tuple[str, ...]


def refusal(*problems: str) -> TopologyError:
    """Make the error for a file that is not used, with at most twenty of its problems."""
    rest = len(problems) - _MAX_PROBLEMS
    told = problems[:_MAX_PROBLEMS] + ((f"and {rest} more",) if rest > 0 else ())
    return TopologyError(
        asked="an NCCL or RCCL topology file (XML)",
        problems=told,
        remedy="give the whole XML file that NCCL_TOPO_DUMP_FILE wrote on that machine",
    )


def read_document(content: bytes) -> Document:
    """Read the bytes of a topology file, or of a text that has one inside.

    Raises:
        TopologyError: with line and reason, if it is cut off, too large, no topology or against the grammar.

    """
    try:
        found = find_system(content)
    except UnicodeDecodeError as error:
        raise refusal(f"line 1: marked as {error.encoding.upper()} text, but not: {error.reason}") from None
    if len(found.content) > MAX_BYTES:
        text = f"{len(found.content)} bytes, more than the {MAX_BYTES} a topology file may have"
        raise refusal(f"line {found.first_line}: {text}")
    if found.again is not None:
        text = f"another XML <system> element, which differs from that on line {found.first_line}"
        raise refusal(f"line {found.again}: {text}: give a file with one of them")
    _check_encoding(found)
    builder = _Builder(found)
    try:
        root = builder.read()
    except expat.ExpatError as error:
        where = f"; the input ends or breaks inside <{builder.innermost}>" if builder.innermost else ""
        reason = expat.ErrorString(error.code)
        line = error.lineno + found.first_line - 1
        raise refusal(f"line {line}: XML not well formed ({reason}){where}") from None
    if not root.children:
        raise refusal(f"line {root.line}: <system> without any <cpu>")
    problems = tuple(problem for element in root.walk() for problem in _faults(element))
    if problems:
        raise refusal(*problems)
    return Document(root=root, skipped=tuple(builder.skipped))


def _check_encoding(found: Found) -> None:
    at = found.content.find(b"\0")
    if at >= 0:
        line = found.content.count(b"\n", 0, at) + found.first_line
        raise refusal(f"line {line}: a NUL byte (binary data, or text of two or four bytes a character)")


def _faults(element: Element) -> Iterator[str]:
    where = f"line {element.line}: <{element.tag}>"
    for name in _REQUIRED.get(element.tag, ()):
        if name not in element.attributes:
            yield f"{where} without {name}"
    for name, value in element.attributes.items():
        pattern = _PATTERNS.get((element.tag, name))
        if pattern is not None and not pattern.fullmatch(value.strip()):
            yield f"{where} with {name}={value[:60]!r}, not of the form the format has"
    version = element.attributes.get("version", "1") if element.tag == "system" else "1"
    if version.strip() not in _VERSIONS:
        yield f"{where} of version {version[:20]!r}; known are 1 (NCCL) and 2 (RCCL)"
    address = element.attributes.get("busid")
    if element.tag == "pci" and address is not None and normal_pci(address) is None:
        yield f"{where} with busid={address[:60]!r}, no PCI address"


class _Builder:
    # Expat's handlers. An exception raised in one ends the parse at once, so no limit is overrun by more than one.

    def __init__(self, found: Found) -> None:
        self._found = found
        # What was decoded here names the encoding it had before.
        self._is_any = found.is_decoded
        self._is_ascii = found.content.isascii()
        self.skipped: dict[str, None] = {}
        self._open: list[tuple[str, int, dict[str, str], list[Element]]] = []
        self._skipping = 0
        self._num_elements = 0
        self._root: Element | None = None
        # A fixed encoding: NCCL writes ASCII, and a codec named by the file is one more thing to trust.
        self._parser = expat.ParserCreate(encoding="utf-8")
        self._parser.buffer_text = True
        self._parser.XmlDeclHandler = self._declaration
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.EntityDeclHandler = self._entity

    @property
    def innermost(self) -> str:
        """The element that is open now, or nothing."""
        return self._open[-1][0] if self._open else ""

    def read(self) -> Element:
        self._parser.Parse(self._found.content, True)  # noqa: FBT003 - expat takes it by position only
        assert self._root is not None  # noqa: S101 - expat has refused a document without root
        return self._root

    @property
    def _line(self) -> int:
        return self._parser.CurrentLineNumber + self._found.first_line - 1

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._num_elements += 1
        if self._num_elements > _MAX_ELEMENTS:
            raise refusal(f"line {self._line}: more than {_MAX_ELEMENTS} elements")
        if len(self._open) + self._skipping >= _MAX_DEPTH:
            raise refusal(f"line {self._line}: elements nested deeper than {_MAX_DEPTH}")
        if len(attributes) > _MAX_ATTRIBUTES:
            raise refusal(f"line {self._line}: more than {_MAX_ATTRIBUTES} attributes on one element")
        if any(len(value) > _MAX_VALUE for value in attributes.values()):
            raise refusal(f"line {self._line}: a value longer than {_MAX_VALUE} characters")
        if not self._open and not self._skipping and tag != "system":
            graph = " (a search result of NCCL_GRAPH_DUMP_FILE, no topology)" if tag in {"graphs", "graph"} else ""
            raise refusal(f"line {self._line}: the outermost element is <{tag[:40]}>, not <system>{graph}")
        if self._skipping or (tag not in _CHILDREN):
            self._skipping += 1
            self.skipped.setdefault(tag[:40])
            return
        if self._open and tag not in _CHILDREN[self.innermost]:
            raise refusal(f"line {self._line}: <{tag}> directly inside <{self.innermost}>")
        self._open.append((tag, self._line, attributes, []))

    def _end(self, _: str) -> None:
        if self._skipping:
            self._skipping -= 1
            return
        tag, line, attributes, children = self._open.pop()
        element = Element(tag=tag, line=line, attributes=attributes, children=tuple(children))
        if self._open:
            self._open[-1][3].append(element)
        else:
            self._root = element

    def _text(self, text: str) -> None:
        if not self._skipping and text.strip():
            raise refusal(f"line {self._line}: text between XML elements: {text.strip()[:40]!r}")

    def _declaration(self, _: str, encoding: str | None, __: int) -> None:
        # What is ASCII reads the same in every one-byte encoding, so that its name does not matter.
        name = encoding or "utf-8"
        if not self._is_any and name.lower() not in _UTF8 and (not self._is_ascii or _WIDE.match(name)):
            raise refusal(f"line {self._line}: the encoding {name[:40]!r}; topology files are ASCII or UTF-8")

    def _doctype(self, *_: object) -> None:
        raise refusal(f"line {self._line}: a document type declaration (DOCTYPE); topology files have none")

    def _entity(self, *_: object) -> None:
        raise refusal(f"line {self._line}: an entity declaration; topology files have none")
