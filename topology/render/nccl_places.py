"""Where each part of a host hangs in an NCCL topology file: below which function, and under which bus id."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

from topology.model import DeviceKind, Nic, Switch, SwitchKind
from topology.pcie_tree import INSIDE, LEVELS, PCIE, PORT, VIRTUAL, Member, tree_from_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from topology.model import Device, Host, Link, Topology

_TREE: Final = frozenset({SwitchKind.pcie, SwitchKind.bridge, SwitchKind.socket})
_UPWARD: Final = frozenset({PCIE, INSIDE, PORT, VIRTUAL})
_ADDRESS: Final = re.compile(r"(?:^|/)([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:#\d+)?$")
# Written topology files give switches that have no address one of this domain; NCCL finds no such function on the
# machine and takes the switch as told.
_NO_ADDRESS: Final = 0xFFFF
_INVENTED: Final = 0xFFFE
INVENTED: Final = f"{_INVENTED:04x}:"
_BRIDGE: Final = re.compile(r"(?:bridge|pci)[\w.:-]{0,80}", re.ASCII)
_SLOTS: Final = 32
_BUSES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """A host as a tree: `below` gives the ids under an id; `address` the bus id of each function.

    `sockets` are the NUMA nodes; those of the host without any get one by the NUMA numbers of its parts.
    `uplink` is the PCIe link above a function. `bridge` names the host bridge right above a function: nothing, for one
    without that a reader would place below the bridge of others, since they share a bus.
    """

    sockets: tuple[Switch, ...]
    below: Mapping[str, tuple[str, ...]]
    address: Mapping[str, str]
    uplink: Mapping[str, Link]
    bridge: Mapping[str, str]
    problems: tuple[str, ...]


def hang(topology: Topology, host: Host, *, invent: bool) -> Hung:
    """Find the place of each GPU, NIC and PCIe switch of a host.

    `invent` gives parts without a PCI address one that no machine has; otherwise each is a problem.
    """
    devices = {device.id: device for device in host.devices if device.kind is DeviceKind.gpu}
    nics = {nic.id: nic for nic in _ports(host.nics)}
    switches, links = _tree(topology, host, devices.values(), nics.values())
    kinds = {switch.id: switch.kind for switch in switches}
    above = {link.a: link for link in links if link.kind in _UPWARD and link.b in kinds}
    sockets = {switch.id: switch for switch in switches if switch.kind is SwitchKind.socket}
    below: dict[str, dict[str, None]] = {name: {} for name in sockets}
    problems = []
    roots: dict[str, str] = {}
    parts: dict[str, Device | Nic | Switch] = {**devices, **nics}
    parts |= {switch.id: switch for switch in switches if switch.kind is SwitchKind.pcie}
    for name, part in parts.items():
        way = _way(name, above)
        if way is None:
            problems.append(f"the links above {name} go round in a circle")
            continue
        if kinds.get(way[-1]) is not SwitchKind.socket:
            # All below one host bridge are on one NUMA node, whatever they say.
            if way[-1] not in roots:
                roots[way[-1]] = _socket_of(part, sockets, host.name)
            way = [*way, roots[way[-1]]]
        # What hangs on a host bridge hangs on its NUMA node: a file has no host bridges, but names them.
        way = [step for step in way if kinds.get(step) is not SwitchKind.bridge]
        for lower, upper in pairwise(way):
            below.setdefault(upper, {}).setdefault(lower)
    address, missing = _addresses(parts, above, kinds, invent=invent)
    return Hung(
        sockets=tuple(sockets.values()),
        below={name: tuple(names) for name, names in below.items()},
        address=address,
        uplink={name: link for name, link in above.items() if link.kind == PCIE},
        bridge=_bridges(below, sockets, above, kinds, address),
        problems=(*problems, *missing),
    )


def _bridges(
    below: Mapping[str, Mapping[str, None]],
    sockets: Collection[str],
    above: Mapping[str, Link],
    kinds: Mapping[str, SwitchKind],
    address: Mapping[str, str],
) -> dict[str, str]:
    tops = [name for socket in sockets for name in below.get(socket, ()) if name in address]
    bridge = {name: above[name].b for name in tops if name in above and kinds[above[name].b] is SwitchKind.bridge}
    names = _bridge_names(dict.fromkeys(bridge.values()))
    told = {name: names[found] for name, found in bridge.items()}
    # A reader takes functions on one bus for functions below one bridge, unless it is told otherwise.
    by_bus = {name: f"bridge{address[name].rsplit(':', 1)[0]}" for name in tops if name not in told}
    # Ports of one address are one function.
    counts = Counter(by_bus[name] for name in {address[name]: name for name in by_bus}.values())
    taken = set(told.values())
    return told | {name: "" for name, found in by_bus.items() if counts[found] > 1 or found in taken}


def _bridge_names(bridges: Iterable[str]) -> dict[str, str]:
    # Those of the kernel (`pci0000:16`) and of this package stay; others get a number.
    local = {bridge: bridge.rsplit("/", 1)[-1] for bridge in bridges}
    names = {bridge: name for bridge, name in local.items() if _BRIDGE.fullmatch(name)}
    if len(set(names.values())) < len(names):
        names = {}
    free = (f"bridge{at}" for at in count() if f"bridge{at}" not in set(names.values()))
    return names | {bridge: next(free) for bridge in local if bridge not in names}


def _ports(nics: Sequence[Nic]) -> list[Nic]:
    # An RDMA port and its network interface are one port, told by one PCI address: NCCL uses the former.
    rdma = {nic.pci for nic in nics if nic.kind in {"infiniband", "roce"}} - {None}
    return [nic for nic in nics if nic.kind != "ethernet" or nic.pci not in rdma or ":" in nic.id.rsplit("/", 1)[-1]]


def _tree(
    topology: Topology,
    host: Host,
    devices: Collection[Device],
    nics: Collection[Nic],
) -> tuple[list[Switch], list[Link]]:
    own = {switch.id for switch in topology.switches if switch.host == host.name}
    switches = [switch for switch in topology.switches if switch.id in own and switch.kind in _TREE]
    names = {*own, *(device.id for device in devices), *(nic.id for nic in nics)}
    links = [link for link in topology.links if link.a in names and link.b in own]
    if any(link.kind in _UPWARD for link in links) or not (devices or nics):
        return switches, links
    labels = {(pair.a, pair.b): pair.kind for pair in topology.pairs if pair.a in names and pair.kind in LEVELS}
    members = [Member(id=device.id, numa=device.numa, pcie=device.pcie) for device in devices]
    members += [Member(id=nic.id, numa=nic.numa) for nic in nics if nic.pci is not None]
    tree = tree_from_labels(host.name, members, labels)
    return [*tree.switches], [*tree.links]


def _way(name: str, above: Mapping[str, Link]) -> list[str] | None:
    way = [name]
    while way[-1] in above:
        upper = above[way[-1]].b
        if upper in way:
            return None
        way.append(upper)
    return way


def _socket_of(part: Device | Nic | Switch, sockets: dict[str, Switch], host: str) -> str:
    found = next((switch for switch in sockets.values() if switch.numa == part.numa), None)
    if found is None and part.numa is None and sockets:
        return next(iter(sockets))
    if found is None:
        name = f"{host}/node{'?' if part.numa is None else part.numa}"
        found = sockets.setdefault(name, Switch(id=name, kind=SwitchKind.socket, host=host, numa=part.numa))
    return found.id


def _addresses(
    parts: Mapping[str, Device | Nic | Switch],
    above: Mapping[str, Link],
    kinds: Mapping[str, SwitchKind],
    *,
    invent: bool,
) -> tuple[dict[str, str], list[str]]:
    known = {name: found for name, part in parts.items() if (found := _known(part)) is not None}
    # The function of several ports has the address of its ports.
    for name, link in above.items():
        if link.kind == PORT and name in known:
            known.setdefault(link.b, known[name])
    taken = set(known.values())
    give = _giver(taken, _INVENTED if invent else _NO_ADDRESS)
    missing = []
    functions = {link.b for link in above.values() if link.kind == PORT}
    for name, part in parts.items():
        hung = above.get(name)
        if name in known or (isinstance(part, Nic) and (hung is None or hung.kind != PCIE)):
            continue
        if not invent and (not isinstance(part, Switch) or name in functions):
            missing.append(f"{name} has no PCI address")
        else:
            shares = hung is not None and kinds.get(hung.b) is SwitchKind.bridge
            known[name] = give(hung.b if hung is not None and shares else name)
    return known, missing


def _known(part: Device | Nic | Switch) -> str | None:
    if not isinstance(part, Switch):
        return part.pci
    found = _ADDRESS.search(part.id)
    return None if found is None else found[1]


def _giver(taken: set[str], domain: int) -> Callable[[str], str]:
    # One bus for what shares a host bridge, so that a reader finds it shared; a bus of its own for all else.
    buses: dict[tuple[str, int], int] = {}
    counts: dict[str, int] = {}

    def give(group: str) -> str:
        while True:
            turn = counts[group] = counts.get(group, -1) + 1
            at = buses.setdefault((group, turn // _SLOTS), len(buses))
            address = f"{domain:04x}:{at % _BUSES:02x}:{turn % _SLOTS:02x}.{at // _BUSES % 8}"
            if address not in taken:
                taken.add(address)
                return address

    return give
