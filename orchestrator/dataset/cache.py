"""Token rows kept in the run directory, made by one process of a host and mapped by all.

`manifest.json` is renamed into place last, so a folder with a manifest is complete. It holds the
content key and the checksum of every file; a folder that disagrees is made again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from launch.home import home
from orchestrator.dataset.signs import beating
from orchestrator.dataset.stats import Stats
from orchestrator.dataset.store import TokenRows, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from orchestrator.dataset.examples import Example

SCHEMA = 1
# Their releases change templates, tokens or packing.
_LIBRARIES = ("transformers", "tokenizers", "trl")
_CHUNK_BYTES = 1 << 20
_CHUNKS_PER_BEAT = 256  # a second of a slow disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Training or eval rows as they were made."""

    examples: Sequence[Example]
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRows:
    """What one source has added to a side; its rows stand one after the other.

    Attributes:
        name: of the source.
        rows: to train on, or held out: blocks, where they are packed.
        documents: before packing.
        tokens, label_tokens: of all of them.
    """

    name: str
    rows: int
    documents: int
    tokens: int
    label_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build hands to the cache; `notes`, `chat_template` and `parts` (by side) are kept with it."""

    sides: Mapping[str, Side]
    notes: tuple[str, ...] = ()
    chat_template: str | None = None
    parts: Mapping[str, tuple[PartRows, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Memory-mapped rows by side ("train", "eval") and what was recorded with them.

    Attributes:
        chat_template: to be saved with the adapter; None if the tokenizer's own was used.
        is_rebuilt: this call made the files.
        parts: sources of each side, where there are several.
    """

    rows: Mapping[str, TokenRows]
    stats: Mapping[str, Stats]
    notes: tuple[str, ...]
    chat_template: str | None
    is_rebuilt: bool
    parts: Mapping[str, tuple[PartRows, ...]] = field(default_factory=dict)


def own_suffix() -> str:
    """What tells temporary files of this process from those of others, on any host; two of these may have one name."""
    return f".{socket.gethostname()}.{_own_home()}.{os.getpid()}"


def _own_home() -> str:
    return hashlib.sha256(home().encode()).hexdigest()[:8]


class _UnusableError(Exception):
    """Why the files on disk are not to be used."""


def digests_of(files: Sequence[Path], beat: Callable[[], None] = lambda: None) -> dict[str, str]:
    """SHA-256 of each file by its path."""
    return {str(path): _file_sha256(path, beat) for path in files}


def content_key(
    files: Sequence[Path],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, object],
    digests: Mapping[str, str] | None = None,
) -> str:
    """SHA-256 over the source bytes, the tokenizer, the options and the libraries' versions.

    `digests` of the files, where they are known.
    """
    known = digests_of(files) if digests is None else digests
    digest = hashlib.sha256(f"trainmaster-data-{SCHEMA}".encode())
    for path in files:
        digest.update(f"\0{path.name}\0{known[str(path)]}".encode())
    for part in (
        tokenizer.backend_tokenizer.to_str(),
        json.dumps(tokenizer.chat_template, sort_keys=True),
        json.dumps({k: str(v) for k, v in tokenizer.special_tokens_map.items()}, sort_keys=True),
        json.dumps(options, sort_keys=True, default=str),
        json.dumps([_version(name) for name in _LIBRARIES]),
    ):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def prepare_once(
    folder: Path,
    key: str,
    build: Callable[[], Built],
    tell: Callable[[str], None],
    digests: Mapping[str, str] | None = None,
    beat: Callable[[], None] = lambda: None,
) -> Cached:
    """The rows of `key`: from `folder` if they are there and intact, else built.

    A file lock lets one process of a host build while the others wait, then map its files. Hosts
    that share the folder without sharing locks (some network file systems) write the same bytes
    under different temporary names, so either may win.

    Args:
        folder: where the files are, such as RUN_DIR/data.
        key: from `content_key`.
        build: makes the rows; called by one process only.
        tell: takes messages for the user: waiting, or why the rows are made again.
        digests: of the source files by path, to name those that have changed.
        beat: told now and then that files are being read or written; `build` has to tell it by itself. Those that
            wait for another process do not: as long as that one beats, they are known to wait.
    """
    digests = {} if digests is None else digests
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock", tell) as is_locked:
        try:
            return _load(folder, key, digests, beat)
        except _UnusableError as reason:
            if (folder / "manifest.json").exists():
                tell(f"the token cache in {folder} is made again: {reason}")
        if is_locked:
            _remove_stale(folder)
        _save(folder, key, build(), digests, beat)
        cached = _load(folder, key, digests, beat)
    return replace(cached, is_rebuilt=True)


