"""Cloud instances: what the providers' pages and their NCCL topology files tell. All are virtual machines."""

from __future__ import annotations

from typing import Final

from topology.presets import cards
from topology.presets.box import Box, Card, Cpu, ports
from topology.presets.servers import INFINIBAND, QUAD

_EFA: Final = "efa"


def p3_8xlarge() -> Box:
    """AWS p3.8xlarge: four V100-SXM2-16GB, half of a hybrid cube mesh, joined by one or two NVLinks a pair."""
    return Box(
        host="p3",
        cpu=Cpu(name=None, cores=32, threads=1),
        memory_gib=244,
        card=cards.V100_16GB,
        gpus=tuple(f"0/bridge{at}" for at in range(4)),
        mesh=QUAD,
        is_virtual=True,
    )


def p4d(host: str, card: Card, memory_gib: int) -> Box:
    """AWS p4d.24xlarge and p4de: two GPUs and a 100 Gb/s EFA on each of four PCIe switches, drawn as Gen3.

    The generation is the one of the provider's topology file; the cards could do Gen4.
    """
    switches = tuple(f"{at // 2}/bridge{at}/switch{at}" for at in range(4))
    return Box(
        host=host,
        cpu=Cpu(name="Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", sockets=2, cores=24),
        memory_gib=memory_gib,
        card=card,
        gpus=tuple(switches[at // 2] for at in range(8)),
        ports=ports("rdmap{}", _EFA, 100, switches, 3),
        nvlinks=12,
        slot_generation=3,
        is_virtual=True,
    )


def p5() -> Box:
    """AWS p5.48xlarge: eight H100, each with four 100 Gb/s EFA on its PCIe switch."""
    switches = tuple(f"{at // 4}/bridge{at}/switch{at}" for at in range(8))
    return Box(
        host="p5",
        cpu=Cpu(name="AMD EPYC 7R13 Processor", sockets=2, cores=48),
        memory_gib=2048,
        card=cards.H100,
        gpus=switches,
        ports=ports("rdmap{}", _EFA, 100, tuple(switches[at // 4] for at in range(32)), 5),
        nvlinks=18,
        is_virtual=True,
    )


def ndv4(host: str, card: Card, memory_gib: int) -> Box:
    """Azure ND A100 v4: two GPUs and two 200 Gb/s ports on the PCIe switch of each of four NUMA nodes."""
    places = tuple(f"{node}/bridge{node}/switch{node}" for node in (1, 1, 0, 0, 3, 3, 2, 2))
    return Box(
        host=host,
        cpu=Cpu(name="AMD EPYC 7V12 64-Core Processor", sockets=2, cores=48, threads=1, nodes=2),
        memory_gib=memory_gib,
        card=card,
        gpus=places,
        ports=ports("mlx5_ib{}", INFINIBAND, 200, places, 4),
        nvlinks=12,
        is_virtual=True,
    )


def ndv5() -> Box:
    """Azure ND H100 v5: each of eight GPUs with a 400 Gb/s port on a PCIe switch."""
    places = tuple(f"{at // 4}/bridge{at}/switch{at}" for at in range(8))
    return Box(
        host="ndv5",
        cpu=Cpu(name="Intel(R) Xeon(R) Platinum 8480C", sockets=2, cores=48, threads=1),
        memory_gib=1900,
        card=cards.H100,
        gpus=places,
        ports=ports("mlx5_ib{}", INFINIBAND, 400, places, 5),
        nvlinks=18,
        is_virtual=True,
    )


def g5_12xlarge() -> Box:
    """AWS g5.12xlarge: four A10G, all under one host bridge as the virtual machine shows it."""
    return Box(
        host="g5",
        cpu=Cpu(name="AMD EPYC 7R32", cores=24),
        memory_gib=192,
        card=cards.A10G,
        gpus=("0/bridge0",) * 4,
        ports=ports("ens{}", "ethernet", 40, ("0/bridge0",), 4),
        is_virtual=True,
    )
