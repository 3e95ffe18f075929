"""Pages of the documentation as lists of commands, with what a page says about running them.

A block that begins with ```bash or ```console is run, line by line (in console blocks, lines that begin with `$ ` or
`trainmaster`; the others are the output that is shown). An HTML comment in a line of its own before the block may
change how:

    <!-- doc-test: skip: REASON -->       not run; keys and values of trainmaster's commands are still checked
    <!-- doc-test: dry_run -->            with dry_run=true
    <!-- doc-test: plan-only -->          `train` is run as `plan`
    <!-- doc-test: with KEY=VALUE ... --> with more overrides
    <!-- doc-test: as-written -->         a training is not shortened
    <!-- doc-test: slow -->               this block and the rest of the page are run by the slow test only
    <!-- doc-test: quick -->              a training here is run by the quick test, too
    <!-- doc-test: numbers vary -->       digits of the output shown are not compared
    <!-- doc-test: output varies: WHY --> the output shown is not compared
    <!-- doc-test: before: COMMAND -->    a command that makes what the page takes as given; not shown, and anywhere
                                          before the block

A comment `# exits 3` behind a command says its exit code, else it is 0. ` ... ` in a command stands for model and data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_DIRECTIVE = re.compile(r"^\s*<!-- doc-test: (?P<text>.*?) -->\s*$")
_FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>[\w-]*)\s*$")
_EXITS = re.compile(r"\s+#.*\bexits (?P<code>\d+)\b.*$")
_COMMENT = re.compile(r"\s+# .*$")
_LANGUAGES = ("bash", "console")
_UNKNOWN = ("sh", "shell", "zsh", "shell-session")
_PLAIN = frozenset({"dry_run", "plan-only", "as-written", "slow", "quick", "numbers vary"})
_WITH_TEXT = ("skip", "before", "output varies")


class PageError(ValueError):
    """A page that says something the tests cannot take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a page.

    Attributes:
        text: for the shell.
        line: of the page, counted from 1.
        code: the exit code that the page tells.
        output: lines that the page shows of it.
    """

    text: str
    line: int
    code: int = 0
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Commands in one fence, with the directives before it.

    Attributes:
        commands: in their order.
        words: plain directives.
        extra: overrides to append.
        skip: why it is not run; empty: it is run.
        before: hidden commands.
        shows: whether the output shown is compared.
    """

    commands: tuple[Command, ...]
    words: frozenset[str] = frozenset()
    extra: tuple[str, ...] = ()
    skip: str = ""
    before: tuple[str, ...] = ()
    shows: bool = True


def pages() -> tuple[Path, ...]:
    """README and the pages of docs/; decision notes tell of the past and are left out."""
    docs = ROOT / "docs"
    return (ROOT / "README.md", *sorted(p for p in docs.rglob("*.md") if "decisions" not in p.parts))


def blocks_of(text: str) -> tuple[Block, ...]:
    """The blocks of a page that hold commands, in their order.

    Raises:
        PageError: an unknown directive, a directive before no block, a reason that is missing, a language that is
            written otherwise, or a block without end.
    """
    lines = text.splitlines()
    found: list[Block] = []
    pending: list[tuple[int, str]] = []
    at = 0
    while at < len(lines):
        directive = _DIRECTIVE.match(lines[at])
        fence = _FENCE.match(lines[at])
        if directive:
            pending.append((at + 1, directive["text"]))
        elif fence:
            end = _end_of(lines, at)
            language = fence["language"]
            if language in _UNKNOWN:
                raise PageError(f"line {at + 1}: write ```bash or ```console instead of ```{language}")
            if language in _LANGUAGES:
                body = [line.removeprefix(fence["indent"]) for line in lines[at + 1 : end]]
                found.append(_block(body, at + 2, language == "console", pending))
                pending = []
            at = end
        if lines[at].strip() and not directive:
            _check_attached(pending)
        at += 1
    _check_attached(pending)
    return tuple(found)


def _check_attached(pending: list[tuple[int, str]]) -> None:
    """Only what is made before may stand away from its block."""
    alone = [line for line, text in pending if not text.startswith("before:")]
    if alone:
        raise PageError(f"line {alone[0]}: the directive stands before no block of commands")


def _end_of(lines: list[str], start: int) -> int:
    for at in range(start + 1, len(lines)):
        if lines[at].strip() == "```":
            return at
    raise PageError(f"line {start + 1}: the block has no end")


def _block(body: list[str], first: int, is_console: bool, directives: list[tuple[int, str]]) -> Block:
    words, extra, before = set(), [], []
    skip, shows = "", True
    for line, text in directives:
        name, _, rest = text.partition(":")
        if text in _PLAIN:
            words.add(text)
        elif text.startswith("with "):
            extra += text.split()[1:]
        elif name in _WITH_TEXT and rest.strip():
            skip = rest.strip() if name == "skip" else skip
            before += [rest.strip()] if name == "before" else []
            shows = shows and name != "output varies"
        else:
            raise PageError(f"line {line}: no such directive, or no reason given: {text!r}")
    return Block(
        commands=_commands(body, first, is_console),
        words=frozenset(words),
        extra=tuple(extra),
        skip=skip,
        before=tuple(before),
        shows=shows,
    )


def _commands(body: list[str], first: int, is_console: bool) -> tuple[Command, ...]:
    found: list[Command] = []
    at = 0
    while at < len(body):
        line, number = body[at], first + at
        is_typed = line.startswith(("$ ", "trainmaster "))
        is_command = is_typed if is_console else bool(line.strip()) and not line.lstrip().startswith("#")
        if is_command:
            text = line.removeprefix("$ ") if is_console else line
            while text.endswith("\\") and at + 1 < len(body):
                at += 1
                text = text[:-1].rstrip() + " " + body[at].removeprefix("> ").strip()
            exits = _EXITS.search(text)
            code = int(exits["code"]) if exits else 0
            found.append(Command(text=_COMMENT.sub("", text).strip(), line=number, code=code))
        elif is_console and found:
            last = found.pop()
            found.append(Command(text=last.text, line=last.line, code=last.code, output=(*last.output, line)))
        elif is_console and line.strip():
            raise PageError(f"line {number}: output without a command; commands begin with `$ `")
        at += 1
    return tuple(found)


def unmatched(shown: tuple[str, ...], printed: str, *, numbers_vary: bool = False) -> str:
    """The first line of the output shown that was not printed in this order; empty: all were.

    `...` in a line stands for anything; a line of its own `...`, and spaces, do not count.
    """
    lines = [_plain(line, numbers_vary=numbers_vary) for line in printed.splitlines()]
    at = 0
    for line in shown:
        wanted = _plain(line, numbers_vary=numbers_vary)
        if wanted in {"", "..."}:
            continue
        pattern = re.compile(r"\s*.*\s*".join(re.escape(part.strip()) for part in wanted.split("...")))
        while at < len(lines) and not pattern.fullmatch(lines[at]):
            at += 1
        if at == len(lines):
            return line
        at += 1
    return ""


def _plain(line: str, *, numbers_vary: bool) -> str:
    text = " ".join(line.split())
    if numbers_vary:
        text = re.sub(r"#{2,}|(?<= )#(?= )", "", text)  # bars
        text = re.sub(r"\d+(?:[,.:]\d+)*(?:e[-+]?\d+)?", "N", text)
        text = " ".join(re.sub(r"N (?:[KMG]iB|ms|s)\b", "N", text).split())
    return text
