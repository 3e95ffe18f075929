"""Which interface the libraries take by themselves."""

from __future__ import annotations

import pytest

from orchestrator.environment.given import Interface, UserEnvironment
from orchestrator.environment.interfaces import gloo_pick, nccl_pick

LO = ("lo", "127.0.0.1")
DOCKER = ("docker0", "172.17.0.1")
BRIDGE = ("br-5f1c", "172.18.0.1")
ETH = ("eth0", "10.0.0.5")
SECOND = ("eth1", "10.1.0.5")
IB = ("ib0", "192.168.7.5")
BARE = ("enp3s0", "fe80::1")


def environment(*interfaces: tuple[str, str], host: str = "") -> UserEnvironment:
    return UserEnvironment(
        host="node",
        interfaces=tuple(Interface(name=name, addresses=(address,)) for name, address in interfaces),
        host_addresses=(host,) if host else (),
    )


@pytest.mark.parametrize(
    ("interfaces", "default", "better"),
    [
        ((LO, ETH), "eth0", ""),
        ((LO, DOCKER, ETH), "eth0", ""),
        ((LO, ETH, IB), "ib0", ""),
        ((LO, BRIDGE, ETH), "br-5f1c", "eth0"),
        ((LO, BARE, ETH), "enp3s0", "eth0"),
        ((LO, BRIDGE, ETH, SECOND), "br-5f1c", ""),  # which of two is the user's to say
        ((LO, DOCKER), "docker0", ""),
        ((LO,), "lo", ""),
        ((), "none", ""),
    ],
)
def test_nccl(interfaces: tuple[tuple[str, str], ...], default: str, better: str) -> None:
    found = nccl_pick(environment(*interfaces))
    assert (found.default, found.better) == (default, better)


@pytest.mark.parametrize(
    ("host", "default", "better"),
    [
        ("10.0.0.5", "eth0", ""),
        ("127.0.1.1", "lo", "eth0"),  # Debian's /etc/hosts names the host so
        ("172.18.0.1", "br-5f1c", "eth0"),
        ("", "lo", "eth0"),
    ],
)
def test_gloo(host: str, default: str, better: str) -> None:
    found = gloo_pick(environment(LO, BRIDGE, ETH, host=host))
    assert (found.default, found.better) == (default, better)


def test_among_several_the_one_of_the_hosts_name_is_better() -> None:
    assert nccl_pick(environment(LO, BRIDGE, ETH, SECOND, host="10.1.0.5")).better == "eth1"
