"""Whether hosts that were lost are there again: asked on them, beside the run, which never waits for the answer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from launch.parent_death import die_with_parent

_EVERY_SECONDS: Final = 10.0
_LONGEST_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 10.0
# It must reach the first host's store from there: a host that only answers ssh may be cut off from the others.
_REACHES: Final = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


@dataclass(slots=True, kw_only=True)
class HostCheck:
    """Asks one lost host, again and again; twice in a row it must answer before it counts as back.

    Attributes:
        way: words that run a command there, as ssh and its name.
        python: interpreter, under the same path there.
        first: address of the first host.
        failures: times that it came back in vain: each doubles the pause before the next question.
    """

    way: tuple[str, ...]
    python: str
    first: str
    failures: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _asked_at: float = 0.0
    _next_at: float = field(default_factory=lambda: time.monotonic() + _EVERY_SECONDS)
    _answers: int = 0

    def poll(self, port: int) -> bool:
        """Go on asking; returns whether the host is back.

        Args:
            port: that the first host listens on while the run goes on.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._next_at and port:
                self._ask(port, now)
            return False
        code = self._process.poll()
        if code is None and now - self._asked_at < _ANSWER_SECONDS:
            return False
        self.end()
        self._answers = self._answers + 1 if code == 0 else 0
        self._next_at = now + min(_LONGEST_SECONDS, _EVERY_SECONDS * 2.0**self.failures)
        return self._answers > 1

    def end(self) -> None:
        """Leave no process behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(self, port: int, now: float) -> None:
        words: Sequence[str] = (self.python, "-P", "-c", f"'{_REACHES}'", self.first, str(port))
        self._asked_at = now
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own way to the host
                (*self.way, " ".join(words)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - two system calls, no lock
            )
        except OSError:
            self._next_at = now + _LONGEST_SECONDS
