"""How near to the optimum the schedules come: achieved / bound for large messages, on drawn and on real machines.

    python bench/route_table.py [FOLDER...] [--nodes 1,2] [--most 32] [--only NAME] [--low 0.95]

Each folder holds `nvidia-smi topo -m` texts or NCCL topology XML. Every schedule proves itself when it is built; the
ratio compares its busiest edge with the bound of the cuts. Machines of more than `--most` devices are left out, and
said so. Times are processor seconds of building and proving.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Graph, graph_of
from topology.presets import preset, preset_names
from topology.probe import read_topology
from topology.routing.bound import bound
from topology.routing.double_tree import double_tree
from topology.routing.hierarchical import hierarchical, leaders
from topology.routing.packing import packing
from topology.routing.ring import multi_ring, ring
from topology.schedule import Schedule

ALGORITHMS: dict[str, Callable[[Graph, Collective], Schedule]] = {
    "ring": ring,
    "multi_ring": multi_ring,
    "double_tree": double_tree,
    "hierarchical": hierarchical,
    "leaders": leaders,
    "packing": packing,
}
SHORT = {Collective.all_gather: "AG", Collective.reduce_scatter: "RS", Collective.all_reduce: "AR"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One collective on one machine: ratio and build seconds of each algorithm that can do it."""

    machine: str
    size: int
    collective: Collective
    ratios: dict[str, float]
    seconds: dict[str, float]

    @property
    def best(self) -> str:
        """The algorithm that comes nearest."""
        return max(self.ratios, key=lambda name: self.ratios[name])


def rows(machine: str, graph: Graph) -> Iterator[Row]:
    """Yield the three collectives."""
    for collective in SHORT:
        least = float(bound(graph, collective).seconds_per_byte)
        ratios, seconds = {}, {}
        for name, build in ALGORITHMS.items():
            start = time.process_time()
            try:
                made = build(graph, collective)
            except TopologyError:
                continue  # a single island, a collective it does not do, or too large: another algorithm serves
            seconds[name] = time.process_time() - start
            ratios[name] = least / made.overlapped_seconds_per_byte if made.overlapped_seconds_per_byte else 1.0
        yield Row(machine=machine, size=graph.size, collective=collective, ratios=ratios, seconds=seconds)


def machines(folders: list[Path], nodes: list[int], only: str) -> Iterator[tuple[str, Graph]]:
    """Yield the graphs of drawn machines and of files; a file that is no machine is passed over, and named."""
    for name in preset_names():
        for count in nodes:
            if only in name:
                yield from drawn(name, count)
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in {".txt", ".xml"}):
            if only in path.name:
                yield from read(path, f"{path.parent.name}/{path.name}")


def drawn(name: str, count: int) -> Iterator[tuple[str, Graph]]:
    """Yield a drawn machine, `count` times, unless it cannot be drawn so or has one device."""
    try:
        graph = graph_of(preset(name, nodes=count))
    except TopologyError as error:
        print(f"- {name} x{count}: {error.found}")
        return
    if graph.size > 1:
        yield f"{name} x{count}", graph


def read(path: Path, name: str) -> Iterator[tuple[str, Graph]]:
    """Yield a machine from a file, unless it holds none or one device."""
    try:
        graph = graph_of(read_topology(path))
    except TopologyError as error:
        print(f"- {name}: {error.problems[0][:100]}")
        return
    if graph.size > 1:
        yield name, graph


def main() -> int:
    """Print the table; returns 1 if some machine has no schedule near enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--nodes", default="1,2")
    parser.add_argument("--most", type=int, default=32)
    parser.add_argument("--only", default="")
    parser.add_argument("--low", type=float, default=0.95)
    given = parser.parse_args()
    print(f"| machine | devices | collective | best | achieved / bound | {' | '.join(ALGORITHMS)} | slowest build |")
    print("|---" * (6 + len(ALGORITHMS)) + "|")
    low: list[Row] = []
    count = 0
    for machine, graph in machines(given.folders, [int(text) for text in given.nodes.split(",")], given.only):
        if graph.size > given.most:
            print(f"- {machine}: {graph.size} devices, more than {given.most}")
            continue
        for row in rows(machine, graph):
            count += 1
            told = " | ".join(f"{row.ratios[name]:.3f}" if name in row.ratios else "" for name in ALGORITHMS)
            slowest = max(row.seconds, key=lambda name: row.seconds[name])
            print(
                f"| {row.machine} | {row.size} | {SHORT[row.collective]} | {row.best} | {row.ratios[row.best]:.3f} "
                f"| {told} | {slowest} {row.seconds[slowest]:.2f} s |",
                flush=True,
            )
            if row.ratios[row.best] < given.low:
                low.append(row)
    print(f"\n{count} rows, {len(low)} below {given.low}")
    for row in low:
        print(f"- {row.machine}, {SHORT[row.collective]}: {row.ratios[row.best]:.3f} by {row.best}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
