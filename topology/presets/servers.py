"""Servers with NVLink: DGX and HGX, A100 and H100 bridges, Grace. NVIDIA's user guides and data sheets of each.

The places of GPUs and ports give the labels that `nvidia-smi topo -m` printed on such machines.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.presets import cards
from topology.presets.box import Box, Card, Cpu, Port, ports

if TYPE_CHECKING:
    from collections.abc import Mapping

INFINIBAND: Final = "infiniband"
ROCE: Final = "roce"
_ROME: Final = "AMD EPYC 7742 64-Core Processor"
_SAPPHIRE: Final = "Intel(R) Xeon(R) Platinum 8480C"
_GRACE: Final = "Neoverse-V2"

# NVLinks of the hybrid cube mesh: two quads of four, each GPU with a twin in the other quad.
QUAD: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2},
)
_CUBE: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {**QUAD, **{(a + 4, b + 4): count for (a, b), count in QUAD.items()}, (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1},
)


def bridged(pairs: int, count: int) -> Mapping[tuple[int, int], int]:
    """NVLink bridges of `count` links over neighbours: GPU 0 with 1, 2 with 3 and so on."""
    return MappingProxyType({(2 * at, 2 * at + 1): count for at in range(pairs)})


def dgx_hopper(host: str, card: Card) -> Box:
    """DGX H100 and H200: each GPU beside its port, two dual-port adapters for storage."""
    gpus = tuple(f"{at // 4}/bridge{at}/switch{at}" for at in range(8))
    beside = [f"{place}/port{at}" for at, place in enumerate(gpus)]
    storage = [f"{node}/bridge{8 + node}/adapter{node}" for node in range(2)]
    places: list[str] = []
    for node in range(2):
        first, *more = beside[4 * node : 4 * node + 4]
        places += [first, storage[node], storage[node], *more]
    return Box(
        host=host,
        cpu=Cpu(name=_SAPPHIRE, sockets=2, cores=56),
        memory_gib=2048,
        card=card,
        gpus=gpus,
        ports=ports("mlx5_{}", INFINIBAND, 400, tuple(places), 5),
        nvlinks=18,
    )


def dgx_a100(card: Card = cards.A100_80GB) -> Box:
    """DGX A100: four NUMA nodes with two GPUs and two ports each, all under one PCIe switch of two levels."""
    gpus, compute = [], []
    for group, node in enumerate((3, 1, 7, 5)):
        top = f"{node}/bridge{group}/switch{group}"
        gpus += [f"{top}/gpu{2 * group + at}" for at in range(2)]
        compute += [f"{top}/port{2 * group + at}" for at in range(2)]
    near, far = "2/bridge4/adapter0", "6/bridge5/adapter1"
    places = (*compute[:4], near, near, *compute[4:], far, far)
    return Box(
        host="dgx-a100",
        cpu=Cpu(name=_ROME, sockets=2, cores=64, nodes=4),
        memory_gib=2048 if card is cards.A100_80GB else 1024,
        card=card,
        gpus=tuple(gpus),
        ports=ports("mlx5_{}", INFINIBAND, 200, places, 4),
        nvlinks=12,
    )


def hgx_b200() -> Box:
    """HGX B200: two GPUs and two ports on each of four PCIe switches."""
    places = tuple(f"{at // 4}/bridge{at // 2}/switch{at // 2}" for at in range(8))
    return Box(
        host="hgx-b200",
        cpu=Cpu(name="INTEL(R) XEON(R) PLATINUM 8570", sockets=2, cores=56),
        memory_gib=2048,
        card=cards.B200,
        gpus=places,
        ports=ports("mlx5_{}", INFINIBAND, 400, places, 5),
        nvlinks=18,
    )


def dgx1_v100() -> Box:
    """DGX-1: hybrid cube mesh; two GPUs and a port on each of four PCIe switches, two a socket."""
    switches = tuple(f"{at // 2}/bridge{at // 2}/switch{at}" for at in range(4))
    return Box(
        host="dgx1",
        cpu=Cpu(name="Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", sockets=2, cores=20),
        memory_gib=512,
        card=cards.V100_32GB,
        gpus=tuple(switches[at // 2] for at in range(8)),
        ports=ports("mlx5_{}", INFINIBAND, 100, switches, 3),
        mesh=_CUBE,
    )


def dgx2_v100() -> Box:
    """DGX-2: 16 GPUs behind NVSwitch; four GPUs and two ports on each of four PCIe switches of two levels."""
    leaves = [f"{at // 4}/bridge{at // 2}/switch{at // 2}/leaf{at}" for at in range(8)]
    places = (*leaves[:4], "1/bridge4/adapter0", "1/bridge4/adapter0", *leaves[4:])
    return Box(
        host="dgx2",
        cpu=Cpu(name="Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", sockets=2, cores=24),
        memory_gib=1536,
        card=cards.V100_SXM3,
        gpus=tuple(leaves[at // 2] for at in range(16)),
        ports=ports("mlx5_{}", INFINIBAND, 100, places, 3),
        nvlinks=6,
    )


def a100_mesh() -> Box:
    """Four A100 each joined to each by four NVLinks, on one EPYC of four NUMA nodes (HPE Cray EX, Polaris)."""
    return Box(
        host="quad",
        cpu=Cpu(name="AMD EPYC 7543P 32-Core Processor", cores=32, nodes=4),
        memory_gib=512,
        card=cards.A100_40GB,
        gpus=tuple(f"{3 - at}/bridge{3 - at}" for at in range(4)),
        ports=ports("mlx5_{}", ROCE, 100, ("0/bridge0", "2/bridge2"), 4),
        mesh=MappingProxyType({(a, b): 4 for a in range(4) for b in range(a + 1, 4)}),
    )


def h100_nvl_x8() -> Box:
    """Eight H100 NVL in a PCIe server of two sockets, bridged two by two."""
    places = tuple(f"{at // 4}/bridge{at}" for at in range(8))
    return Box(
        host="h100-nvl",
        cpu=Cpu(name="AMD EPYC 9534 64-Core Processor", sockets=2, cores=64),
        memory_gib=1536,
        card=cards.H100_NVL,
        gpus=places,
        ports=ports("mlx5_{}", ROCE, 200, ("0/bridge1/adapter0", "0/bridge1/adapter0"), 5),
        mesh=bridged(4, 12),
    )


def gh200() -> Box:
    """One Grace Hopper superchip: the GPU hangs on its CPU by NVLink-C2C."""
    return Box(
        host="gh200",
        cpu=Cpu(name=_GRACE, cores=72, threads=1),
        memory_gib=480,
        card=cards.GH200,
        gpus=("0",),
        ports=ports("mlx5_{}", INFINIBAND, 400, ("0/bridge0",), 5),
        c2c_gb=450,
    )


def gb200_tray() -> Box:
    """One compute tray of GB200 NVL72: two Grace with two GPUs each; four ports, and two dual-port BlueField-3.

    The two GPUs of a Grace share its NVLink-C2C: each is drawn with half.
    """
    compute = [f"{at // 2}/bridge{at}" for at in range(4)]
    storage = ["0/bridge4/adapter0", "1/bridge5/adapter1"]
    places = (*compute[:2], storage[0], storage[0], *compute[2:], storage[1], storage[1])
    made = ports("mlx5_{}", INFINIBAND, 400, places, 5)
    return Box(
        host="gb200",
        cpu=Cpu(name=_GRACE, sockets=2, cores=72, threads=1),
        memory_gib=960,
        card=cards.GB200,
        gpus=("0", "0", "1", "1"),
        ports=tuple(_storage(port) if port.place in storage else port for port in made),
        nvlinks=18,
        c2c_gb=225,
    )


def _storage(port: Port) -> Port:
    return Port(name=port.name, kind=ROCE, gbit=200, place=port.place, generation=port.generation)
