"""One host's part of a launch on several: `python -m launch.on_host JOB.json [NUMBER]`.

It stands between what reaches the host (ssh, srun) and the launcher that starts ranks there (torchrun, deepspeed):
it meets the other hosts, fills in where the ranks meet, and leaves no process behind. With NUMBER it was started
through ssh: the first line of its input holds variables, and the end of the input means that the launching side is
gone or wants it to end. Without, it is a task of srun, which ends it by signals; its number is that of the node, or of
the part that names the node.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil

from launch.environment import merge
from launch.errors import LaunchError
from launch.facts import ERROR_PREFIX, Fault, address_of, interface_of, read_facts
from launch.host_job import ADDRESS, LOCAL, PORT, HostJob, candidate_ports, loads
from launch.meeting import Verdict, host_and_wait, join
from launch.parent_death import die_with_parent
from launch.spec import HOST_MARK, RUN_MARK

__all__ = ["HOST_MARK", "READY", "main"]

READY = "trainmaster-host: ready"
"""First line of output: the host was reached and has a working interpreter."""
_BAD_INPUT = 2
_GRACE_SECONDS = 130.0  # a little more than torchrun gives its ranks
_LOOKUP_SECONDS = 10.0
_KILL_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    """Run this host's part to its end; returns the launcher's exit code."""
    die_with_parent(signal_number=signal.SIGTERM)
    is_tied = len(arguments) > 1
    stop = threading.Event()
    if is_tied:
        print(READY, flush=True)
        os.environ.update(json.loads(sys.stdin.readline() or "{}"))
        threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    index = int(arguments[1]) if is_tied else int(os.environ.get("SLURM_NODEID", "0"))
    try:
        return _run(Path(arguments[0]), index, stop)
    except LaunchError as error:
        _report((Fault(where=error.asked, found=error.found, remedy=error.remedy),))
        return _BAD_INPUT


def _run(path: Path, index: int, stop: threading.Event) -> int:
    here = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    try:
        job = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        found = f"host {here} does not see it ({error.strerror})"
        _report((Fault(where=str(path), found=found, remedy="Give a run_dir on a file system that all hosts share."),))
        return _BAD_INPUT
    part = _part_of(job, index, here)
    if part is None:
        print(f"note: node {here} is not needed by the plan", flush=True)
        return 0
    index = part
    if len(job.parts) == 1:
        port = job.ports[0] if job.ports else _free_port()
        return _start(job, index, Verdict(address="127.0.0.1", port=port), "127.0.0.1", stop)
    met = threading.Event()
    threading.Thread(target=_leave_early, args=(stop, met), daemon=True).start()
    names = _names(job)
    facts = read_facts(names[index], must_see=job.must_see, packages=job.packages)
    preferred = next(filter(None, map(address_of, job.interfaces)), None) or ""
    ports = job.ports or candidate_ports(int(os.environ.get("SLURM_JOB_ID", "0")))
    if index == 0:
        verdict = host_and_wait(job, ports, facts, preferred, names)
        local = verdict.address
        for note in verdict.notes:
            print(f"note: {note}", flush=True)
        _report(verdict.faults)
    else:
        verdict, local = join(job, index, ports, facts, names)
        if not verdict.port:  # the first host has told nothing, so it cannot report this itself
            _report(verdict.faults)
    met.set()
    if verdict.faults:
        return _BAD_INPUT
    return _start(job, index, verdict, local, stop)


def _part_of(job: HostJob, number: int, here: str) -> int | None:
    """The number of this host's part; None where it has none, as on nodes that a new plan leaves out."""
    nodes = [part.node for part in job.parts]
    if all(nodes):
        return nodes.index(here) if here in nodes else None
    return number if number < len(nodes) else None