@contextmanager
def _locked(path: Path, tell: Callable[[str], None]) -> Iterator[bool]:
    """Hold an exclusive lock that the kernel frees if the process dies; yield whether there are locks.

    `lockf` rather than `flock`: it also works between the hosts of an NFS share.
    """
    is_locked = True
    with path.open("a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                tell(f"waiting for another process to prepare the data in {path.parent}")
                fcntl.lockf(file, fcntl.LOCK_EX)
            else:
                # A file system without locks: several processes do the same work, and each of them
                # renames complete files into place, so the result is right all the same.
                is_locked = False
                tell(f"{path.parent} has no file locks ({error.strerror}); every rank prepares the data")
        yield is_locked  # closing the file frees the lock


def _remove_stale(folder: Path) -> None:
    """Remove rows that killed processes of this host have left; those of other hosts may be at work."""
    stale = re.compile(rf"[^.]+\.{re.escape(socket.gethostname())}\.{_own_home()}\.\d+\.scratch")
    for path in folder.iterdir():
        if stale.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _save(folder: Path, key: str, built: Built, digests: Mapping[str, str], beat: Callable[[], None]) -> None:
    suffix = f"{own_suffix()}.tmp"
    files = {}
    for side, content in built.sides.items():
        temporary = folder / f"{side}.arrow{suffix}"
        write_rows(temporary, beating(content.examples, beat))
        files[side] = {"sha256": _file_sha256(temporary, beat), "rows": len(content.examples)}
        temporary.replace(folder / f"{side}.arrow")
    stats = {side: asdict(content.stats) for side, content in built.sides.items()}
    manifest = {
        "schema": SCHEMA,
        "key": key,
        "files": files,
        "stats": stats,
        "notes": list(built.notes),
        "chat_template": built.chat_template,
        "parts": {side: [asdict(part) for part in parts] for side, parts in built.parts.items()},
        "sources": dict(digests),
    }
    for name, value in (("stats.json", stats), ("manifest.json", manifest)):
        temporary = folder / f"{name}{suffix}"
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        temporary.replace(folder / name)


def _load(folder: Path, key: str, digests: Mapping[str, str], beat: Callable[[], None]) -> Cached:
    manifest = _manifest(folder)
    if manifest.get("schema") != SCHEMA or manifest.get("key") != key:
        raise _UnusableError(_changes(manifest.get("sources"), digests))
    try:
        rows = {side: _side(folder, side, entry, beat) for side, entry in manifest["files"].items()}
        return Cached(
            rows=rows,
            stats={side: Stats(**numbers) for side, numbers in manifest["stats"].items()},
            notes=tuple(manifest["notes"]),
            chat_template=manifest["chat_template"],
            is_rebuilt=False,
            parts={
                side: tuple(PartRows(**part) for part in parts) for side, parts in manifest.get("parts", {}).items()
            },
        )
    except (KeyError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
        raise _UnusableError(str(error)) from error


def _changes(before: object, digests: Mapping[str, str]) -> str:
    """Name the files that are not what they were; others may have come or gone."""
    known = before if isinstance(before, dict) else {}
    changed = [path for path, sha in digests.items() if path in known and known[path] != sha]
    if changed:
        return f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed"
    return "the data, the tokenizer or an option has changed"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = f"manifest.json cannot be read ({error})"
        raise _UnusableError(reason) from error
    if not isinstance(manifest, dict):
        reason = "manifest.json is not an object"
        raise _UnusableError(reason)
    return manifest


def _side(folder: Path, side: str, entry: Mapping[str, object], beat: Callable[[], None]) -> TokenRows:
    path = folder / f"{side}.arrow"
    if _file_sha256(path, beat) != entry["sha256"]:
        reason = f"{path.name} is damaged (its checksum differs)"
        raise _UnusableError(reason)
    return TokenRows(path)


def _file_sha256(path: Path, beat: Callable[[], None] = lambda: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in count(1):
            chunk = file.read(_CHUNK_BYTES)
            if not chunk:
                break
            digest.update(chunk)
            if number % _CHUNKS_PER_BEAT == 0:
                beat()
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
