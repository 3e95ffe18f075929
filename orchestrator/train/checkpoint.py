"""The checkpoints of a run: gathered adapters and moments, independent of engine and world size.

    checkpoints/
        step-00000050/            whole, read back before it got this name (`checkpoint_files` has its files)
        incomplete-step-00000100/ being written, or removed; of no use after a crash
        replaced-step-00000050/   an older one of the same step, until the newer one has its name
        damaged-step-00000040/    not to be used, kept for a person to look at; the newest two of them

At every moment of a write the newest `keep` that were whole before it are there, or that many with the new one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.errors import Problem, RunStopped
from orchestrator.train.checkpoint_files import (
    Checkpoint,
    DamagedError,
    check_sizes,
    check_whole,
    read_files,
    sync,
    write_files,
)

__all__ = ["Checkpoint", "CheckpointStore", "DamagedError", "Skipped", "WriteError", "Written"]

_NAME = re.compile(r"^(?:replaced-)?step-(\d+)$")
_TEMPORARY = "incomplete-"
_REPLACED = "replaced-"
_DAMAGED = "damaged-"
_KEEP_DAMAGED = 2
_OS_ERROR = re.compile(r"os error (\d+)")  # in the text of safetensors' own error
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_KINDS: Final = {**dict.fromkeys(_FULL, "disk_full"), errno.EFBIG: "disk_full", errno.EROFS: "disk_read_only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A checkpoint that is not used.

    Attributes:
        path: where it was found.
        why: what is wrong with it.
        kept_as: its new name; the old one where it could not be moved, or may be whole.
    """

    path: Path
    why: str
    kept_as: Path

    def __str__(self) -> str:
        """One line for the console."""
        if self.path.name.startswith(_TEMPORARY):
            return f"ignoring incomplete checkpoint {self.path.name}: {self.why}"
        kept = "" if self.kept_as == self.path else f" (kept as {self.kept_as.name})"
        return f"skipping damaged checkpoint {self.path.name}: {self.why}{kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A checkpoint that was written and read back.

    Attributes:
        nbytes: of its files.
        seconds: to write, bring to the disk, read back and name it.
        removed: names of those that made room for it: beyond `keep`, and old damaged ones.
    """

    step: int
    path: Path
    nbytes: int
    seconds: float
    removed: tuple[str, ...]


class WriteError(RunStopped):
    """A checkpoint could not be written; those before it stay as they are. Ends a run, if it must, as resumable.

    Attributes:
        kind: disk_full, disk_read_only or disk_failed.
        reason: what the system says.
        last_good: the newest whole checkpoint, if there is one.
        kept: the same in words.
    """

    def __init__(self, path: Path, kind: str, reason: str, last_good: Path | None) -> None:
        """Say what failed and what is left."""
        self.kind, self.reason, self.last_good = kind, reason, last_good
        self.kept = "No checkpoint yet" if last_good is None else f"The last good checkpoint is kept: {last_good}"
        remedy = f"Free space or change the permissions, then run again with resume=true. {self.kept}"
        super().__init__(
            Problem(where=str(path), found=f"could not write the checkpoint: {reason}", remedy=remedy),
        )


class CheckpointStore:
    """Reads and writes the checkpoints of one run directory (rank 0 writes, all may read)."""

    def __init__(self, root: Path, keep: int) -> None:
        """Use the folder `root`, and keep this many newest checkpoints."""
        self._root = root
        self._keep = keep

    def list_complete(self) -> tuple[list[Path], list[Skipped]]:
        """Return the checkpoints whose files are there in full, oldest first, and those that are not to be used."""
        whole: dict[int, Path] = {}
        skipped: list[Skipped] = []
        # Sorted, so that one of the same step that was replaced comes first and gives way.
        for path in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            match = _NAME.match(path.name)
            if match is None:
                if path.name.startswith(_TEMPORARY):
                    skipped.append(Skipped(path=path, why="it was being written when the run ended", kept_as=path))
                continue
            try:
                check_sizes(path)
            except DamagedError as error:
                skipped.append(Skipped(path=path, why=str(error), kept_as=_new_name(path, error)))
            else:
                whole[int(match.group(1))] = path
        return [whole[step] for step in sorted(whole)], skipped

    def newest_whole(self, leave_out: Collection[Path] = ()) -> tuple[Path | None, list[Skipped]]:
        """Find the newest checkpoint that matches its checksums, and move damaged ones out of the way.

        Args:
            leave_out: not to be looked at.

        Returns:
            The checkpoint, or None if there is none, and what was skipped.
        """
        listed, skipped = self.list_complete()
        newest: Path | None = None
        for path in reversed([path for path in listed if path not in leave_out]):
            try:
                check_whole(path)
            except DamagedError as error:
                skipped.append(Skipped(path=path, why=str(error), kept_as=_new_name(path, error)))
            else:
                newest = path
                break
        return newest, [_set_aside(item) for item in skipped if item.path not in leave_out]

    def read(self, path: Path) -> Checkpoint:
        """Read a checkpoint.

        Raises:
            DamagedError: this process cannot read it.
        """
        return read_files(path)

    def write(self, checkpoint: Checkpoint) -> Written:
        """Write one checkpoint, read it back, and drop the oldest beyond `keep`.

        A full disk is tried again when those before the newest would make room enough.

        Raises:
            WriteError: when the disk refuses; earlier checkpoints stay as they are.
        """
        began = time.perf_counter()
        final = self._root / f"step-{checkpoint.step:08d}"
        made_room: list[str] = []
        try:
            try:
                nbytes = self._write(final, checkpoint)
            except Exception as error:
                made_room = self._make_room(error, checkpoint.nbytes)
                if not made_room:
                    raise
                nbytes = self._write(final, checkpoint)
        except Exception as error:
            # safetensors reports a full disk as an error type of its own, hence no narrower clause
            kind = _KINDS.get(_errno(error), "disk_failed")
            raise WriteError(final, kind, _reason(error, self._root), self.last_good()) from error
        removed = (*made_room, *self._drop_old())
        seconds = time.perf_counter() - began
        return Written(step=checkpoint.step, path=final, nbytes=nbytes, seconds=seconds, removed=removed)

    def last_good(self) -> Path | None:
        """Return the newest checkpoint whose files are there in full."""
        whole, _ = self.list_complete()
        return whole[-1] if whole else None

    def _write(self, final: Path, checkpoint: Checkpoint) -> int:
        temporary = self._root / f"{_TEMPORARY}{final.name}"
        self._root.mkdir(parents=True, exist_ok=True)
        self._clear(_TEMPORARY)
        try:
            temporary.mkdir()
            nbytes = write_files(temporary, checkpoint)
            if final.exists():
                replaced = self._root / f"{_REPLACED}{final.name}"
                self._remove(replaced)
                final.rename(replaced)
            temporary.rename(final)
            sync(self._root)
        except Exception:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return nbytes

    def _drop_old(self) -> list[str]:
        whole, _ = self.list_complete()
        removed = [path.name for path in whole[: -self._keep] if self._remove(path)]
        damaged = sorted(self._root.glob(f"{_DAMAGED}*"), key=lambda path: (path.stat().st_mtime, path.name))
        removed += [path.name for path in damaged[:-_KEEP_DAMAGED] if self._remove(path)]
        for path in self._root.glob(f"{_REPLACED}*"):
            if path not in whole:
                self._remove(path)
        self._clear(_TEMPORARY)
        return removed

    def _make_room(self, error: Exception, needed_bytes: int) -> list[str]:
        """Remove our own oldest checkpoints but one, if the disk is full and that is enough; return their names."""
        older = self.list_complete()[0]
        if _errno(error) not in _FULL or len(older) < 2:  # noqa: PLR2004 - one is always kept
            return []
        try:
            check_whole(older[-1])
        except DamagedError:
            return []
        found = sum(file.stat().st_size for path in older[:-1] for file in path.iterdir())
        free = shutil.disk_usage(self._root).free
        if _errno(error) == errno.ENOSPC and free + found < needed_bytes:
            return []
        return [path.name for path in older[:-1] if self._remove(path)]

    def _remove(self, path: Path) -> bool:
        """Remove a checkpoint; a crash halfway leaves none that looks damaged."""
        try:
            path = path.rename(self._root / f"{_TEMPORARY}{path.name}")
        except OSError:
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True

    def _clear(self, prefix: str) -> None:
        for path in self._root.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)


def _new_name(path: Path, error: DamagedError) -> Path:
    """Name a damaged one anew; it stays where it is if the system refused to read it, and may do so no longer."""
    if error.is_read_error:
        return path
    names = (f"{_DAMAGED}{path.name}{suffix}" for suffix in ("", *(f".{number}" for number in range(2, 1000))))
    return next((path.with_name(name) for name in names if not path.with_name(name).exists()), path)


def _set_aside(item: Skipped) -> Skipped:
    if item.kept_as == item.path:
        return item
    try:
        item.path.rename(item.kept_as)
        os.utime(item.kept_as)  # the newest are kept
    except OSError:  # a file system that is read only
        return Skipped(path=item.path, why=item.why, kept_as=item.path)
    return item


def _errno(error: Exception) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    match = _OS_ERROR.search(str(error))
    return int(match.group(1)) if match else 0


def _reason(error: Exception, root: Path) -> str:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    try:
        free_bytes = shutil.disk_usage(root if root.is_dir() else root.parent).free
    except OSError:
        return cause
    return f"{cause} ({free_bytes / 2**20:.1f} MiB free)"
