"""Runs a Request: the only part of this package that starts processes."""

import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from launch.environment import Override, merge
from launch.errors import LaunchError
from launch.parent_death import die_with_parent
from launch.request import Request
from launch.spec import LATE_MARK, RUN_MARK

__all__ = ["Outcome", "caught_signals", "execute", "free_port", "write_files"]

_POLL_SECONDS = 0.1
# What a launcher's own helpers (shared-memory manager, compile workers) get to follow it before they are killed.
_SETTLE_SECONDS = 1.0
# A process in an uninterruptible system call (a wedged driver) outlives SIGKILL; do not wait for it forever.
_KILL_SECONDS = 10.0
_READ_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended."""

    returncode: int
    """Exit code of the launcher; negative: the signal that ended it."""
    log_path: str
    stopped_by_signal: int | None
    """First SIGINT or SIGTERM that this process received meanwhile and passed on."""
    leftovers: tuple[str, ...]
    """'pid command' of each process that outlived its launcher and had to be killed. With returncode 0 and no
    signal, a sign that the launcher itself did not notice a failure."""
    overrides: tuple[Override, ...]
    """Variables that both the request and the user set."""
    ended_because: str = ""
    """What `on_poll` said when it had the command ended."""


def execute(
    request: Request,
    *,
    user_env: Mapping[str, str],
    on_line: Callable[[str], None],
    grace_seconds: float = 10.0,
    on_stop: Callable[[], None] | None = None,
    on_poll: Callable[[], str | None] | None = None,
) -> Outcome:
    """Write the request's files, run its command to the end and leave no process behind.

    Only what bears LATE_MARK may live on for a while.

    1. Output (stdout and stderr together) goes to `log_path`, and line by line to `on_line`.
    2. SIGINT and SIGTERM received here call `on_stop`, which asks the ranks to end by themselves; after
       `grace_seconds`, at a second signal, or at once without `on_stop`, the command's process group gets SIGTERM;
       what still lives after `grace_seconds` more, or at another signal, is killed. (Only in the main thread can
       signals be received.)
    3. `on_poll` is called about ten times a second while the command runs; once it returns a reason, the command and
       all it started are killed.
    4. If this process dies, the kernel sends the command SIGTERM; ranks follow by `die_with_parent`.

    Raises LaunchError if the command cannot be started.
    """
    env, overrides = merge(request.env, user_env)
    mark = env.setdefault(RUN_MARK, request.cwd)
    env.pop(LATE_MARK, None)
    write_files(request)
    with Path(request.log_path).open("ab", buffering=0) as log, caught_signals() as caught:
        _report(overrides, log, on_line)
        strangers = frozenset(_marked(mark))
        child = _start(request, env)
        family = _Family(child=child, mark=mark, strangers=strangers)
        output = _Output(child, log, on_line)
        reason = ""
        try:
            reason = _watch(family, output, caught, _Stop(grace_seconds, on_stop), on_poll or (lambda: None))
        finally:
            # Also when on_line raised: nothing may survive this call.
            leftovers = _end_all(family)
        output.drain()
    return Outcome(
        returncode=_returncode(child),
        log_path=request.log_path,
        stopped_by_signal=caught[0] if caught else None,
        leftovers=leftovers,
        overrides=overrides,
        ended_because=reason,
    )


def free_port(host: str = "127.0.0.1") -> int:
    """Find a TCP port that is free now. Nothing keeps it free: use it soon."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


class _Output:
    """The command's combined output: raw bytes to the log, whole lines to `on_line`."""

    def __init__(self, child: subprocess.Popen[bytes], log: IO[bytes], on_line: Callable[[str], None]) -> None:
        self._log = log
        self._on_line = on_line
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        if child.stdout is not None:
            self._selector.register(child.stdout, selectors.EVENT_READ)

    def read(self, timeout_seconds: float = _POLL_SECONDS) -> bool:
        """Wait for output and hand it on; False if there was none."""
        chunk = b""
        for key, _ in self._selector.select(timeout_seconds):
            chunk = os.read(key.fd, _READ_BYTES)
            if not chunk:
                # At the end of a stream select would return at once, for ever.
                self._selector.unregister(key.fileobj)
        with suppress(OSError):  # a full disk loses lines of the log, not the run
            self._log.write(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip("\r"))
        return bool(chunk)

    def drain(self) -> None:
        """Hand on what is left, with a last line that has no newline, and close."""
        while self.read(timeout_seconds=0):
            pass
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))
        self._selector.close()


def _report(overrides: tuple[Override, ...], log: IO[bytes], on_line: Callable[[str], None]) -> None:
    for override in overrides:
        log.write(f"{override}\n".encode())
        on_line(str(override))


def write_files(request: Request) -> None:
    """Write the files of a request and make its folders, each file whole or not at all."""
    Path(request.cwd).mkdir(parents=True, exist_ok=True)
    Path(request.log_path).parent.mkdir(parents=True, exist_ok=True)
    for file in request.files:
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A run killed here must find its former plan again.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(file.text)
        temporary.chmod(file.mode)
        temporary.replace(path)


