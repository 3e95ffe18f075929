"""Starts the sampler of a host, and ends it; whoever does never waits for it longer than a moment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.monitor.sampler import Options, arguments_of

MODULE: Final = "orchestrator.monitor.sampler"
_END_SECONDS: Final = 5.0


def log_path(run_dir: Path, host: int) -> Path:
    """Where the sampler of a host says what went wrong."""
    return run_dir / "logs" / f"sampler-{host:05d}.txt"


class SamplerProcess:
    """The sampler of this host."""

    def __init__(self, options: Options) -> None:
        """Start it, as a child of this thread's process: it ends when this process does.

        Raises:
            OSError: no process can be started.
        """
        path = log_path(options.run_dir, options.host)
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", MODULE, *arguments_of(replace(options, parent=os.getpid()))]
        # The tie to this process is made by the sampler itself: a function between fork and exec would copy the page
        # tables of a process that holds a model.
        with path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )

    @property
    def pid(self) -> int:
        """Of the sampler."""
        return self._process.pid

    def end(self, seconds: float = _END_SECONDS) -> int | None:
        """Let it write what it has; kill it where it takes longer. Returns its exit code, None where it hangs."""
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return None  # in the kernel, where a driver hangs: the kernel will let it go or not
