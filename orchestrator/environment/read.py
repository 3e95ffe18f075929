"""Reads the user's settings and, where asked, the interfaces of this host: the only part that touches the system."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from orchestrator.environment.given import (
    FILES,
    SHELL,
    Interface,
    Setting,
    UserEnvironment,
    is_of_interest,
    joined,
    parse_conf,
)

_ETC: Final = Path("/etc/nccl.conf")
_MOST_BYTES: Final = 2**20
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def read_user_environment(
    environ: Mapping[str, str], *, network: bool = False, etc: Path = _ETC, home: Path | None = None
) -> UserEnvironment:
    """Read what ranks started from here would inherit.

    Args:
        environ: variables of the process.
        network: whether to read interfaces and resolve the host's name too (several hosts only: a resolver may wait).
        etc: the system's file.
        home: the user's folder; None: as the user database has it, which is where NCCL looks.
    """
    own = [
        Setting(name=name, value=value, source=SHELL) for name, value in sorted(environ.items()) if is_of_interest(name)
    ]
    named = environ.get("NCCL_CONF_FILE")
    folder = _home() if home is None else home
    user = Path(named) if named else None if folder is None else folder / ".nccl.conf"
    files = [parse_conf(_text(path), str(path)) for path in (user, etc) if path is not None]
    settings = joined(own, *files)
    absent = _absent(settings)
    if not network:
        return UserEnvironment(settings=settings, absent=absent)
    host = socket.gethostname()
    return UserEnvironment(
        settings=settings, absent=absent, host=host, interfaces=_interfaces(), host_addresses=_resolved(host)
    )


def _absent(settings: Sequence[Setting]) -> tuple[str, ...]:
    """Settings whose file cannot be read here; NCCL opens them from the ranks' working directory."""
    first: dict[str, Setting] = {}
    for setting in settings:
        first.setdefault(setting.name, setting)
    named = [first[name] for name in FILES if name in first and first[name].value]
    return tuple(setting.name for setting in named if not os.access(setting.value, os.R_OK))


def _home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container's user without an entry
        return None


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""


def _interfaces() -> tuple[Interface, ...]:
    stats = psutil.net_if_stats()
    return tuple(
        Interface(name=name, addresses=addresses)
        for name, found in psutil.net_if_addrs().items()
        if (addresses := tuple(item.address.partition("%")[0] for item in found if item.family in _FAMILIES))
        and name in stats
        and stats[name].isup
    )


def _resolved(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found))
