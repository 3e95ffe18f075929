"""Hosts that a user names: a hostfile, and how ranks are spread over them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from launch.errors import LaunchError
from launch.spec import HostShare

__all__ = ["NamedHost", "parse_hostfile", "spread"]

_LINE = re.compile(r"(?P<name>[^\s#]+)(?:\s+slots\s*=\s*(?P<slots>\d+))?")
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedHost:
    """A host as ssh takes it. `slots`: the most ranks there; None: as many as the others."""

    name: str
    slots: int | None = None


def parse_hostfile(text: str, path: str) -> tuple[NamedHost, ...]:
    """Read lines `host slots=N`; empty ones and comments are left out, a host without slots has None.

    Raises LaunchError with each line that is something else.
    """
    found, wrong = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line.partition("#")[0].strip()
        if not plain:
            continue
        match = _LINE.fullmatch(plain)
        if match is None or match["slots"] == "0":
            wrong.append(f"line {number}: {plain!r}")
            continue
        found.append(NamedHost(name=match["name"], slots=int(match["slots"]) if match["slots"] else None))
    if wrong or not found:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise LaunchError(
            asked=f"launch.hostfile={path}",
            found="; ".join(wrong[:_SHOWN]) + more if wrong else "no host in it",
            remedy="write one line for each host: NAME slots=N",
        )
    return tuple(found)


def spread(count: int, hosts: Sequence[NamedHost]) -> tuple[HostShare, ...]:
    """Give each host its part of `count` ranks, in order: as many as it has slots, else as evenly as can be.

    Hosts that nothing is left for are left out. Raises LaunchError where the ranks find no room, or a host without
    slots no rank.
    """
    open_ended = [host for host in hosts if host.slots is None]
    limited = sum(host.slots for host in hosts if host.slots is not None)
    left_for_open = count - limited
    has_room = left_for_open >= len(open_ended) if open_ended else left_for_open <= 0
    if not has_room:
        room = f"{limited} slots" + (f" and {len(open_ended)} hosts without a number" if open_ended else "")
        raise LaunchError(
            asked=f"{count} ranks on {len(hosts)} hosts",
            found=room,
            remedy="give devices=N with at least one rank for each host and no more than there are slots",
        )
    each, over = divmod(left_for_open, len(open_ended)) if open_ended else (0, 0)
    shares, left, at_open = [], count, 0
    for host in hosts:
        if host.slots is None:
            wanted = each + (at_open < over)
            at_open += 1
        else:
            wanted = host.slots
        given = min(wanted, left)
        left -= given
        if given:
            shares.append(HostShare(name=host.name, processes=given))
    return tuple(shares)
