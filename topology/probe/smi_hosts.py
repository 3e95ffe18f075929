"""One text with the output of many hosts: pdsh, clush, dshbak, ansible, srun -l, mpirun, or a loop around ssh.

Either every line has its host in front, lines of several hosts in any order, or each host's lines stand below a
heading that names it, or names several with the same output (`node[01-04]`), or below the prompt of its shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from topology.probe.smi_blocks import is_gpu_row
from topology.probe.smi_clean import clean_line, plain_lines
from topology.probe.smi_failures import failure_at
from topology.probe.smi_lines import LABEL, header_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_HOSTS: Final = 2048
_NAME: Final = r"[A-Za-z0-9](?:[\w.-]{0,100}[A-Za-z0-9])?"
_SET: Final = r"[A-Za-z0-9][\w.,\[\]-]{0,400}"
# In front of a line: `node01: `, `  0: `, `[node01] `, `[1,0]<stdout>: `, `node01 | `.
_PREFIX: Final = re.compile(
    rf"[ \t]{{0,8}}(?:({_NAME}):(?=[ \t]|$)|\[({_NAME})\](?=[ \t]|$)"
    rf"|\[(\d{{1,4}},\d{{1,4}})\]<std(?:out|err)>:|({_NAME})[ \t]{{1,8}}\|(?=[ \t]|$))",
)
# On a line of their own: ansible's `node01 | CHANGED | rc=0 >>`, pssh's `[1] 12:00:00 [SUCCESS] node01`.
_ANSIBLE: Final = re.compile(rf"({_NAME}) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE!?)\b.{{0,80}}")
_PSSH: Final = re.compile(rf"\[\d{{1,5}}\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] ({_NAME})")
_RULE: Final = re.compile(r"-{4,200}")
_SET_LINE: Final = re.compile(rf"({_SET})(?: \(\d{{1,5}}\))?")
# A shell's prompt: `[root@node01 ~]# nvidia-smi`, `(base) me@node01:~/x$`. A command run elsewhere names that host.
_USER: Final = rf"[\w.-]{{1,64}}@({_NAME})"
_PROMPT: Final = re.compile(
    rf"(?:\([\w.-]{{1,40}}\) ?)?(?:\[{_USER}(?: [^\]\n]{{0,100}})?\]|{_USER}(?:[: ][^$#%>\n]{{0,200}})?)"
    r" ?[$#%>](?: (.{0,300}))?",
)
_SHORT_PROMPT: Final = re.compile(rf"({_NAME}) ?[$#%>] ?nvidia-smi .{{0,80}}")
_ELSEWHERE: Final = re.compile(
    rf"(?:\$ )?(?:ssh(?: -\S{{1,40}}| [\w.]{{1,40}}=\S{{1,40}}){{0,6}} (?:[\w.-]{{1,64}}@)?({_NAME})"
    rf"|srun .{{0,80}}?(?:-w ?|--nodelist[= ])({_NAME}))(?: .{{0,80}})? ['\"]?nvidia-smi .{{0,40}}",
)
# `head` and `tail` of several files: the last part of the path that looks like a host's name.
_FILE: Final = re.compile(r"==> (\S.{0,300}) <==")
_ENDING: Final = re.compile(r"\.(?:txt|log|out|md|err|smi|topo)$", re.IGNORECASE)
# Weaker: `node01:` or `=== node01 ===`. They count only with a digit or a dot in the name, as hosts mostly have.
_TITLE: Final = re.compile(
    rf"(?:({_NAME}):|\[({_NAME})\]|host(?:name)?[:=] ?({_NAME})"
    rf"|[=#*>-]{{2,20}} ?(?:host(?:name)?:? )?({_NAME}):? ?[=#*<-]{{0,20}})",
    re.IGNORECASE,
)
_NO_HOST: Final = re.compile(
    r"(?:GPU|NIC)(?:0|[1-9]\d*)?|(?:step|run|test|case|try|attempt|part|matrix|table|output|driver|version|figure|fig|listing|example|cuda)"
    r"[-_]?[\d.]*|[\d.]+",
    re.IGNORECASE,
)
_MAX_SHOWN: Final = 400
_MAX_FOLDERS: Final = 3


@dataclass(slots=True, kw_only=True)
class HostText:
    """The lines of one host, or of several with the same, and their numbers in the whole text."""

    heading: str
    is_prompted: bool = False
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hosts: of one, or of a folded set."""
        return expanded(self.heading)

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def split_hosts(text: str) -> tuple[HostText, ...]:
    """Return the lines of each host, if two or more of them have a matrix; nothing otherwise. O(characters)."""
    lines = plain_lines(text)
    for parts in (_by_prefix(lines), _by_heading(lines)):
        whole = {part.heading for part in parts if _is_whole(part)}
        if whole:
            whole |= {part.heading for part in parts if part.heading not in whole and _is_failed(part)}
        if len(whole) > 1 or sum(len(expanded(heading)) for heading in whole) > 1:
            return tuple(part for part in parts if part.heading in whole or _has_row(part))
    return ()