def _free_port() -> int:
    """A port of the loopback; torchrun's own choice, port 0, would not reach the ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _leave_early(stop: threading.Event, met: threading.Event) -> None:
    """End while the hosts still meet: nothing was started that would have to be ended first."""
    stop.wait()
    if not met.is_set():
        os._exit(128 + signal.SIGTERM)


def _start(job: HostJob, index: int, verdict: Verdict, local: str, stop: threading.Event) -> int:
    part = job.parts[index]
    known = {ADDRESS: verdict.address, PORT: str(verdict.port), LOCAL: local}
    argv = tuple(known.get(word, _filled(word, known)) for word in part.argv)
    # Gloo would take the address of the host's own name, which is often one that only the host itself reaches. What was
    # found here counts more than what the launching host supposed of this one.
    interface = interface_of(local) if len(job.parts) > 1 else None
    found = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    mark = f"{job.name} {index}"
    ours = {**dict(job.env), **dict(part.env), **found, HOST_MARK: mark}
    env, overrides = merge(ours.items(), os.environ)
    for override in overrides:
        print(override, flush=True)
    _end_earlier(job)
    child = subprocess.Popen(  # noqa: S603 - the argv is the user's own launch
        argv,
        env=env,
        cwd=job.run_dir,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(  # noqa: PLW1509 - as in launch.execute
            die_with_parent, signal_number=signal.SIGTERM, expected_parent_pid=os.getpid()
        ),
    )
    return _follow(child, job.run_dir, mark, stop)


def _filled(word: str, known: dict[str, str]) -> str:
    """A flag written NAME={master_port}."""
    for mark, value in known.items():
        word = word.removesuffix(mark) + value if word.endswith(f"={mark}") else word
    return word


def _follow(child: subprocess.Popen[bytes], run_dir: str, mark: str, stop: threading.Event) -> int:
    deadline: float | None = None
    while child.poll() is None:
        if stop.wait(0.1) and deadline is None:
            deadline = time.monotonic() + _GRACE_SECONDS
            _signal(child, signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            _signal(child, signal.SIGKILL)
    for process in _marked(run_dir, lambda found: found == mark):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    code = child.returncode
    return code if code >= 0 else 128 - code


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.killpg(child.pid, number)


def _end_earlier(job: HostJob) -> None:
    """Kill what an earlier start has left on this host.

    Whoever ended it may not have reached this host, and ranks that hang obey nothing else.
    """
    left = _marked(job.run_dir, lambda found: found != "" and found.rpartition(" ")[0] != job.name)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=_KILL_SECONDS)


def _marked(run_dir: str, is_meant: Callable[[str], bool]) -> list[psutil.Process]:
    """Living processes of this run here whose host mark is meant; hosts of a test may share a kernel."""
    found, here = [], _network(os.getpid())
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        is_ours = environ.get(RUN_MARK) == run_dir and is_meant(environ.get(HOST_MARK, ""))
        if is_ours and process.pid != os.getpid() and _network(process.pid) == here:
            found.append(process)
    return found


def _network(pid: int) -> str:
    """The network namespace of a process: what makes it one of this host. Empty where that cannot be read."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _names(job: HostJob) -> list[str]:
    """Of each host, by which the others reach it; under SLURM from its own list."""
    given = [part.name.rpartition("@")[2].strip("[]") for part in job.parts]
    if all(given):
        return given
    nodes = [part.node for part in job.parts]
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    hosts = nodes if all(nodes) else _scontrol("show", "hostnames", listed).split() if listed else []
    if len(hosts) != len(job.parts):
        hosts = [f"node {at}" for at in range(len(job.parts))]
    # Names of nodes need not resolve; where srun runs is the first node of the job.
    words = _scontrol("show", "node", "-o", hosts[0]).split()
    address = next((word.partition("=")[2] for word in words if word.startswith("NodeAddr=")), "")
    launcher = hosts[0] if all(nodes) else os.environ.get("SLURM_LAUNCH_NODE_IPADDR", hosts[0])
    return [address or launcher, *hosts[1:]]


def _scontrol(*words: str) -> str:
    program = shutil.which("scontrol")
    if program is None:  # as in a container
        return ""
    try:
        return subprocess.run(  # noqa: S603 - our own words and SLURM's own list
            (program, *words), capture_output=True, text=True, check=False, timeout=_LOOKUP_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _report(faults: Sequence[Fault]) -> None:
    if faults:
        body = {"exit_code": _BAD_INPUT, "problems": [asdict(fault) for fault in faults]}
        print(ERROR_PREFIX + json.dumps(body), flush=True)


def _wait_for_end_of_input(stop: threading.Event) -> None:
    while sys.stdin.readline():
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
