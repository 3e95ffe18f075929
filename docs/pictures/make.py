"""Draw the machines of docs/pictures anew: `python docs/pictures/make.py`, from the root of the repository."""  # noqa: INP001 - a script

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.pcie_tree import Chain, Hop, Member, PcieTree, tree_from_chains
from topology.render.svg import svg
from topology.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SOURCE = "drawn: advertised rate"
# NVLinks between the eight V100 of a DGX-1: two full squares, joined corner by corner.
CUBE = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (1, 2): 2,
    (1, 3): 1,
    (2, 3): 2,
    (0, 4): 2,
    (1, 5): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}


def one() -> Topology:
    """One RTX 4090 in a desktop with Ethernet."""
    gpus = make_gpus("desktop", "NVIDIA GeForce RTX 4090", 24, Pcie(max_generation=4, max_width=16), (0,))
    nics = (Nic(id="desktop/eno1", name="eno1", kind="ethernet", bytes_per_second=2.5 * GB / 8, numa=0),)
    ways = [Chain(member=member(gpu), bridge="desktop/bridge0") for gpu in gpus]
    ways += [Chain(member=member(nic), bridge="desktop/bridge0") for nic in nics]
    tree = tree_of("desktop", ways)
    host = make_host("desktop", gpus, nics, cores=16, memory_gib=64, cpu="AMD Ryzen 9 7950X")
    return Topology(hosts=(host,), switches=tree.switches, links=tree.links, source="drawn")


def four() -> Topology:
    """Four RTX 3090 behind two PCIe switches with a NIC each; each two share an NVLink bridge."""
    gpus = make_gpus("rig", "NVIDIA GeForce RTX 3090", 24, Pcie(max_generation=4, max_width=16), (0, 0, 0, 0))
    nics = make_nics("rig", 2, 100, (0, 0))
    up = Pcie(max_generation=4, max_width=16)
    ways = [
        Chain(member=member(part, up), hops=(Hop(id=f"rig/pcie{at}", pcie=up),), bridge=f"rig/bridge{at}")
        for at, parts in enumerate(((gpus[0], gpus[1], nics[0]), (gpus[2], gpus[3], nics[1])))
        for part in parts
    ]
    tree = tree_of("rig", ways)
    counts = {(0, 1): 4, (2, 3): 4}
    links, pairs = mesh(gpus, counts, 14.0625, lambda a, b: "PHB" if {a, b} <= {0, 1} or {a, b} <= {2, 3} else "NODE")
    host = make_host("rig", gpus, nics, cores=64, memory_gib=512, cpu="AMD EPYC 7713")
    return Topology(hosts=(host,), switches=tree.switches, links=(*tree.links, *links), pairs=pairs, source="drawn")