@contextmanager
def caught_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT and SIGTERM in a list instead of obeying them; restore the handlers at the end."""
    caught: list[signal.Signals] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        caught.append(signal.Signals(number))

    # Python allows handlers in the main thread only; elsewhere the caller's own handlers stay in charge.
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(request: Request, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own: the terminal's Ctrl-C then reaches us alone, and we pass it on."""
    # SIGTERM, so that a launcher ends its ranks itself, also those that have not called die_with_parent (yet).
    tie = partial(die_with_parent, signal_number=signal.SIGTERM, expected_parent_pid=os.getpid())
    try:
        # preexec_fn is the one way to set a parent-death signal without a program in between, which the dry run
        # would not show; it makes two system calls and takes no lock.
        return subprocess.Popen(  # noqa: S603 - the argv is the user's own launch
            request.argv,
            env=env,
            cwd=request.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie,  # noqa: PLW1509
        )
    except OSError as error:
        raise LaunchError(
            asked=f"start of {request.argv[0]}",
            found=str(error),
            remedy="check that this program exists and may be executed here",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The command and whatever it started, directly or not."""

    child: subprocess.Popen[bytes]
    mark: str
    strangers: frozenset[psutil.Process]
    """Marked before the start: this process itself may run inside the same run, as in a batch job."""

    def relatives(self) -> list[psutil.Process]:
        """Find the living marked processes but `child`."""
        # `child` is left to Popen: whoever else waits for it takes its exit code away.
        return [found for found in _marked(self.mark) if found not in self.strangers and found.pid != self.child.pid]

    def descendants(self) -> list[psutil.Process]:
        """Find the relatives, and those below a living `child` that dropped the mark."""
        try:
            below = psutil.Process(self.child.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        return list({*(found for found in below if not _is_late(found)), *self.relatives()})


class _Stop:
    """The steps from a signal to the end: ask, then SIGTERM, then give up; each has its time."""

    def __init__(self, grace_seconds: float, ask: Callable[[], None] | None) -> None:
        self._grace_seconds = grace_seconds
        self._ask = ask
        self._deadline: float | None = None
        self._num_seen = 0
        self._is_terminated = False
        self.is_over = False

    @property
    def has_begun(self) -> bool:
        return self._deadline is not None

    def advance(self, child: subprocess.Popen[bytes], num_caught: int) -> None:
        """Take a step for each signal that came, and one when the time of the last step is up."""
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        num_steps = num_caught - self._num_seen + is_late
        self._num_seen = num_caught
        for _ in range(num_steps):
            self._step(child)
            self._deadline = time.monotonic() + self._grace_seconds

    def _step(self, child: subprocess.Popen[bytes]) -> None:
        if self._ask is not None:
            self._ask()
            self._ask = None
        elif not self._is_terminated:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
            self._is_terminated = True
        else:
            self.is_over = True


def _watch(
    family: _Family,
    output: _Output,
    caught: list[signal.Signals],
    stop: _Stop,
    on_poll: Callable[[], str | None],
) -> str:
    """Pass output on until the command has ended or, once a signal came, until its time is up.

    Returns why it must be ended, where `on_poll` says so.
    """
    child = family.child
    # After a signal the launcher may end before its ranks (their last checkpoint): these have the same grace.
    while child.poll() is None or (stop.has_begun and family.relatives()):
        output.read()
        stop.advance(child, len(caught))
        if stop.is_over:
            return ""
        if reason := on_poll():
            return reason
    return ""


def _end_all(family: _Family) -> tuple[str, ...]:
    """Kill the command if it still runs, and everything it left behind; say what was killed."""
    child = family.child
    if child.poll() is None:
        doomed = family.descendants()
        child.kill()
    else:
        _, doomed = psutil.wait_procs(family.relatives(), timeout=_SETTLE_SECONDS)
    killed: dict[psutil.Process, str] = {}
    deadline = time.monotonic() + _KILL_SECONDS
    while doomed and time.monotonic() < deadline:
        for process in doomed:
            killed.setdefault(process, _describe(process))
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(doomed, timeout=_SETTLE_SECONDS)
        # Again: a process may have forked before it was killed.
        doomed = family.relatives()
    _returncode(child)
    return tuple(killed.values())


def _marked(mark: str) -> list[psutil.Process]:
    """Find the living processes of a run, by the environment they started with.

    Neither session nor parent would do: torchrun's ranks have sessions of their own, and orphans a new parent.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            # Another user's, a kernel thread, or gone meanwhile.
            continue
    return found


def _is_late(process: psutil.Process) -> bool:
    try:
        return LATE_MARK in process.environ()
    except (psutil.Error, OSError):
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{process.pid}"


def _returncode(child: subprocess.Popen[bytes]) -> int:
    """Wait for a command that has ended or was killed."""
    try:
        return child.wait(timeout=_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        # Killed, but stuck in the kernel.
        return -signal.SIGKILL
