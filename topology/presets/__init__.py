"""Drawn machines: topologies of well-known hosts, to plan for a machine one does not have and to test with.

Memory is the card's nominal size; rates of links are those of the tables. Pair labels are those of such hosts.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.network.merging import repeated
from topology.presets.catalogue import MACHINES
from topology.presets.cluster import draw_machine
from topology.presets.plain import cpu_host

if TYPE_CHECKING:
    from topology.model import Topology
    from topology.network import NetworkSpec

__all__ = ["cpu_host", "preset", "preset_names"]

_CPU: Final = "cpu"
_MAX_NODES: Final = 65_536
_MAX_HOSTS: Final = 4096  # as many as a snapshot may hold


def preset(name: str, *, nodes: int = 1, network: NetworkSpec | None = None) -> Topology:
    """Draw the machine of that name, in any usual spelling (`DGX-H100`), `nodes` times.

    Args:
        name: of a host, or of a unit of several hosts (gb200_nvl72 is a rack of 18), which then counts as one.
        nodes: how many of it.
        network: how the hosts are joined; without it as such machines usually are.

    Raises:
        TopologyError: there is no such machine, with the nearest names, or it cannot be drawn so many times.

    """
    known = _resolved(name)
    if not 1 <= nodes <= _MAX_NODES:
        remedy = f"give 1 to {_MAX_NODES}"
        raise TopologyError(asked=f"the preset topology {known!r}", found=f"{nodes} nodes", remedy=remedy)
    hosts = nodes if known == _CPU else nodes * MACHINES[known].times * len(MACHINES[known].boxes())
    if hosts > _MAX_HOSTS:
        found, remedy = f"{nodes} nodes, which are {hosts} hosts", f"draw at most {_MAX_HOSTS} hosts"
        raise TopologyError(asked=f"the preset topology {known!r}", found=found, remedy=remedy)
    if known != _CPU:
        return draw_machine(known, MACHINES[known], nodes, network)
    return repeated(cpu_host(), nodes, network)


def preset_names() -> tuple[str, ...]:
    """Return the names `preset` knows; each is also known by other spellings."""
    return (*MACHINES, _CPU)


def _resolved(name: str) -> str:
    spellings = {_plain(known): known for known in preset_names()}
    for known, machine in MACHINES.items():
        for alias in machine.aliases:
            spellings.setdefault(_plain(alias), known)
    asked = _plain(name)
    if asked in spellings:
        return spellings[asked]
    begun = [known for known in spellings if asked and known.startswith(asked)]
    close = begun or get_close_matches(asked, spellings, n=3, cutoff=0.0)
    near = list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
    remedy = f"use {' or '.join(map(repr, near))}, or another of {', '.join(preset_names())}"
    found = "no such file, and no drawn machine of that name"
    raise TopologyError(asked=f"the preset topology {name!r}", found=found, remedy=remedy)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
