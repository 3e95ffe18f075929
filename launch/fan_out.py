"""Starts a launch on several hosts: `python -m launch.fan_out JOB.json PYTHON SSH...`, as a Request says.

One `launch.on_host` per host, reached through SSH... HOST LINE. What they print comes out here, with the host's name
before each line of all but the first. When one fails, when this process gets a signal, or when it dies, all of them
end: each is told by the end of its input, which also reaches a host whose connection breaks.
"""

import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from launch.environment import merge
from launch.facts import ERROR_PREFIX
from launch.host_job import HostJob, HostPart, loads
from launch.on_host import READY
from launch.parent_death import die_with_parent
from launch.spec import RESERVED_NAMES

__all__ = ["forwarded", "line_of", "main"]

# Variables of the launching shell that the ranks of every host should see as well. Not those of placement: devices
# and addresses are each host's own.
_PREFIXES = (
    "NCCL_", "GLOO_", "TORCH", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "OMP_", "MKL_", "UCX_", "FI_", "TRITON_",
    "PYTORCH_", "TRAINMASTER_",
)  # fmt: skip
_NAMES = frozenset({"LD_LIBRARY_PATH", "PYTHONPATH", "XDG_CACHE_HOME"})
_BAD_INPUT = 2
_READ_BYTES = 65536
_KEPT_LINES = 20
# After the first failure the others' launchers notice by themselves, and say more than we could.
_SETTLE_SECONDS = 5.0
_GRACE_SECONDS = 140.0
_SILENT_SECONDS = 20.0  # for a connection that has not come about when everybody else has ended


@dataclass(kw_only=True)
class _Host:
    """A host at work."""

    name: str
    process: subprocess.Popen[bytes]
    way: tuple[str, ...]
    """What reaches it, without the line for its shell."""
    shows_name: bool
    is_ready: bool = False
    rest: bytes = b""
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))


def main(arguments: Sequence[str]) -> int:
    """Run all hosts to the end; returns the first exit code that is not 0."""
    path, python, *ssh = arguments
    job = loads(Path(path).read_text(encoding="utf-8"))
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: signals.append(got))
    hosts: list[_Host] = []
    try:
        for at, part in enumerate(job.parts):
            hosts.append(_started(part, at, path, python, ssh))
            _give(hosts[-1], forwarded(job, part, os.environ))
        return _watch(hosts, signals)
    finally:
        for host in hosts:
            _let_go(host)
            if host.process.poll() is None:
                host.process.kill()
                host.process.wait()


def line_of(path: str, at: int, python: str) -> str:
    """The line for the shell of a host. `exec`, so that no shell stands between the connection and us."""
    return f"exec {shlex.quote(python)} -P -u -m launch.on_host {shlex.quote(path)} {at}"


def forwarded(job: HostJob, part: HostPart, environ: Mapping[str, str]) -> dict[str, str]:
    """What of the launching user's variables a host gets: those that replace ours, and those of the libraries."""
    ours = {**dict(job.env), **dict(part.env)}
    merged, _ = merge(ours.items(), {name: value for name, value in environ.items() if name in ours})
    chosen = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or (name.startswith(_PREFIXES) and name not in RESERVED_NAMES)
    }
    return {**chosen, **{name: value for name, value in merged.items() if name not in RESERVED_NAMES}}


def _started(part: HostPart, at: int, path: str, python: str, ssh: Sequence[str]) -> _Host:
    is_here = part.name in {"", "localhost"}
    line = line_of(path, at, python)
    way = ("/bin/sh", "-c") if is_here else (*ssh, part.name)
    process = subprocess.Popen(  # noqa: S603 - the user's own launch
        (*way, line),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # The terminal's Ctrl-C reaches the launching side alone, which passes it on.
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - two system calls, no lock
    )
    return _Host(name=part.name or "localhost", process=process, way=way, shows_name=at > 0)


def _give(host: _Host, variables: Mapping[str, str]) -> None:
    """Hand over the variables on the input: a command line could be read by everybody on that host."""
    stream = host.process.stdin
    if stream is not None:
        with suppress(OSError):
            stream.write(json.dumps(variables).encode() + b"\n")
            stream.flush()


def _let_go(host: _Host) -> None:
    if host.process.stdin is not None:
        with suppress(OSError):
            host.process.stdin.close()


def _watch(hosts: Sequence[_Host], signals: Sequence[int]) -> int:
    selector = selectors.DefaultSelector()
    for host in hosts:
        if host.process.stdout is not None:
            selector.register(host.process.stdout, selectors.EVENT_READ, host)
    code, ends_at, silent_until, told = 0, float("inf"), float("inf"), False
    while selector.get_map() or any(host.process.poll() is None for host in hosts):
        for key, _ in selector.select(0.1):
            chunk = os.read(key.fd, _READ_BYTES)
            if not chunk:
                selector.unregister(key.fileobj)
            _show(key.data, chunk)
        failed = next((host for host in hosts if host.process.poll()), None)
        if failed is not None and code == 0:
            code = failed.process.returncode
            code = code if code > 0 else 128 - code
            # With that code a host has said itself what is wrong, or was never reached.
            is_told = code == _BAD_INPUT or not failed.is_ready
            ends_at = time.monotonic() + (0 if is_told else _SETTLE_SECONDS)
        if (signals or time.monotonic() >= ends_at) and not told:
            told, ends_at = True, time.monotonic() + _GRACE_SECONDS
            silent_until = time.monotonic() + (0 if signals else _SILENT_SECONDS)
            for host in hosts:
                _let_go(host)
        if told and time.monotonic() > (min(ends_at, silent_until) if _is_silent(hosts) else ends_at):
            break
    return _BAD_INPUT if _report_unreached(hosts, was_stopped=bool(signals)) else code


def _is_silent(hosts: Sequence[_Host]) -> bool:
    """Whether only hosts are left from which no word has come: a connection that waits, perhaps for ever."""
    return not any(host.is_ready and host.process.poll() is None for host in hosts)


def _show(host: _Host, chunk: bytes) -> None:
    *lines, host.rest = (host.rest + chunk).split(b"\n")
    if not chunk and host.rest:
        lines, host.rest = [*lines, host.rest], b""
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r")
        if line == READY:
            host.is_ready = True
            continue
        host.said.append(line)
        if host.is_ready:
            is_for_us = line.startswith(ERROR_PREFIX)
            print(line if is_for_us or not host.shows_name else f"[{host.name}] {line}", flush=True)


def _report_unreached(hosts: Sequence[_Host], *, was_stopped: bool) -> bool:
    """Name the hosts where nothing of ours ever ran, with what the connection said."""
    problems = [
        {
            "where": f"host {host.name}",
            "found": f"nothing could be started there: {' / '.join(filter(None, host.said)) or 'no word from it'} "
            f"({_end(host)})",
            "remedy": f"Check `{shlex.join(host.way)} true` and that this environment lies under the same path there.",
        }
        for host in hosts
        if not host.is_ready and (host.process.returncode or (host.process.returncode is None and not was_stopped))
    ]
    if problems:
        print(ERROR_PREFIX + json.dumps({"exit_code": _BAD_INPUT, "problems": problems}), flush=True)
    return bool(problems)


def _end(host: _Host) -> str:
    code = host.process.returncode
    return "the connection still waits" if code is None else f"exit code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
