"""Files for experts: NCCL's choice of algorithm by size, and its rings. Written where the user asks, never applied.

Formats: the CSV is that of NCCL's example tuner (plugins/tuner/example/README.md, 8 columns), the XML that of
NCCL_GRAPH_FILE (src/graph/search.cc, version 1). Both checked against NCCL 2.30.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.route.graph_xml import graph_xml
from topology.collectives import Collective
from topology.errors import TopologyError
from topology.fingerprint import fingerprint
from topology.graph import Graph
from topology.model import Topology
from topology.routing.choose import Offer, Route, routes
from topology.routing.software import Runner, Software, software_of

KEY: Final = "route.export"
_NAMES: Final = ("tuner.csv", "graph.xml", "README.txt")
_MOST_BYTES: Final = 2**16
_HEADER: Final = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
_ALL_SIZES: Final = 2**32 - 1  # the tuner's word for any size
_COLLECTIVES: Final = MappingProxyType(
    {
        Collective.all_reduce: "allreduce",
        Collective.all_gather: "allgather",
        Collective.reduce_scatter: "reducescatter",
    }
)
_ALGORITHMS: Final = MappingProxyType({"ring": "ring", "double tree": "tree", "NVLS": "nvls", "NVLS tree": "nvls_tree"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a tuner's table; bytes from and up to, both included."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    num_hosts: int
    num_ranks: int

    @property
    def text(self) -> str:
        """As the example tuner reads it; -1 leaves the number of channels to NCCL."""
        values = (self.collective, self.min_bytes, self.max_bytes, self.algorithm, self.protocol, -1)
        return ",".join(map(str, (*values, self.num_hosts, self.num_ranks)))


def exports(
    topology: Topology, graph: Graph, folder: str, *, software: Software | None = None
) -> tuple[tuple[str, str, str], ...]:
    """Key, path and text of each file.

    Args:
        topology: the machine.
        graph: of the group, in rank order.
        folder: where they go.
        software: fixed times of the group's library; None: priors.

    Raises:
        UserError: the group does not use NCCL, or files of somebody else's would be written over.
    """
    if software_of(graph).name != "nccl":
        found = "the group runs on CPUs, where gloo carries the collectives"
        raise UserError(
            Problem(where=f"{KEY}={folder}", found=found, remedy="Leave it out, or describe a GPU machine.")
        )
    _check_free(Path(folder))
    rows = [row for collective in _COLLECTIVES for row in rows_of(routes(graph, collective, software=software))]
    files = {"tuner.csv": "\n".join([_HEADER, *(row.text for row in rows)]) + "\n"}
    try:
        files["graph.xml"], missing = graph_xml(topology, graph), ""
    except TopologyError as error:
        missing = "; ".join(error.problems)
    files["README.txt"] = _readme(topology, graph, missing)
    return tuple((KEY, str(Path(folder) / name), text) for name, text in files.items())


def _check_free(folder: Path) -> None:
    """Refuse to write over files that an earlier export did not write: its README.txt says which they are.

    Raises:
        UserError: there are such files, or what is there is no folder.
    """
    where = f"{KEY}={folder}"
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(Problem(where=where, found="there is a file of that name", remedy="Name a new folder."))
        there = [name for name in _NAMES if (folder / name).exists()]
        readme = folder / _NAMES[-1]
        is_own = readme.is_file() and readme.read_bytes()[:_MOST_BYTES].decode(errors="replace").startswith(
            _README_HEAD
        )
    except OSError as error:
        found = f"cannot look there: {error.strerror or error}"
        raise UserError(Problem(where=where, found=found, remedy="Name a new folder.")) from error
    if there and not is_own:
        found = f"{', '.join(there)} there, and not written by an export of trainmaster"
        raise UserError(Problem(where=where, found=found, remedy="Name a new folder, or move the files away."))


def rows_of(by_size: Sequence[Route]) -> tuple[Row, ...]:
    """Where NCCL's own algorithms are the choice; neighbouring sizes with the same choice become one row.

    The border between two sizes is their geometric mean: which is faster in between is not known better.

    Args:
        by_size: routes of one collective, ascending.
    """
    return tuple(_rows(by_size))


def _rows(by_size: Sequence[Route]) -> Iterator[Row]:
    choices = [_choice(route.chosen) for route in by_size]
    begin = 0
    for at, choice in enumerate(choices):
        is_last = at + 1 == len(choices)
        if not is_last and choices[at + 1] == choice:
            continue
        if choice is not None:
            first = by_size[begin]
            yield Row(
                collective=_COLLECTIVES[first.collective],
                min_bytes=0 if begin == 0 else _border(by_size[begin - 1].nbytes, first.nbytes) + 1,
                max_bytes=_ALL_SIZES if is_last else _border(by_size[at].nbytes, by_size[at + 1].nbytes),
                algorithm=choice[0],
                protocol=choice[1],
                num_hosts=len(set(first.graph.hosts)),
                num_ranks=first.graph.size,
            )
        begin = at + 1


def _choice(offer: Offer) -> tuple[str, str] | None:
    """Algorithm and protocol in the tuner's words; None for what NCCL does not carry out by itself."""
    name = _ALGORITHMS.get(offer.algorithm)
    if offer.runner is not Runner.builtin or name is None:
        return None
    return name, offer.protocol.lower() or "simple"  # NVLS knows no other


