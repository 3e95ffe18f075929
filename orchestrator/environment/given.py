"""What the user has set already, and which interfaces this host has: values, however they were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Each names a file that NCCL reads; one that is not there it passes over or fails on, by version.
FILES: Final = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_TUNER_CONFIG_FILE", "NCCL_CONF_FILE")
SHELL: Final = "environment"
PREFIXES: Final = ("NCCL_", "GLOO_", "TORCH_NCCL_", "FI_")
NAMES: Final = frozenset({"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable, its value and where it stands: `environment`, or a file of NCCL's."""

    name: str
    value: str
    source: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.name}={self.value} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface that is running, and its IP addresses, in the kernel's order."""

    name: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEnvironment:
    """What ranks inherit.

    Attributes:
        settings: the one that counts comes first where a name stands in several places.
        host: name of the host that the following was read on; empty: not read.
        interfaces: in the kernel's order.
        host_addresses: what the host's own name resolves to.
        absent: names of the settings that mean a file which this host does not have, or not for this user.
    """

    settings: tuple[Setting, ...] = ()
    host: str = ""
    interfaces: tuple[Interface, ...] = ()
    host_addresses: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def get(self, name: str) -> Setting | None:
        """The setting that ranks will see. An empty value is the user's too: it keeps a variable unset."""
        return next((setting for setting in self.settings if setting.name == name), None)

    @property
    def effective(self) -> tuple[Setting, ...]:
        """One setting a name, in order of appearance; without those that are empty, which NCCL passes over."""
        seen: dict[str, Setting] = {}
        for setting in self.settings:
            seen.setdefault(setting.name, setting)
        return tuple(setting for setting in seen.values() if setting.value)


def parse_conf(text: str, source: str) -> tuple[Setting, ...]:
    """Read a file of NCCL's: NAME=VALUE lines to the letter, `#` in the first column makes a comment."""
    found = []
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and name and not line.startswith("#"):
            found.append(Setting(name=name, value=value, source=source))
    return tuple(found)


def is_of_interest(name: str) -> bool:
    """Whether a variable concerns collectives or the choice of devices."""
    return name in NAMES or name.startswith(PREFIXES)


def joined(environment: Sequence[Setting], *files: Sequence[Setting]) -> tuple[Setting, ...]:
    """Put settings in the order in which they count: NCCL takes from a file only what is not set already."""
    return (*environment, *(setting for file in files for setting in file if is_of_interest(setting.name)))
