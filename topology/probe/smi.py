"""A Topology from the text of `nvidia-smi topo -m` or `-mp`, read offline from whatever it was pasted into."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import Topology
from topology.probe.smi_build import SOURCE, built, checked
from topology.probe.smi_clean import ASKED, MAX_PROBLEMS, check_is_text, failure
from topology.probe.smi_failures import failure_of
from topology.probe.smi_hosts import MAX_HOSTS, split_hosts
from topology.probe.smi_several import Chosen, choose
from topology.probe.smi_text import recognises

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.smi_hosts import HostText

__all__ = ["failure_of", "parse_smi", "parse_smi_hosts", "parse_smi_matrices", "read_smi", "recognises"]

_MAX_HOSTS_CHARS: Final = 4 << 20  # a thousand hosts of eight GPUs and ten NICs have some 3.2 million
_MAX_HOSTS_LINES: Final = 64_000
_MAX_HOSTS_DEVICES: Final = 16_384


def read_smi(text: str, *, host: str, matrix: int | None = None) -> Topology:
    """Read the text of one host, or of several where its lines or headings name them.

    Raises:
        TopologyError: as `parse_smi` and `parse_smi_hosts`.

    """
    check_is_text(text, max_chars=_MAX_HOSTS_CHARS, max_lines=_MAX_HOSTS_LINES)
    hosts = split_hosts(text) if matrix is None else ()
    if hosts:
        return _of_parts(hosts)
    check_is_text(text)
    return built(choose(checked(text), matrix), text, host)


def parse_smi(text: str, *, host: str, matrix: int | None = None) -> Topology:
    """Read the text as the topology of `host`.

    GPUs get the ids `HOST/gpuN`, or their UUIDs where the text lists them, NICs `HOST/NAME`. The PCIe labels become
    a tree of switches and links, NVLink counts become links. Repeats of a matrix are one; the outputs of `-m` and
    `-mp` complete each other; of matrices that differ the first is taken, with a warning, or that of the number
    `matrix` (from 1).

    Raises:
        TopologyError: if there is no matrix, or one is cut, damaged, contradictory or not NVIDIA's, if there is
            none of that number, or if the text is of several hosts.

    """
    check_is_text(text)
    hosts = split_hosts(text) if matrix is None else ()
    if hosts:
        names = [name for part in hosts for name in part.names]
        raise TopologyError(
            asked=ASKED,
            found=f"line {hosts[0].numbers[0]}: the output of {len(names)} hosts: {', '.join(names[:4])}",
            remedy="keep the lines of one host, or read it as a text of several",
        )
    return built(choose(checked(text), matrix), text, host)


def parse_smi_hosts(text: str) -> Topology:
    """Read a text with the output of several hosts, as pdsh, clush, ansible or srun print it.

    Each line has its host in front, or each block of lines below a heading; ids begin with the host's name.

    Raises:
        TopologyError: if fewer than two hosts have a matrix, or one of them has a damaged one; all are told.

    """
    check_is_text(text, max_chars=_MAX_HOSTS_CHARS, max_lines=_MAX_HOSTS_LINES)
    parts = split_hosts(text)
    if not parts:
        raise failure(["line 1: no two hosts with a matrix: no host in front of every line, and no headings"])
    return _of_parts(parts)


def _of_parts(parts: Sequence[HostText]) -> Topology:
    num_hosts = sum(len(part.names) for part in parts)
    if num_hosts > MAX_HOSTS:
        raise failure([f"line {parts[0].numbers[0]}: {num_hosts} hosts, more than {MAX_HOSTS}"])
    found: list[Topology] = []
    problems: list[str] = []
    seen: dict[str, Topology] = {}
    num_devices = 0
    for part in parts:
        key = part.text
        try:
            if key not in seen:
                seen[key] = _host_of(part)
            found += [_renamed(seen[key], name) for name in part.names]
        except TopologyError as error:
            problems += [f"{part.names[0]}: {problem}" for problem in error.problems]
        if len(problems) >= MAX_PROBLEMS:
            break
        num_devices += len(part.names) * len(seen[key].hosts[0].devices) if key in seen else 0
        if num_devices > _MAX_HOSTS_DEVICES:
            raise failure([f"line {part.numbers[0]}: more than {_MAX_HOSTS_DEVICES} GPUs"])
    if problems:
        raise failure(problems)
    return _joined(found)


def parse_smi_matrices(text: str, *, host: str) -> tuple[Topology, ...]:
    """Read every matrix of the text, each as a topology of `host`, such as one before and one after a change.

    Raises:
        TopologyError: if there is no matrix, or one is cut, damaged, contradictory or not NVIDIA's.

    """
    return tuple(built(Chosen(matrix=matrix), text, host) for matrix in checked(text))


def _host_of(part: HostText) -> Topology:
    check_is_text(part.text)
    return built(choose(checked(part.text, part.numbers)), part.text, part.names[0])


def _renamed(topology: Topology, name: str) -> Topology:
    """Return the same machine under another host name; UUIDs of one host say nothing of another's."""
    (host,) = topology.hosts
    if host.name == name:
        return topology
    ids = {device.id: f"{name}/gpu{device.index}" for device in host.devices}
    others = [*(nic.id for nic in host.nics), *(switch.id for switch in topology.switches)]
    ids |= {end: f"{name}{end.removeprefix(host.name)}" for end in others}
    devices = tuple(replace(device, id=ids[device.id], host=name, uuid=None) for device in host.devices)
    nics = tuple(replace(nic, id=ids[nic.id]) for nic in host.nics)
    return replace(
        topology,
        hosts=(replace(host, name=name, devices=devices, nics=nics),),
        links=tuple(replace(link, a=ids[link.a], b=ids[link.b]) for link in topology.links),
        pairs=tuple(replace(pair, a=ids[pair.a], b=ids[pair.b]) for pair in topology.pairs),
        switches=tuple(replace(switch, id=ids[switch.id], host=name) for switch in topology.switches),
    )


def _joined(found: Sequence[Topology]) -> Topology:
    told: dict[str, list[str]] = {}
    for one in found:
        for warning in one.warnings:
            told.setdefault(warning, []).append(one.hosts[0].name)
    return Topology(
        hosts=tuple(host for one in found for host in one.hosts),
        links=tuple(link for one in found for link in one.links),
        pairs=tuple(pair for one in found for pair in one.pairs),
        switches=tuple(switch for one in found for switch in one.switches),
        warnings=tuple(_of_hosts(warning, names, len(found)) for warning, names in told.items()),
        source=SOURCE,
    )


def _of_hosts(warning: str, names: Sequence[str], num_hosts: int) -> str:
    if len(names) == num_hosts:
        return warning
    shown = 4
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}: {warning}"