def _border(below: int, above: int) -> int:
    return math.isqrt(below * above)


def _readme(topology: Topology, graph: Graph, missing: str) -> str:
    tests = f"all_reduce_perf -b 1K -e 1G -f 4 -n 50 -c 1 -g {graph.size}"
    begin = f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(graph.device_ids)}"
    if len(set(graph.hosts)) > 1:
        tests = f"mpirun -np {graph.size} {tests.rpartition(' -g')[0]} -g 1"
        begin = (
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID   (and on each host CUDA_VISIBLE_DEVICES with its own of the group)"
        )
    rings = f"graph.xml is not here: {missing}.\n" if missing else _GRAPH.format(tests=tests)
    return _README.format(machine=fingerprint(topology), num=graph.size, begin=begin, tests=tests, rings=rings.rstrip())


_README_HEAD: Final = "Nothing here is applied. These are predictions, to be tried by hand against"
_README: Final = """\
Nothing here is applied. These are predictions, to be tried by hand against what NCCL does by itself.

Machine: {machine}
They hold for this machine, this group of {num} GPUs and NCCL 2.30 only; after a change of any, write them again.

How to try one
0. Choose the group, in rank order:
     {begin}
1. Without it, three times, and keep the output (nccl-tests; -c 1 checks the results):
     {tests}
   The same with all_gather_perf and reduce_scatter_perf.
2. With it, three times, in turn with the runs without it: a machine's speed drifts.
3. Look at the column #wrong first. Anything but 0: throw the file away.
4. Compare medians size by size. Keep it only where it is faster by more than the runs differ among themselves, and
   nowhere slower that matters. Then train some steps with and without it and compare the losses.

tuner.csv: algorithm and protocol by size, where NCCL's own algorithms are predicted to be the fastest; sizes without a
row are left to the plugin. It needs a compiled tuner plugin that reads it (plugins/tuner/example of NCCL's sources):
     NCCL_TUNER_PLUGIN=/path/to/libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=tuner.csv {tests}
A cloud's own tuner (AWS, for one) would be replaced: do not do that. The example plugin leaves alone what NCCL has
disabled for a connection, such as LL128; never force a protocol with NCCL_PROTO instead.

{rings}
"""
_GRAPH: Final = """\
graph.xml: the rings, for NCCL_GRAPH_FILE; trees and NVLS are left to NCCL's own search.
     NCCL_GRAPH_FILE=graph.xml {tests}
GPUs are numbered as nvidia-smi does. The file also fixes the number of channels, and with it the SMs they take.
Compare with what NCCL finds by itself: NCCL_GRAPH_DUMP_FILE=found.xml writes it.
"""