def _has_row(part: HostText) -> bool:
    return any(is_gpu_row(clean_line(line)) for line in part.lines)


def _is_failed(part: HostText) -> bool:
    # A host that was asked and has no matrix is told of. At a prompt people try again elsewhere.
    return not part.is_prompted and not _has_row(part) and failure_at(part.text) is not None


def _is_whole(part: HostText) -> bool:
    """Whether a header and a row below it are among the lines."""
    is_headed = False
    for line in map(clean_line, part.lines):
        if "GPU" not in line:
            continue
        if is_headed and is_gpu_row(line):
            return True
        is_headed = is_headed or bool(header_parts(line)[0])
    return False


def _by_prefix(lines: Sequence[str]) -> list[HostText]:
    parts: dict[str, HostText] = {}
    for number, line in enumerate(lines, start=1):
        match = _PREFIX.match(line[:_MAX_SHOWN])
        if match is None:
            continue
        name = next(group for group in match.groups() if group is not None).replace(",", ".")
        part = parts.get(name)
        if part is None:
            if len(parts) >= MAX_HOSTS:
                return []
            part = parts[name] = HostText(heading=name)
        part.lines.append(line[match.end() :].removeprefix(" "))
        part.numbers.append(number)
    return list(parts.values())


def _by_heading(lines: Sequence[str]) -> list[HostText]:
    parts: dict[str, HostText] = {}
    here: HostText | None = None
    for at, line in enumerate(lines):
        name = _heading(lines, at)
        if name:
            if len(parts) >= MAX_HOSTS:
                return []
            here = parts.setdefault(name, HostText(heading=name))
            here.is_prompted = here.is_prompted or _prompted(line.strip()) == name
        elif here is not None and not (_RULE.fullmatch(line.strip()) and _heading(lines, at + 1)):
            here.lines.append(line)
            here.numbers.append(at + 1)
    return list(parts.values())


def _heading(lines: Sequence[str], at: int) -> str:
    """Return the host, or the folded set of hosts, that a line names as a heading; nothing if it is none."""
    line = lines[at].strip() if at < len(lines) else ""
    if not line or len(line) > _MAX_SHOWN:
        return ""
    if at and at + 1 < len(lines) and _RULE.fullmatch(lines[at - 1].strip()) and _RULE.fullmatch(lines[at + 1].strip()):
        match = _SET_LINE.fullmatch(line)
        return match[1] if match is not None else ""
    for pattern in (_ANSIBLE, _PSSH):
        match = pattern.fullmatch(line)
        if match is not None:
            return match[1]
    match = _FILE.fullmatch(line)
    if match is not None:
        parts = (_ENDING.sub("", part) for part in reversed(match[1].rsplit("/", maxsplit=_MAX_FOLDERS)))
        return next((part for part in parts if re.fullmatch(_NAME, part) and _is_host(part)), "")
    match = _TITLE.fullmatch(line)
    name = _first(match) if match is not None else ""
    return name if _is_host(name) else _prompted(line)


def _prompted(line: str) -> str:
    prompt = _PROMPT.fullmatch(line)
    elsewhere = _ELSEWHERE.fullmatch((prompt[3] or "") if prompt is not None else line)
    if elsewhere is not None:
        return _first(elsewhere)
    if prompt is not None:
        return prompt[1] or prompt[2]
    short = _SHORT_PROMPT.fullmatch(line)
    return short[1] if short is not None and _is_host(short[1]) else ""


def _first(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group), "")


def _is_host(name: str) -> bool:
    is_named = any(char.isdigit() or char == "." for char in name)
    return is_named and not _NO_HOST.fullmatch(name) and not LABEL.fullmatch(name)


@lru_cache(maxsize=64)
def expanded(folded: str) -> tuple[str, ...]:
    """Write out a folded set of hosts: `gpu[01-02,05],login1` is gpu01, gpu02, gpu05, login1.

    What is no such set stands for itself; of a larger set `MAX_HOSTS` names and one more are given.
    """
    names: list[str] = []
    for part in _parts(folded):
        match = re.fullmatch(r"([\w.-]*)(?:\[([\d,-]{1,300})\]([\w.-]*))?", part)
        if match is None:
            return (folded,)
        for middle in _numbers(match[2]) if match[2] is not None else ("",):
            names.append(f"{match[1]}{middle}{match[3] or ''}")
            if len(names) > MAX_HOSTS:
                return tuple(names)
    return tuple(dict.fromkeys(names))


def _parts(folded: str) -> list[str]:
    # Commas within brackets do not part names.
    parts, depth = [""], 0
    for char in folded:
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _numbers(ranges: str) -> Iterator[str]:
    for span in ranges.split(","):
        first, _, last = span.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            continue
        for number in range(int(first), min(int(last or first), int(first) + MAX_HOSTS) + 1):
            yield f"{number:0{len(first)}d}"
