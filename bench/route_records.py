"""The machines of published collective measurements, drawn as capacity graphs, and why some records do not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from topology.graph import UNIT_BYTES_PER_SECOND, Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.link_rates import pcie_rate
from topology.model import Link, Topology
from topology.network import NetworkSpec, merge
from topology.presets import preset
from topology.probe import read_topology
from topology.units import GB

Draw = Callable[[Path], Graph]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A published measurement: `busbw` in GB/s, one value or by size in bytes."""

    name: str
    op: str
    system: str
    busbw: dict[int, float]
    algorithm: str | None
    size: int | None
    draw: Draw | None
    reason: str


def _units(rate_gb: float) -> int:
    return round(rate_gb * GB / UNIT_BYTES_PER_SECOND)


def drawn(
    *,
    hosts: int,
    gpus: int,
    nvlink: float,
    capability: tuple[int, int],
    ports: int = 0,
    port: float = 0,
    name: str = "",
) -> Graph:
    """Hosts of GPUs behind one NVSwitch each (`nvlink` GB/s a GPU), with ports of `port` GB/s on one network switch."""
    nodes = [
        Node(id=f"h{h}/gpu{g}", kind=NodeKind.device, host=f"h{h}", compute_capability=capability, name=name)
        for h in range(hosts)
        for g in range(gpus)
    ]
    edges: list[tuple[int, int, int, LinkClass]] = []

    def node(name: str, kind: NodeKind, host: str | None) -> int:
        nodes.append(Node(id=name, kind=kind, host=host))
        return len(nodes) - 1

    network = node("network", NodeKind.network, None) if hosts > 1 else -1
    for h in range(hosts):
        if gpus > 1:
            switch = node(f"h{h}/nvswitch", NodeKind.nvswitch, f"h{h}")
            edges += [(h * gpus + g, switch, _units(nvlink), LinkClass.nvlink) for g in range(gpus)]
        for p in range(ports if hosts > 1 else 0):
            nic, near = node(f"h{h}/nic{p}", NodeKind.nic, f"h{h}"), h * gpus + p * gpus // ports
            edges.append((nic, network, _units(port), LinkClass.network))
            served = range(near, h * gpus + max((p + 1) * gpus // ports, p * gpus // ports + 1))
            edges += [(gpu, nic, _units(2 * port), LinkClass.pcie) for gpu in served]
    return _graph(nodes, edges, hosts * gpus)


def mesh(
    *, gpus: int, rate: float, of: int, kind: LinkClass = LinkClass.xgmi, capability: tuple[int, int] = (9, 4)
) -> Graph:
    """The first `of` GPUs of a full mesh of `gpus` with `rate` GB/s a link."""
    del gpus  # links to GPUs outside the group carry nothing
    nodes = [Node(id=f"gpu{g}", kind=NodeKind.device, host="h", compute_capability=capability) for g in range(of)]
    edges = [(a, b, _units(rate), kind) for a in range(of) for b in range(a + 1, of)]
    return _graph(nodes, edges, of)


def _graph(nodes: list[Node], edges: list[tuple[int, int, int, LinkClass]], size: int) -> Graph:
    both = [
        Edge(tail=tail, head=head, units=units, link=link, source="drawn")
        for a, b, units, link in edges
        for tail, head in ((a, b), (b, a))
    ]
    return Graph(nodes=tuple(nodes), edges=tuple(both), size=size)


def _preset(name: str, nodes: int = 1, of: int | None = None) -> Draw:
    def draw(_: Path) -> Graph:
        found = preset(name, nodes=nodes)
        return graph_of(found, [device.id for device in found.gpus[:of]])

    return draw


def _file(path: str, hosts: int = 1, *, pcie: int | None = None, port: float | None = None) -> Draw:
    """A file of the corpus; the text tells neither PCIe generation nor port rates, the record's system does."""

    def draw(corpus: Path) -> Graph:
        one = read_topology(corpus / path)
        if pcie is not None:
            one = replace(one, links=tuple(_with_rate(link, pcie) for link in one.links))
        network = None if port is None else NetworkSpec(bytes_per_second=port * GB)
        found: Topology = one if hosts == 1 else merge([one] * hosts, network)
        return graph_of(found)

    return draw


def _with_rate(link: Link, generation: int) -> Link:
    rate = pcie_rate(generation, 16)
    if link.kind != "PCIe" or rate is None:
        return link
    return replace(link, bytes_per_second=rate.bytes_per_second, source=f"PCIe Gen{generation} x16, by the system")


def _h200(of: int) -> Draw:
    return _preset("dgx_h200", of=of)


def _always(**values: Any) -> Draw:  # noqa: ANN401 - passed on
    return lambda _: drawn(**values)


_GB10: Final[dict[str, Any]] = {"gpus": 1, "nvlink": 0, "capability": (12, 1), "ports": 1, "port": 25, "name": "GB10"}
MACHINES: Final[dict[str, Draw]] = {
    "p001": _preset("dgx_a100"),
    "p002": _preset("dgx_h100"),
    "p008": _preset("dgx1_v100"),
    "p010": lambda _: mesh(gpus=8, rate=76.8, of=8),
    "p014": _file("smi/099.txt", hosts=2, pcie=5, port=50),
    "p015": _preset("hgx_b200"),
    "p016": _always(hosts=4, gpus=8, nvlink=900, capability=(10, 0), ports=8, port=50),
    "p017": _h200(4),
    "p019": _h200(6),
    "p020": _h200(7),
    "p021": _h200(8),
    "p023": _preset("hgx_b200", of=5),
    "p024": _preset("hgx_b200", of=6),
    "p026": _preset("hgx_b200"),
    "p028": _h200(8),
    "p030": _h200(8),
    "p033": lambda _: mesh(gpus=8, rate=64, of=2),
    "p036": _always(hosts=8, gpus=8, nvlink=450, capability=(9, 0), ports=8, port=50),
    "p047": _always(hosts=2, gpus=8, nvlink=450, capability=(9, 0), ports=8, port=50),
    "p048": _preset("p4d"),
    "p052": _always(hosts=2, gpus=8, nvlink=300, capability=(8, 0), ports=4, port=25),
    "p054": _preset("a100_pcie_pairs_x8", of=3),
    "p055": _file("smi/068.txt", pcie=4),
    "p065": lambda _: mesh(gpus=2, rate=300, of=2, kind=LinkClass.nvlink, capability=(9, 0)),
    "p066": _preset("dgx_h100"),
    "p068": _preset("hgx_b200"),
    "p069": _h200(8),
    "p072": lambda _: mesh(gpus=2, rate=51.6, of=2, kind=LinkClass.nvlink, capability=(7, 5)),
    "p073": _preset("dgx_a100"),
    "p074": _always(hosts=2, gpus=1, nvlink=0, capability=(9, 0), ports=4, port=50),
    "p081": _always(hosts=2, **_GB10),
    "p083": _always(hosts=4, **_GB10),
    "p085": _always(hosts=2, **_GB10),
    "p086": _always(hosts=4, **_GB10),
    "p097": _always(hosts=6, gpus=8, nvlink=450, capability=(9, 0), ports=8, port=50),
    "p110": _file("smi/095.txt", pcie=5),
    "p111": _file("smi/094.txt", pcie=5),
}
# Records that say what they are not: broken setups, statements, other quantities.
NOT_COUNTED: Final[dict[str, str]] = {
    "p035": "the machine is not stated",
    "p039": "a range over jobs of 20 racks, without a size or a network",
    "p045": "a sweep over ports of a guest that falls from two ports to three",
    "p046": "a virtual machine without ATS: 6 GB/s between 100 and 300 MB",
    "p047": "an average over sizes, of which the list is not given",
    "p049": "its reporter calls the network broken (57 of 50 GB/s a host would be right: see the table of two hosts)",
    "p051": "its reporter calls the network broken",
    "p056": "a pair of the machine copies at 2.7 GB/s: broken PCIe",
    "p057": "the machine of p056",
    "p075": "a broken setup, says the record",
    "p078": "a pod whose same-switch pair is slower than its cross-socket pair: no P2P, unknown slots",
    "p007": "a threshold for acceptance",
    "p066": "a maintainer's statement",
    "p097": "a maintainer's statement",
    "p099": "figures are images",
    "p124": "a bound, not a run",
    "p125": "a bound, not a run",
    "p126": "a bound, not a run",
    "p074": "NCCL_ALGO=Tree was forced, which cannot use four ports of one GPU",
}
_OPS: Final = {"all_reduce", "all_gather", "reduce_scatter", "alltoall"}


def read_records(corpus: Path) -> list[Record]:
    """Records of the four collectives that give a bus bandwidth, in the order of the file."""
    data = yaml.safe_load((corpus / "collective_perf.yaml").read_text(encoding="utf-8"))
    found = []
    for raw in data["records"]:
        values = _values(raw)
        if raw["op"] in _OPS and values:
            name = raw["id"]
            found.append(
                Record(
                    name=name,
                    op=raw["op"],
                    system=raw["system"],
                    busbw=values,
                    algorithm=raw.get("algo"),
                    size=raw.get("size"),
                    draw=MACHINES.get(name),
                    reason=NOT_COUNTED.get(name, "" if name in MACHINES else "not drawn"),
                )
            )
    return found


def _values(raw: dict[str, Any]) -> dict[int, float]:
    """Bus bandwidth by size; 8 GiB where a record tells none."""
    if "curve_busbw" in raw:
        return {int(size): float(value) for size, value in raw["curve_busbw"].items()}
    value = raw.get("busbw")
    if isinstance(value, dict):
        value = value.get("ring")
    return {} if value is None else {int(raw.get("size") or 2**33): float(value)}
