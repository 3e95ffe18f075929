"""Hosts made from network namespaces, joined by a switch, each with a shaped link. Needs root on Linux.

All of it lies in namespaces of its own, the switch too, so nothing of the machine's own network changes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from topology.graph import Graph, graph_of
from topology.model import Host, Link, Nic, Switch, SwitchKind, Topology
from topology.network.merging import merge
from topology.network.spec import NetworkSpec
from topology.presets.plain import cpu_host

INTERFACE: Final = "eth0"
_OURS: Final = re.compile(r"shaped(\d{1,9})-(?:switch|\d+)")
Handler = Callable[[int, Any], Any] | int
_QUEUE: Final = ("burst", "256k", "latency", "50ms")
_BITS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedHosts:
    """Namespaces that stand for hosts."""

    names: tuple[str, ...]

    def command(self, host: int, *words: str) -> list[str]:
        """The command that runs `words` on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]


@contextmanager
def shaped_hosts(number: int, bits_per_second: int) -> Iterator[ShapedHosts]:
    """Make the hosts, and take them away again whatever happens.

    Raises:
        PermissionError: without root.
        subprocess.CalledProcessError: if the kernel has no such network.
    """
    if os.geteuid() != 0:
        raise PermissionError("network namespaces need root: run this with sudo")
    _remove_stale()
    prefix = f"shaped{os.getpid()}"
    switch, names = f"{prefix}-switch", tuple(f"{prefix}-{at}" for at in range(number))
    before = _raise_on_sigterm()
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for at, name in enumerate(names):
            _add_host(name, at, switch, bits_per_second)
        yield ShapedHosts(names=names)
    finally:
        for name in (*names, switch):  # a namespace takes its links with it
            _delete(name)
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _raise_on_sigterm() -> Handler | None:
    """Turn SIGTERM into the end of the program that cleans up; returns what stood before (None: nothing changed)."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is None:
        return None

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    return signal.signal(signal.SIGTERM, leave)


def _remove_stale() -> None:
    """Take away what a run left that was killed: namespaces of ours whose process is gone."""
    listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout  # noqa: S607
    for name in stale(listed, is_alive):
        _delete(name)


def stale(listed: str, is_at_work: Callable[[int], bool]) -> tuple[str, ...]:
    """Names in the output of `ip netns list` that are of our form and whose maker is gone."""
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    found = [(name, _OURS.fullmatch(name)) for name in names]
    return tuple(name for name, match in found if match and not is_at_work(int(match[1])))


def is_alive(process: int) -> bool:
    """Whether a process of that number runs; another one may have the number of an old run by now."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # noqa: S603, S607


def _add_host(name: str, at: int, switch: str, bits_per_second: int) -> None:
    _ip("netns", "add", name)
    port = f"port{at}"
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
    _ip("-n", switch, "link", "set", port, "master", "bridge0", "up")
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "set", INTERFACE, "up")
    _ip("-n", name, "addr", "add", f"10.77.0.{at + 1}/24", "dev", INTERFACE)
    # Shaping what a host sends: TCP feels the full queue and slows down, nothing is dropped.
    shape = ["root", "tbf", "rate", f"{bits_per_second}bit", *_QUEUE]
    _run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", INTERFACE, *shape)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603 - our own words


def machine(hosts: int, slots: int, bits_per_second: int) -> Topology:
    """The same hosts as a topology: CPU slots behind one port each, joined by a switch that slows nobody."""
    rate = bits_per_second / _BITS
    return merge([_host(f"host{at}", slots, rate) for at in range(hosts)], NetworkSpec(bytes_per_second=rate))


def graph(hosts: int, slots: int, bits_per_second: int) -> Graph:
    """Its capacity graph, ranks host by host."""
    return graph_of(machine(hosts, slots, bits_per_second))


def _host(name: str, slots: int, rate: float) -> Topology:
    drawn: Host = cpu_host(slots).hosts[0]
    devices = tuple(replace(device, id=f"{name}/cpu{at}", host=name) for at, device in enumerate(drawn.devices))
    nic = Nic(id=f"{name}/{INTERFACE}", name=INTERFACE, kind="ethernet", bytes_per_second=rate, numa=0, pci=None)
    memory = Switch(id=f"{name}/node0", kind=SwitchKind.socket, host=name, name=None, numa=0)
    return Topology(
        hosts=(replace(drawn, name=name, devices=devices, nics=(nic,)),),
        switches=(memory,),
        links=(Link(a=nic.id, b=memory.id, kind="CPU", source="drawn"),),
        source="drawn",
    )
