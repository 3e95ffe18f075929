"""The heartbeat of a rank: where it stands, in a file that others read while the rank may hang.

A rank writes it from its main thread, so it stops with the work and not with the process: a thread of its own would go
on while the others wait. Whoever reads it needs nothing of the rank, not its interpreter lock either.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from launch.home import home
from launch.spec import ATTEMPT_MARK

FOLDER: Final = "beats"
_LINE_BYTES: Final = 512  # one write of a size that never changes: a reader sees the old line or the new one
DUMP_SIGNAL: Final = signal.SIGUSR2
ENDED: Final = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Where a rank stands.

    Attributes:
        attempt: of the run.
        pid, host: where the process is.
        home: of the process, within which its number means something; empty in a beat of an older version.
        phase: `starting`, `loading`, `evaluating`, `training`, `saving`, `finishing` or `ended`.
        step, micro: optimizer steps done, and micro-steps since.
        count: of beats; progress is that it changes.
        time: wall clock of the rank, for people; hosts' clocks differ.
        code: with which a rank that failed by itself ends, told right before; None for others.
    """

    attempt: int
    rank: int
    pid: int
    host: str
    phase: str
    step: int = 0
    micro: int = 0
    count: int = 0
    time: float = 0.0
    home: str = ""
    code: int | None = None

    @property
    def is_here(self) -> bool:
        """Whether a process of its number, looked up here, is the one that beat."""
        return self.home == home() if self.home else self.host == os.uname().nodename


def beat_path(run_dir: Path, rank: int) -> Path:
    """Where the beats of a rank stand."""
    return run_dir / FOLDER / f"rank-{rank:05d}.json"


def stacks_path(run_dir: Path, attempt: int, rank: int) -> Path:
    """Where a rank puts its stacks when it is asked to."""
    return run_dir / "logs" / f"stacks-{attempt}-{rank}.txt"


class Heart:
    """Writes the beats of one rank. A folder that cannot be written is no reason to end a training."""

    def __init__(self, run_dir: Path, rank: int, attempt: int, *, is_shared: bool = False) -> None:
        """Open the file, beat once, and dump all stacks whenever `DUMP_SIGNAL` comes.

        Where the folder is shared by hosts, beats are sent to its server at least once a second: NFS alone would keep
        them for half a minute.
        """
        self._is_shared, self._sent_at = is_shared, 0.0
        host = os.uname().nodename
        self._beat = Beat(attempt=attempt, rank=rank, pid=os.getpid(), host=host, home=home(), phase="starting")
        self._file = -1
        try:
            path = beat_path(run_dir, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            stacks = stacks_path(run_dir, attempt, rank)
            stacks.parent.mkdir(parents=True, exist_ok=True)
            # In C, in the signal handler itself: it needs no interpreter lock.
            self._stacks = stacks.open("a", encoding="utf-8")
            faulthandler.register(DUMP_SIGNAL, self._stacks, all_threads=True)
        except OSError:
            pass
        self.beat()

    @property
    def now(self) -> Beat:
        """The last beat: where the rank stands."""
        return self._beat

    @property
    def attempt(self) -> int:
        """Number of this start."""
        return self._beat.attempt

    def beat(self, phase: str = "", *, step: int | None = None, micro: int | None = None) -> None:
        """Say that there is progress; what is left out stays as it was, and a step begins with no micro-step."""
        last = self._beat
        self._beat = replace(
            last,
            phase=phase or last.phase,
            step=last.step if step is None else step,
            micro=(0 if step is not None else last.micro) if micro is None else micro,
            count=last.count + 1,
            time=time.time(),
        )
        if self._file >= 0:
            line = json.dumps(asdict(self._beat), separators=(",", ":"))
            try:
                os.pwrite(self._file, line.encode()[: _LINE_BYTES - 1].ljust(_LINE_BYTES - 1) + b"\n", 0)
                is_new = last.phase != self._beat.phase or self._beat.code is not None
                if self._is_shared and (is_new or time.monotonic() - self._sent_at >= 1):
                    os.fdatasync(self._file)
                    self._sent_at = time.monotonic()
            except OSError:
                return  # the disk is full: checkpoints will say so

    def fail(self, code: int) -> int:
        """Say that this rank now ends by itself, and with which exit code; returns the code.

        Its launcher tells it only when all other ranks have ended, which may be never.
        """
        self._beat = replace(self._beat, code=code)
        self.beat()
        return code


def read_beats(run_dir: Path, attempt: int) -> tuple[Beat, ...]:
    """Return the newest beat of each rank of an attempt, by rank; those of others and damaged ones are left out."""
    found = []
    for path in sorted((run_dir / FOLDER).glob("rank-*.json")):
        try:
            body: Any = json.loads(path.read_text(encoding="utf-8"))
            beat = Beat(**body)
        except (OSError, ValueError, TypeError):
            continue
        if beat.attempt == attempt:
            found.append(beat)
    return tuple(sorted(found, key=lambda beat: beat.rank))


def attempt_of(run_dir: Path, environ: Mapping[str, str] = os.environ) -> int:
    """Number of the attempt that runs, as the launching side tells it; for ranks started by hand, as the plans do.

    Another host may not see the newest plan yet: NFS shows a folder as it was some seconds ago.
    """
    told = environ.get(ATTEMPT_MARK, "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return max(1, len(list(run_dir.glob("plan.[0-9]*.json"))))
