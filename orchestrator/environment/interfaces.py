"""Which interface NCCL and gloo would take by themselves, and whether other hosts can be reached over it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.environment.given import Interface, UserEnvironment

# Ends of containers, bridges of this host, tunnels: other hosts do not answer there, or not at full rate.
_INNER: Final = (
    "lo", "docker", "virbr", "br-", "veth", "cni", "flannel", "cali", "cilium", "kube", "podman", "lxc", "lxd",
    "dummy", "ifb", "tun", "tap", "wg", "tailscale", "zt",
)  # fmt: skip
_TURNS: Final[tuple[Callable[[str], bool], ...]] = (
    lambda name: name.startswith("ib"),
    lambda name: not name.startswith(("docker", "lo", "virbr")),
    lambda name: name.startswith("docker"),
    lambda name: name.startswith("lo"),
    lambda name: name.startswith("virbr"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Of a library: what it takes by itself, what it should take (empty: leave it), and why."""

    default: str
    better: str
    reason: str


def nccl_pick(environment: UserEnvironment) -> Pick:
    """NCCL's bootstrap: `ib*` first, then the first one that is not loopback, docker or virbr."""
    found = environment.interfaces
    default = next((each for turn in _TURNS for each in found if turn(each.name)), None)
    return _judged(default, environment, "NCCL takes ib* first, else the first of the kernel's list")


def gloo_pick(environment: UserEnvironment) -> Pick:
    """Gloo: the interface that has the first address of the host's own name, else loopback."""
    first = environment.host_addresses[:1]
    default = next((each for each in environment.interfaces if first and first[0] in each.addresses), None)
    told = f"the host's name {environment.host!r} resolves to {first[0] if first else 'nothing'}"
    if default is None:
        default = next((each for each in environment.interfaces if each.name.startswith("lo")), None)
    return _judged(default, environment, f"gloo takes the address of the host's name; {told}")


def _judged(default: Interface | None, environment: UserEnvironment, how: str) -> Pick:
    name = "none" if default is None else default.name
    fault = "no interface has an address" if default is None else fault_of(default)
    if not fault:
        return Pick(default=name, better="", reason=f"{how}: {name}, which other hosts can reach")
    good = [each for each in environment.interfaces if not fault_of(each)]
    named = [each for each in good if set(each.addresses) & set(environment.host_addresses)]
    best = named if len(named) == 1 else good
    if len(best) != 1:
        choice = f"{len(best)} others would do: name one" if best else "there is no other"
        return Pick(default=name, better="", reason=f"{how}: {name}, but {fault}; {choice}")
    return Pick(default=name, better=best[0].name, reason=f"{how}: {name}, but {fault}")


def fault_of(interface: Interface) -> str:
    """Why other hosts cannot be expected behind an interface; empty where they can."""
    if interface.name.startswith(_INNER):
        return f"{interface.name} leads to this host's own containers or tunnels, or back to itself"
    if not _global(interface.addresses):
        return f"{interface.name} has link-local or loopback addresses only"
    return ""


def _global(addresses: Sequence[str]) -> bool:
    parsed = [ipaddress.ip_address(text) for text in addresses]
    return any(not (each.is_loopback or each.is_link_local or each.is_unspecified) for each in parsed)
