"""Machines whose GPUs sit in PCIe slots: workstations, PCIe servers and single cards.

Of such machines there are many kinds: each is drawn as one whose `nvidia-smi topo -m` output is public, and a single
card in a plain host of its class.
"""

from __future__ import annotations

from typing import Final

from topology.presets.box import Box, Card, Cpu, ports
from topology.presets.servers import ROCE, bridged

_ETHERNET: Final = "ethernet"
_RYZEN: Final = Cpu(name="AMD Ryzen 9 7950X 16-Core Processor", cores=16)
_THREADRIPPER: Final = Cpu(name="AMD Ryzen Threadripper PRO 5975WX 32-Cores", cores=32)
_MILAN: Final = Cpu(name="AMD EPYC 7543 32-Core Processor", cores=32)
_TWO_ROME: Final = Cpu(name="AMD EPYC 7742 64-Core Processor", sockets=2, cores=64)
_TWO_ICE_LAKE: Final = Cpu(name="Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", sockets=2, cores=32)


def desktop(card: Card) -> Box:
    """One GeForce card in a desktop."""
    return Box(
        host="desktop",
        cpu=_RYZEN,
        memory_gib=64,
        card=card,
        gpus=("0/bridge0",),
        ports=ports("enp{}s0", _ETHERNET, 10, ("0/bridge0",), 4),
        is_virtual=False,
    )


def server(card: Card) -> Box:
    """One data-centre card in a server of one socket."""
    return Box(
        host="server",
        cpu=_MILAN,
        memory_gib=256,
        card=card,
        gpus=("0/bridge0",),
        ports=ports("enp{}s0f0", _ETHERNET, 25, ("0/bridge1",), 4),
    )


def same_bridge(card: Card, count: int, mesh_links: int = 0) -> Box:
    """A workstation with all cards under one host bridge (PHB), perhaps with NVLink bridges."""
    return Box(
        host="workstation",
        cpu=_THREADRIPPER,
        memory_gib=256,
        card=card,
        gpus=("0/bridge0",) * count,
        ports=ports("enp{}s0", _ETHERNET, 10, ("0/bridge0",), 4),
        mesh=bridged(count // 2, mesh_links) if mesh_links else {},
    )


def direct_x8(card: Card, cpu: Cpu = _TWO_ROME) -> Box:
    """Eight cards in a server of two sockets, each on a root port of its own: NODE in a socket, SYS between."""
    return Box(
        host="pcie8",
        cpu=cpu,
        memory_gib=512,
        card=card,
        gpus=tuple(f"{at // 4}/bridge{at}" for at in range(8)),
        ports=ports("mlx5_{}", ROCE, 100, ("0/bridge8/adapter0", "0/bridge8/adapter0"), 4),
    )


def switched_x8(card: Card) -> Box:
    """Eight cards in a server of two sockets, four and a port on the PCIe switch of each."""
    switches = ("0/bridge0/switch0", "1/bridge1/switch1")
    return Box(
        host="pcie8",
        cpu=_TWO_ICE_LAKE,
        memory_gib=1024,
        card=card,
        gpus=tuple(switches[at // 4] for at in range(8)),
        ports=ports("mlx5_{}", ROCE, 200, switches, 4),
    )


def switched_pairs(card: Card) -> Box:
    """Four cards in a server of two sockets, two on the PCIe switches of each (PXB)."""
    return Box(
        host="pcie4",
        cpu=Cpu(name="Intel(R) Xeon(R) Gold 6342 CPU @ 2.80GHz", sockets=2, cores=24),
        memory_gib=512,
        card=card,
        gpus=tuple(f"{at // 2}/bridge{at // 2}/switch{at // 2}/leaf{at}" for at in range(4)),
        ports=ports("mlx5_{}", ROCE, 100, ("1/bridge1/switch1/leaf4", "1/bridge1/switch1/leaf4"), 4),
    )


def bridged_pairs(card: Card, pairs: int, links: int) -> Box:
    """Cards in a server of two sockets, joined two by two by NVLink bridges within a socket."""
    return Box(
        host=f"pairs{pairs}",
        cpu=_TWO_ICE_LAKE,
        memory_gib=512,
        card=card,
        gpus=tuple(f"{at // pairs}/bridge{at}" for at in range(2 * pairs)),
        ports=ports("mlx5_{}", ROCE, 100, (f"0/bridge{2 * pairs}",), 4),
        mesh=bridged(pairs, links),
    )
