"""What the user asked `route` about: devices, collectives, sizes and a pair, checked against the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config import RouteCollective, RunConfig
from orchestrator.errors import Problem, UserError
from topology.collectives import Collective
from topology.model import Device, Topology
from topology.routing.choose import SIZES

_UNITS = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)")
_MOST_BYTES = 2**50
_PAIR = 2
_MOST_DIGITS = 8
_ALL = (Collective.all_reduce, Collective.all_gather, Collective.reduce_scatter, Collective.all_to_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The question.

    Attributes:
        devices: ids of the group, in rank order; empty: choose them.
        count: how many to choose where `devices` is empty; 0: all.
        collectives: to show.
        sizes: in bytes, ascending.
        pair: ids of two devices, or empty.
    """

    devices: tuple[str, ...]
    count: int
    collectives: tuple[Collective, ...]
    sizes: tuple[int, ...]
    pair: tuple[str, ...]


def asked(config: RunConfig, topology: Topology) -> Asked:
    """Read the `route` keys.

    Raises:
        UserError: with every device, size or number that the machine or the grammar does not have.
    """
    route = config.route
    problems: list[Problem] = []
    known = topology.gpus or topology.devices
    group = () if route.group == ("auto",) else _devices("route.group", route.group, known, problems)
    pair = () if route.pair == ("none",) else _devices("route.pair", route.pair, known, problems)
    sizes = SIZES if route.sizes == ("auto",) else _sizes(route.sizes, problems)
    if len(known) == 1:
        found = f"{known[0].name}, one device"
        problems.append(Problem(where="topology", found=found, remedy="A route needs two devices or more."))
    elif route.group != ("auto",) and not problems and len(group) == 1:
        problems.append(Problem(where="route.group", found=f"{route.group[0]} alone", remedy="Name two or more."))
    if route.pair != ("none",) and len(route.pair) != _PAIR:
        problems.append(
            Problem(where="route.pair", found=f"{len(route.pair)} devices", remedy="Name two, as in [0,5].")
        )
    if group and config.devices not in (0, len(group)):
        found = f"{config.devices} devices, and a group of {len(group)}"
        problems.append(Problem(where="devices", found=found, remedy="Give one of the two."))
    if config.devices == 1 or config.devices > len(known):
        found = f"{config.devices} of {len(known)} devices"
        problems.append(Problem(where="devices", found=found, remedy=f"Give 2 to {len(known)}, or 0 for all."))
    if problems:
        raise UserError(*problems)
    named = route.collective
    collectives = _ALL if named is RouteCollective.all else (Collective[named.name],)
    return Asked(devices=group, count=config.devices, collectives=collectives, sizes=sizes, pair=pair)


def _devices(key: str, names: Sequence[str], known: Sequence[Device], problems: list[Problem]) -> tuple[str, ...]:
    """Ids of devices told by id or by their place in the list that `probe` shows."""
    ids = {device.id for device in known}
    found = []
    for name in names:
        if name in ids:
            found.append(name)
        elif name.isdecimal() and len(name) <= _MOST_DIGITS and int(name) < len(known):
            found.append(known[int(name)].id)
        else:
            remedy = f"Use 0 to {len(known) - 1}, or an id of `trainmaster probe`."
            problems.append(Problem(where=key, found=f"no device {name[:40]!r}", remedy=remedy))
    twice = sorted({name for name in found if found.count(name) > 1})
    problems += [Problem(where=key, found=f"{name} more than once", remedy="Name each once.") for name in twice]
    return tuple(found)


def _sizes(texts: Sequence[str], problems: list[Problem]) -> tuple[int, ...]:
    sizes = set()
    for text in texts:
        match = _SIZE.fullmatch(text.strip())
        unit = _UNITS.get(match[2].upper()) if match else None
        size = int(float(match[1]) * unit) if match and unit else 0
        if 1 <= size <= _MOST_BYTES:
            sizes.add(size)
        else:
            remedy = "Give bytes, or a number with KiB, MiB, GiB or TiB, up to 1 PiB."
            problems.append(Problem(where="route.sizes", found=f"found {text[:40]!r}", remedy=remedy))
    return tuple(sorted(sizes))
