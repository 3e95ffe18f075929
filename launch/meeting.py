"""The hosts of a launch meet before any rank starts: who is there, do they fit together, where will ranks meet.

1. Host 0 listens on the first free port of the job.
2. Each other host connects, is told which job this is, and answers with its facts.
3. When all are there, or time is up, host 0 compares them and tells all the same verdict.

The port is then free again for the ranks' store. Messages are single lines of JSON.
"""

import itertools
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from launch.facts import Facts, Fault, compare
from launch.host_job import HostJob

__all__ = ["Verdict", "host_and_wait", "join"]

_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 0.1
_MOST_BYTES = 1 << 20
# The first host decides a little earlier than the others give up, so that its better message is the one shown.
_SPARE_SECONDS = 15.0
_NO_WAY_SECONDS = 3.0  # without any answer from a host that was there before; it takes part at once or is started anew
_ANSWERS = (ConnectionRefusedError, ConnectionResetError, ValueError)  # the host is there, the program not yet
_TWO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all hosts are told. With `faults` nobody starts ranks."""

    address: str = ""
    port: int = 0
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    index: int
    facts: Facts
    used: str
    """Address at which this host reached the first."""
    reaches: bool
    """Whether it reaches the address that the first prefers, too."""
    connection: socket.socket


def host_and_wait(job: HostJob, ports: Sequence[int], facts: Facts, preferred: str, names: Sequence[str]) -> Verdict:
    """Be host 0. `preferred` is the address it would like the ranks to meet at (empty: the one it was reached at)."""
    listener, port = _listen(ports)
    if listener is None:
        where = f"port {', '.join(map(str, ports))} of host {names[0]}"
        remedy = "Give another launch.master_port, or 0 for a free one."
        return Verdict(faults=(Fault(where=where, found="taken by another program", remedy=remedy),))
    arrivals: dict[int, _Arrival] = {}
    inbox: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
    deadline = time.monotonic() + job.join_seconds
    with listener:
        listener.settimeout(_RETRY_SECONDS)
        while len(arrivals) < len(job.parts) - 1 and time.monotonic() < deadline:
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=_receive, args=(connection, job, preferred, inbox), daemon=True).start()
            while not inbox.empty():
                arrival = inbox.get()
                arrivals[arrival.index] = arrival
    verdict = _judge(job, facts, preferred, names, arrivals)
    _tell(replace(verdict, port=port), arrivals)
    return replace(verdict, port=port)


def join(job: HostJob, index: int, ports: Sequence[int], facts: Facts, names: Sequence[str]) -> tuple[Verdict, str]:
    """Be another host; returns the verdict and the own address that leads to the first host."""
    target, deadline = names[0], time.monotonic() + job.join_seconds + _SPARE_SECONDS
    reason, reached = "no answer", time.monotonic()
    # Only of two hosts is it clear who goes on: of more, the first one may be the one that is cut off.
    patience = _NO_WAY_SECONDS if job.met_before and len(names) == _TWO else math.inf
    for port in itertools.cycle(ports):
        left = min(deadline, reached + patience) - time.monotonic()
        if left <= 0:
            break
        try:
            with socket.create_connection((target, port), timeout=min(_CONNECT_SECONDS, left)) as connection:
                reached = math.inf  # while the two talk, a silence is no missing way
                verdict = _converse(connection, job, index, facts, deadline)
                if verdict is not None:
                    return verdict, str(connection.getsockname()[0])
                reason = f"port {port} is held by another program"
            reached = time.monotonic()
        except (OSError, ValueError) as error:
            reason = f"{target}:{port}: {error}"
            if isinstance(error, _ANSWERS) or reached == math.inf:
                reached = time.monotonic()
        time.sleep(_RETRY_SECONDS / len(ports))
    if time.monotonic() < deadline:
        return Verdict(faults=(_cut_off(names[index], target, reason),)), ""
    fault = Fault(
        where=f"host {names[index]}",
        found=f"could not reach the first host {target} within {job.join_seconds} s ({reason})",
        remedy="Check name, route and firewall between them, or name another network with launch.interface.",
    )
    return Verdict(faults=(fault,)), ""


def _cut_off(name: str, target: str, reason: str) -> Fault:
    return Fault(
        where=f"host {name}",
        found=f"is cut off from the first host {target} ({reason})",
        remedy="Check the network between them, which worked before.",
    )


def _listen(ports: Sequence[int]) -> tuple[socket.socket | None, int]:
    # Both families where the host has both: others may come by either.
    dual = socket.has_dualstack_ipv6()
    for port in ports:
        for family in (socket.AF_INET6, socket.AF_INET) if dual else (socket.AF_INET,):
            try:
                made = socket.create_server(
                    ("", port), family=family, backlog=128, dualstack_ipv6=dual and family is socket.AF_INET6
                )
            except OSError:
                continue
            return made, port
    return None, 0


def _key(job: HostJob) -> str:
    return f"{job.run_dir} {job.name}"


def _send(connection: socket.socket, body: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(body).encode() + b"\n")


def _read(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("rb") as stream:
        line = stream.readline(_MOST_BYTES)
    body = json.loads(line)
    if not isinstance(body, dict):
        raise ValueError("no object")  # noqa: TRY004 - of what came over the wire
    return body


def _receive(connection: socket.socket, job: HostJob, preferred: str, inbox: "queue.SimpleQueue[_Arrival]") -> None:
    """Hear one host out; whoever is not of this job is left alone."""
    try:
        connection.settimeout(_ANSWER_SECONDS)
        asked = time.time()
        _send(connection, {"job": _key(job), "preferred": preferred})
        body = _read(connection)
        answered = time.time()
        inbox.put(_arrival(body, job, connection, clock=(asked + answered) / 2))
    except (OSError, ValueError, KeyError, TypeError):
        connection.close()


def _arrival(body: Mapping[str, Any], job: HostJob, connection: socket.socket, clock: float) -> _Arrival:
    if body["job"] != _key(job) or not 0 < int(body["index"]) < len(job.parts):
        raise ValueError("another job")
    facts = Facts(**{**body["facts"], "unseen": tuple(body["facts"]["unseen"])})
    return _Arrival(
        index=int(body["index"]),
        facts=replace(facts, skew_seconds=float(body["clock"]) - clock),
        used=str(body["used"]),
        reaches=bool(body["reaches"]),
        connection=connection,
    )


def _converse(connection: socket.socket, job: HostJob, index: int, facts: Facts, deadline: float) -> Verdict | None:
    # The first host greets at once; another program on that port may say nothing for ever.
    connection.settimeout(_CONNECT_SECONDS)
    hello = _read(connection)
    if hello.get("job") != _key(job):
        return None
    used, port = connection.getpeername()[:2]
    preferred = str(hello.get("preferred", ""))
    report = {
        "job": _key(job),
        "index": index,
        "facts": asdict(facts),
        "used": used,
        "reaches": _reaches(preferred, port) if preferred and preferred != used else True,
    }
    _send(connection, {**report, "clock": time.time()})
    # The others may still be on their way.
    connection.settimeout(max(1.0, deadline - time.monotonic()))
    body = _read(connection)
    faults = tuple(Fault(**fault) for fault in body["faults"])
    return Verdict(address=body["address"], port=body["port"], faults=faults, notes=tuple(body["notes"]))


def _reaches(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _judge(
    job: HostJob, facts: Facts, preferred: str, names: Sequence[str], arrivals: Mapping[int, _Arrival]
) -> Verdict:
    missing = [names[at] for at in range(1, len(job.parts)) if at not in arrivals]
    if missing:
        there = [names[0], *(names[at] for at in sorted(arrivals))]
        fault = Fault(
            where=f"host {', '.join(missing)}",
            found=f"did not join within {job.join_seconds} s; there: {', '.join(there)}",
            remedy="Check that these hosts are up and may connect to the first one, or raise launch.join_seconds.",
        )
        return Verdict(faults=(fault,))
    present = [arrivals[at] for at in sorted(arrivals)]
    counts = [part.processes for part in job.parts]
    faults, notes = compare([facts, *(each.facts for each in present)], counts, uses_devices=job.uses_devices)
    used = {each.used for each in present}
    address = preferred if preferred and all(each.reaches for each in present) else ""
    if preferred and not address:
        notes.append(f"{preferred} of {names[0]} is not reached by every host: ranks meet at {', '.join(sorted(used))}")
    return Verdict(
        address=address or (used.pop() if len(used) == 1 else names[0]), faults=tuple(faults), notes=tuple(notes)
    )


def _tell(verdict: Verdict, arrivals: Mapping[int, _Arrival]) -> None:
    for arrival in arrivals.values():
        with suppress(OSError), arrival.connection as connection:
            _send(connection, asdict(verdict))
            # The other side closes first: a port is busy for a while for the side that does.
            connection.settimeout(_CONNECT_SECONDS)
            connection.recv(1)
