"""How near each all-to-all schedule comes to the best flow, for drawn machines and folders of real ones.

    python bench/all_to_all_table.py [FOLDER...]

Each folder is searched for `nvidia-smi topo -m` texts (*.txt) and NCCL topology XML. Figures are shares of the bound
with relay: 1.000 is the best that the wires allow. The last column is the seconds that planning took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from topology.errors import TopologyError
from topology.graph import Graph, graph_of
from topology.model import Topology
from topology.presets import preset, preset_names
from topology.probe import read_topology
from topology.routing.all_to_all import ALL_TO_ALL, MOST_IN_RING
from topology.routing.concurrent_flow import concurrent_flow

CLUSTERS = (("dgx_h100", 2), ("dgx_h100", 4), ("p5", 2), ("dgx1_v100", 2), ("a100_pcie_pairs_x8", 2))
AIM = 0.90


def machines(folders: list[Path]) -> Iterator[tuple[str, Topology]]:
    """Drawn machines, some clusters of them, and every file that can be read."""
    for name in preset_names():
        yield name, preset(name)
    for name, nodes in CLUSTERS:
        yield f"{name} x{nodes}", preset(name, nodes=nodes)
    for folder in folders:
        for path in sorted((*folder.rglob("*.txt"), *folder.rglob("*.xml"))):
            try:
                yield f"{folder.name}/{path.relative_to(folder)}", read_topology(path)
            except TopologyError:
                continue


def achieved(graph: Graph, bound: float) -> dict[str, float | None]:
    """Share of the bound of each schedule; None where it does not fit the graph."""
    found: dict[str, float | None] = {}
    for name, build in ALL_TO_ALL.items():
        try:
            if name == "ring" and graph.size > MOST_IN_RING:
                found[name] = None
                continue
            found[name] = bound / build(graph).overlapped_seconds_per_byte
        except TopologyError:
            found[name] = None
    return found


def main(folders: list[Path]) -> int:
    """Print the table; 1 if some machine stays below the aim."""
    low = count = 0
    print(f"{'machine':<44} {'N':>3} {'busbw':>7} {'no relay':>8} " + " ".join(f"{n:>11}" for n in ALL_TO_ALL) + "  s")
    for name, topology in machines(folders):
        try:
            if len(topology.gpus or topology.devices) < 2:  # noqa: PLR2004 - nobody to talk to
                continue
            graph = graph_of(topology)
        except TopologyError as error:
            print(f"{name:<44} {error.found}")
            continue
        start = time.perf_counter()
        bound = concurrent_flow(graph)
        without = concurrent_flow(graph, relay=False).bus_bytes_per_second
        shares = achieved(graph, bound.seconds_per_byte)
        took = time.perf_counter() - start
        count += 1
        low += max(share or 0 for share in shares.values()) < AIM
        cells = " ".join(f"{'-' if share is None else f'{share:.3f}':>11}" for share in shares.values())
        bus = bound.bus_bytes_per_second
        print(f"{name:<44} {graph.size:>3} {bus / 1e9:>7.2f} {without / 1e9:>8.2f} {cells}  {took:.2f}", flush=True)
    print(f"{count} machines, {low} below {AIM:.2f} of the bound")
    return int(low > 0)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
