"""A drawn machine, once or many times: one host of each kind is drawn and then copied."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from topology.network.merging import joined
from topology.network.parts import Mould, Parts, parts_of
from topology.network.ports import Ports, ports_of
from topology.presets.box import draw, gpu_uuid

if TYPE_CHECKING:
    from topology.model import Topology
    from topology.network import NetworkSpec
    from topology.presets.catalogue import Machine


def draw_machine(name: str, machine: Machine, nodes: int, network: NetworkSpec | None = None) -> Topology:
    """Draw `nodes` units of the machine, joined by the network; a single host stands alone."""
    boxes = machine.boxes()
    source = f"preset {name}"
    if len(boxes) * machine.times * nodes == 1:
        return replace(draw(boxes[0]), source=source)
    hosts: list[Parts] = []
    chosen: dict[str, Ports] = {}
    for box in boxes:
        units = nodes if machine.fabric else 1
        each = machine.times * nodes // units
        for unit in range(units):
            drawn = draw(box, fabric=f"00000000-0000-0000-0000-{unit + 1:012d}.0" if machine.fabric else None)
            copies = _copies(drawn, each, len(hosts), unit * each, machine.times * nodes)
            chosen |= _ports(drawn, copies)
            hosts += copies
    told = source if nodes == 1 else f"{source}, {nodes} times"
    return joined(hosts, network or machine.network, source=told, chosen=chosen)


def _copies(drawn: Topology, count: int, before: int, first: int, total: int) -> list[Parts]:
    """Copy a drawn host; `before` hosts come before it in the whole, `first` among the `total` of its own kind."""
    (host,) = drawn.hosts
    mould = Mould(parts_of(drawn))
    start = len(host.name)
    own = [*(nic.id for nic in host.nics), *(switch.id for switch in drawn.switches)]
    rests = [name[start:] for name in own]
    copies = []
    for at in range(count):
        new = host.name if total == 1 else f"{host.name}-{first + at + 1}"
        ids = {name: new + rest for name, rest in zip(own, rests, strict=True)}
        uuids = {device.id: gpu_uuid(number, before + at) for number, device in enumerate(host.devices)}
        copies.append(mould.copy({host.name: new}, {**ids, **uuids}, uuids))
    return copies


def _ports(drawn: Topology, copies: list[Parts]) -> dict[str, Ports]:
    # What is left out of a drawn machine is left out of such machines: no warning.
    (one,) = ports_of(parts_of(drawn))
    places = [drawn.nics.index(nic) for nic in one.nics]
    hosts = [copy.hosts[0] for copy in copies]
    return {host.name: Ports(host=host.name, nics=tuple(host.nics[at] for at in places)) for host in hosts}
