"""The hosts that a user names, and how many ranks each of them is to take."""

from __future__ import annotations

from pathlib import Path

from launch.errors import LaunchError
from launch.hosts import NamedHost, parse_hostfile, spread
from orchestrator.config import Backend, LaunchConfig, RunConfig
from orchestrator.errors import Problem, UserError
from topology.model import DeviceKind, Topology

__all__ = ["as_user_error", "named_hosts", "ranks_of_hosts", "text_of"]

_NONE = ("none",)
_FEW = 2  # CPU ranks of a host where the user says nothing


def named_hosts(launch: LaunchConfig) -> tuple[NamedHost, ...]:
    """Return the hosts that the user names, in `launch.hosts` or in a file.

    Raises:
        UserError: both are given, or the file cannot be read.
        LaunchError: the file is no hostfile.
    """
    hosts = () if launch.hosts == _NONE else launch.hosts
    if hosts and launch.hostfile:
        found = f"found {', '.join(hosts)} and launch.hostfile={launch.hostfile}"
        raise UserError(Problem(where="launch.hosts", found=found, remedy="Give one of the two."))
    if launch.hostfile:
        return parse_hostfile(text_of(launch.hostfile, "launch.hostfile"), launch.hostfile)
    return tuple(NamedHost(name=name) for name in hosts)


def ranks_of_hosts(config: RunConfig, topology: Topology) -> tuple[int, ...]:
    """Return the ranks of each host, in order, where the user's words tell them; else nothing.

    On CPUs each host that is named takes its part of `devices`; on GPUs slots count where they are fewer than the GPUs.

    Raises:
        UserError: the ranks cannot be spread over the hosts named, or the hostfile cannot be read.
    """
    try:
        named = named_hosts(config.launch)
        slots = tuple(host.slots for host in named if host.slots is not None)
        if len(named) != len(topology.hosts) or len(named) == 1 or config.launch.backend is Backend.slurm:
            return ()
        if not topology.gpus:
            few = max(1, min(_FEW, *(host.cores or _FEW for host in topology.hosts)))
            wanted = config.devices or (sum(slots) if len(slots) == len(named) else few * len(named))
            return tuple(share.processes for share in spread(wanted, named))
    except LaunchError as error:
        raise as_user_error(error) from error
    gpus = tuple(sum(device.kind is DeviceKind.gpu for device in host.devices) for host in topology.hosts)
    fits = len(slots) == len(gpus) and slots != gpus and all(s <= g for s, g in zip(slots, gpus, strict=True))
    return slots if fits and config.devices in {0, sum(slots)} else ()


def as_user_error(error: LaunchError) -> UserError:
    """Say an error of `launch` in the words of this package."""
    return UserError(Problem(where=error.asked, found=error.found, remedy=error.remedy))


def text_of(path: str, key: str) -> str:
    """Read a file that the user names with `key`. Raises UserError where it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        found = getattr(error, "strerror", None) or str(error)
        raise UserError(
            Problem(where=f"{key}={path}", found=found, remedy="Give a text file that can be read.")
        ) from error
