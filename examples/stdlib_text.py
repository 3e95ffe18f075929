"""Reads the text of the installed Python standard library: sources, and docstrings as prose.

Nothing is imported or executed: every module is read as text and parsed with `ast`.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Tests, third-party or bundled code, and files that are tables rather than text.
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",
        "ensurepip",
        "idle_test",
        "lib-dynload",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)
SKIPPED_PREFIXES = ("_sysconfigdata", "config-")


class Kind(StrEnum):
    """What a docstring belongs to."""

    module = "module"
    class_ = "class"
    function = "function"
    method = "method"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One documented object of the standard library."""

    kind: Kind
    module: str
    """Dotted name of the module, such as `os.path`."""
    name: str
    """Dotted name inside the module; empty for the module itself."""
    signature: str
    """Arguments (or base classes) in brackets; empty for a module."""
    doc: str
    """The docstring with its indentation removed."""

    @property
    def full_name(self) -> str:
        """`module.name`, or the module's name alone."""
        return f"{self.module}.{self.name}" if self.name else self.module

    def prose(self) -> str:
        """The entry as plain text: `function shutil.copytree(src, dst): docstring`."""
        return f"{self.kind} {self.full_name}{self.signature}: {reflow(self.doc)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The text of one module and the objects documented in it."""

    name: str
    source: str
    entries: tuple[Entry, ...]

    @property
    def num_chars(self) -> int:
        """Characters of source, docstrings counted once."""
        return len(self.source)


def reflow(doc: str) -> str:
    """Join the lines of each paragraph, leaving indented blocks and doctests as they are."""
    paragraphs = []
    for paragraph in doc.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        literal = any(line.startswith((" ", "\t", ">>>", "- ", "* ")) for line in lines)
        paragraphs.append("\n".join(lines) if literal else " ".join(lines))
    return "\n\n".join(p for p in paragraphs if p.strip())


def read_modules() -> tuple[Module, ...]:
    """Every module of the running interpreter's standard library, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not _is_skipped(relative) and (module := _read_module(path, relative)) is not None:
            modules.append(module)
    return tuple(sorted(modules, key=lambda m: m.name))


def _is_skipped(relative: Path) -> bool:
    """Whether a path below the library's root is one of those left out."""
    return bool(SKIPPED_FOLDERS.intersection(relative.parts)) or any(
        part.startswith(SKIPPED_PREFIXES) for part in relative.parts
    )


def _read_module(path: Path, relative: Path) -> Module | None:
    """Parse one file; None if it is empty or not valid UTF-8 Python."""
    parts = relative.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):
        return None
    if not name or not source.strip():
        return None
    return Module(name=name, source=source, entries=tuple(_entries(tree, name)))


def _entries(tree: ast.Module, module: str) -> Iterator[Entry]:
    """The module's own docstring, then those of its functions, classes and methods."""
    if doc := ast.get_docstring(tree):
        yield Entry(kind=Kind.module, module=module, name="", signature="", doc=doc)
    yield from _members(tree, module, prefix="")


def _members(parent: ast.Module | ast.ClassDef, module: str, prefix: str) -> Iterator[Entry]:
    """Documented definitions directly in `parent`, and those in its classes."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            kind, signature = Kind.class_, _brackets(", ".join(map(ast.unparse, node.bases)))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kind = Kind.method if prefix else Kind.function
            signature = f"({ast.unparse(node.args)})"
        else:
            continue
        name = prefix + node.name
        if doc := inspect.cleandoc(ast.get_docstring(node) or ""):
            yield Entry(kind=kind, module=module, name=name, signature=signature, doc=doc)
        if isinstance(node, ast.ClassDef):
            yield from _members(node, module, prefix=f"{name}.")


def _brackets(text: str) -> str:
    """`text` in brackets, or nothing if it is empty."""
    return f"({text})" if text else ""