def eight() -> Topology:
    """Eight V100 as a cube mesh (DGX-1), two GPUs and a NIC behind each PCIe switch."""
    numa = (0, 0, 0, 0, 1, 1, 1, 1)
    gpus = make_gpus("dgx1", "Tesla V100-SXM2-32GB", 32, Pcie(max_generation=3, max_width=16), numa)
    nics = make_nics("dgx1", 4, 100, (0, 0, 1, 1))
    up = Pcie(max_generation=3, max_width=16)
    ways = [way("dgx1", member(gpu), at // 2, up) for at, gpu in enumerate(gpus)]
    ways += [way("dgx1", member(nic, up), at, up) for at, nic in enumerate(nics)]
    tree = tree_of("dgx1", ways)
    links, pairs = mesh(gpus, CUBE, 25.0, lambda _a, _b: "SYS")
    cpu = "Intel Xeon E5-2698 v4"
    host = make_host("dgx1", gpus, nics, cores=40, memory_gib=512, cpu=cpu, sockets=2)
    return Topology(hosts=(host,), switches=tree.switches, links=(*tree.links, *links), pairs=pairs, source="drawn")


def sixteen() -> Topology:
    """Sixteen V100 on two boards of six NVSwitches each (DGX-2); the file tells no PCIe speeds."""
    numa = (0,) * 8 + (1,) * 8
    gpus = make_gpus("dgx2", "Tesla V100-SXM3-32GB", 32, None, numa)
    nics = make_nics("dgx2", 8, 100, (0,) * 4 + (1,) * 4)
    ways = [way("dgx2", member(gpu), at // 2, None) for at, gpu in enumerate(gpus)]
    ways += [way("dgx2", member(nic), at, None) for at, nic in enumerate(nics)]
    tree = tree_of("dgx2", ways)
    boards = [
        [Switch(id=f"dgx2/nvswitch{board * 6 + at}", kind=SwitchKind.nvswitch, host="dgx2") for at in range(6)]
        for board in (0, 1)
    ]
    links = [nvlink(gpu.id, s.id, 1, 25.0) for at, gpu in enumerate(gpus) for s in boards[at // 8]]
    links += [nvlink(a.id, b.id, 8, 25.0) for a, b in zip(*boards, strict=True)]
    pairs = tuple(Pair(a=a.id, b=b.id, kind="NV6") for a, b in combinations(gpus, 2))
    cpu = "Intel Xeon Platinum 8168"
    host = make_host("dgx2", gpus, nics, cores=48, memory_gib=1536, cpu=cpu, sockets=2)
    return Topology(
        hosts=(host,),
        switches=(*tree.switches, *boards[0], *boards[1]),
        links=(*tree.links, *links),
        pairs=pairs,
        warnings=("the capacity of 32 PCIe links is unknown: assumed to be Gen3 x16",),
        source="drawn",
    )


def two_hosts() -> Topology:
    """Two hosts of eight H100 behind NVSwitch; each of their eight NICs has a switch of its own (rails)."""
    rails = tuple(Switch(id=f"rail{at}", kind=SwitchKind.network) for at in range(8))
    made = [h100_host(f"node{at}", first=8 * at) for at in range(2)]
    # One GPU of the second host has lost two of its NVLinks.
    made[1] = degraded(made[1], 3)
    wires = tuple(
        Link(a=nic.id, b=rail.id, kind="NET", bytes_per_second=50.0 * GB, source="drawn: 400 Gb/s")
        for one_host in made
        for nic, rail in zip(one_host.nics, rails, strict=True)
    )
    return Topology(
        hosts=tuple(part.hosts[0] for part in made),
        switches=(*made[0].switches, *made[1].switches, *rails),
        links=(*made[0].links, *made[1].links, *wires),
        pairs=(*made[0].pairs, *made[1].pairs),
        warnings=("node1: GPU3 has 16 NVLinks, the other GPUs have 18",),
        source="drawn",
    )


def h100_host(name: str, first: int = 0) -> Topology:
    """Eight H100 behind NVSwitch, each with a NIC behind its own PCIe switch."""
    numa = (0, 0, 0, 0, 1, 1, 1, 1)
    up = Pcie(max_generation=5, max_width=16)
    gpus = make_gpus(name, "NVIDIA H100 80GB HBM3", 80, up, numa, first=first)
    nics = make_nics(name, 8, 400, numa)
    ways = [way(name, member(gpu), at, up) for at, gpu in enumerate(gpus)]
    ways += [way(name, member(nic, up), at, up) for at, nic in enumerate(nics)]
    tree = tree_of(name, ways)
    switch = Switch(id=f"{name}/nvswitch", kind=SwitchKind.nvswitch, host=name)
    links = tuple(nvlink(gpu.id, switch.id, 18, 25.0) for gpu in gpus)
    pairs = tuple(Pair(a=a.id, b=b.id, kind="NV18") for a, b in combinations(gpus, 2))
    host = make_host(name, gpus, nics, cores=112, memory_gib=2048, cpu="Intel Xeon Platinum 8480C", sockets=2)
    return Topology(
        hosts=(host,), switches=(*tree.switches, switch), links=(*tree.links, *links), pairs=pairs, source="drawn"
    )


def degraded(topology: Topology, at: int) -> Topology:
    """Take two NVLinks from a GPU."""
    name = topology.devices[at].id
    links = tuple(nvlink(x.a, x.b, 16, 25.0) if x.a == name and x.kind == "NV18" else x for x in topology.links)
    pairs = tuple(replace(pair, kind="NV16") if name in {pair.a, pair.b} else pair for pair in topology.pairs)
    return replace(topology, links=links, pairs=pairs)


def make_gpus(
    host: str, name: str, memory_gib: int, pcie: Pcie | None, numa: Sequence[int], first: int = 0
) -> tuple[Device, ...]:
    """Make the GPUs of a host."""
    return tuple(
        Device(
            id=f"GPU-{first + at:08d}",
            host=host,
            kind=DeviceKind.gpu,
            name=name,
            memory_bytes=memory_gib * GIB,
            numa=node,
            index=at,
            pcie=pcie,
        )
        for at, node in enumerate(numa)
    )


def make_nics(host: str, count: int, gbit: int, numa: Sequence[int]) -> tuple[Nic, ...]:
    """Make the InfiniBand NICs of a host."""
    return tuple(
        Nic(
            id=f"{host}/mlx5_{at}",
            name=f"mlx5_{at}",
            kind="infiniband",
            bytes_per_second=gbit * GB / 8,
            numa=numa[at],
        )
        for at in range(count)
    )


def make_host(
    name: str,
    gpus: tuple[Device, ...],
    nics: tuple[Nic, ...],
    *,
    cores: int,
    memory_gib: int,
    cpu: str,
    sockets: int = 1,
) -> Host:
    """Make a host."""
    return Host(
        name=name,
        memory_bytes=memory_gib * GIB,
        cores=cores,
        sockets=sockets,
        devices=gpus,
        nics=nics,
        cpu_name=cpu,
    )


def member(part: Device | Nic, pcie: Pcie | None = None) -> Member:
    """Put a device or NIC into the PCIe tree."""
    return Member(id=part.id, numa=part.numa, pcie=part.pcie if isinstance(part, Device) else pcie)


def way(host: str, part: Member, switch: int, up: Pcie | None) -> Chain:
    """Lead a part up over its PCIe switch, which has a host bridge of its own."""
    return Chain(member=part, hops=(Hop(id=f"{host}/pcie{switch}", pcie=up),), bridge=f"{host}/bridge{switch}")


def tree_of(host: str, ways: Sequence[Chain]) -> PcieTree:
    """Build the PCIe tree, with figures of our own for unknown rates: the pictures stay when the tables grow."""
    tree = tree_from_chains(host, ways)
    assumed = {"SYS": 10.0 * GB, "PCIe": 15.75 * GB}
    links = tuple(
        replace(link, bytes_per_second=None, assumed_bytes_per_second=assumed[link.kind], source="drawn: unknown")
        if link.kind == "SYS" or (link.kind in assumed and link.bytes_per_second is None)
        else link
        for link in tree.links
    )
    return replace(tree, links=links)


def nvlink(a: str, b: str, count: int, link_gb: float) -> Link:
    """Bundle NVLinks."""
    return Link(a=a, b=b, kind=f"NV{count}", bytes_per_second=count * link_gb * GB, source=SOURCE)


def mesh(
    gpus: Sequence[Device],
    counts: Mapping[tuple[int, int], int],
    link_gb: float,
    other: Callable[[int, int], str],
) -> tuple[tuple[Link, ...], tuple[Pair, ...]]:
    """Join GPUs directly by so many NVLinks; other pairs have the given PCIe label."""
    links = tuple(nvlink(gpus[a].id, gpus[b].id, count, link_gb) for (a, b), count in sorted(counts.items()))
    pairs = tuple(
        Pair(a=gpus[a].id, b=gpus[b].id, kind=f"NV{counts[a, b]}" if (a, b) in counts else other(a, b))
        for a, b in combinations(range(len(gpus)), 2)
    )
    return links, pairs


MACHINES = {"one": one, "four": four, "eight": eight, "sixteen": sixteen, "two_hosts": two_hosts}


def main() -> None:
    """Write every picture beside this file."""
    for name, make in MACHINES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(svg(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
