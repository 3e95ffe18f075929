"""Starts the process that passes a run on to its trackers, and ends it; a run waits for it no longer than a while."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from launch.spec import HOST_MARK, LATE_MARK, RUN_MARK

MODULE: Final = "orchestrator.trackers.follow"
_SAID_SECONDS: Final = 3.0
_END_SECONDS: Final = 90.0


def log_path(run_dir: Path) -> Path:
    """Where the libraries of the trackers say what they say."""
    return run_dir / "logs" / "trackers.txt"


def names_of(report_to: Sequence[str]) -> tuple[str, ...]:
    """The trackers that are asked for, each once."""
    return tuple(dict.fromkeys(name for name in report_to if name != "none"))


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Without the marks of a rank: what ends the ranks shall leave it the time to say how the run ended."""
    kept = {name: value for name, value in ours.items() if name not in {RUN_MARK, HOST_MARK}}
    return {**kept, LATE_MARK: "1", "PYTHONSAFEPATH": "1"}


class TrackerProcess:
    """The trackers of a run, on the host of rank 0."""

    def __init__(self, run_dir: Path, names: Sequence[str], say: Callable[[str], None]) -> None:
        """Start the process.

        Args:
            run_dir: of the run, with its plan.
            names: of the trackers, at least one.
            say: where its lines go, such as warnings.

        Raises:
            OSError: no process can be started.
        """
        self._say = say
        path = log_path(run_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", MODULE, str(run_dir), *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(os.environ),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True, name="trackers")
        self._reader.start()

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._say(line.decode(errors="replace").rstrip("\n"))

    def end(self, seconds: float = _END_SECONDS) -> None:
        """Let it send what is left; one that takes too long is ended."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(min(_SAID_SECONDS, seconds))
        except subprocess.TimeoutExpired:
            self._say("trackers: sending what is left")
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._say(f"warning: the trackers took longer than {seconds:.0f} s to end, and were left")
        self._reader.join(1.0)
