"""What routes take from a calibration: the rates of links, and the fixed times of the software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrator.calibration_file import Calibration
from orchestrator.planner.wires import measured_links
from topology.collectives import Collective
from topology.graph import Graph, graph_of
from topology.model import Topology
from topology.routing.software import Software, software_of
from topology.routing.tried import Tried

LINKS: Final = "links"
COLLECTIVES: Final = "collectives"
# Numbers of the section `links` beside those of its links, whose names are END|END.
HOST_COPY: Final = "host_copy"
ONE_WAY: Final = "one_way_share"
MANY_WAYS: Final = "many_ways_share"
PIECE: Final = "piece"
BURST: Final = "burst"
# Numbers of the section `collectives`.
SUM: Final = "sum"
RESULT_COPY: Final = "result_copy"
LAUNCH: Final = "launch"
STEP: Final = "step"
EXECUTOR_LAUNCH: Final = "executor_launch"
EXECUTOR_STEP: Final = "executor_step"
EXECUTOR_MESSAGE: Final = "executor_message"
EXECUTOR_SHARE: Final = "executor_share"
# tried.COLLECTIVE.WAY.BYTES.RANKS: of a way's measured time to the model's, on so many ranks of each host (2+2).
TRIED: Final = "tried"


def measured_graph(topology: Topology, devices: Sequence[str], calibration: Calibration | None) -> Graph:
    """The capacity graph of a group with the rates that were measured, and the tables' where none was.

    Raises:
        TopologyError: as `graph_of`.
    """
    copy = calibration.find(LINKS, HOST_COPY) if calibration else None
    return graph_of(
        topology,
        devices,
        measured=measured_links(calibration),
        host_copy_bytes_per_second=copy.value if copy else None,
    )


def measured_software(graph: Graph, calibration: Calibration | None) -> Software:
    """The group's communication library, with measured values in the place of its priors."""
    prior = software_of(graph)
    if calibration is None:
        return prior

    def found(section: str, name: str) -> float | None:
        item = calibration.find(section, name)
        return None if item is None else item.value

    links = {
        "one_way_share": found(LINKS, ONE_WAY),
        "many_ways_share": found(LINKS, MANY_WAYS),
        "piece_bytes": found(LINKS, PIECE),
        "burst_seconds": found(LINKS, BURST),
    }
    times = {
        "sum_bytes_per_second": found(COLLECTIVES, SUM),
        "result_copy_bytes_per_second": found(COLLECTIVES, RESULT_COPY),
        "launch_seconds": found(COLLECTIVES, LAUNCH),
        "step_seconds": found(COLLECTIVES, STEP),
        "executor_launch_seconds": found(COLLECTIVES, EXECUTOR_LAUNCH),
        "executor_step_seconds": found(COLLECTIVES, EXECUTOR_STEP),
        "executor_message_seconds": found(COLLECTIVES, EXECUTOR_MESSAGE),
        "executor_share": found(COLLECTIVES, EXECUTOR_SHARE),
    }
    known = {name: value for name, value in {**links, **times}.items() if value is not None}
    if "piece_bytes" in known:
        known["piece_bytes"] = int(known["piece_bytes"])
    tried = tried_of(calibration, graph)
    if not known and not tried:
        return prior
    return replace(prior, **known, tried=tried, source=f"measured {calibration.made}")  # type: ignore[arg-type]


def tried_name(tried: Tried, graph: Graph) -> str:
    """The name of a ratio in the file; what it holds for is the group it was measured on."""
    return f"{TRIED}.{tried.collective.value}.{tried.way}.{tried.nbytes}.{_shape(graph)}"


def tried_of(calibration: Calibration, graph: Graph) -> tuple[Tried, ...]:
    """The ways that were carried out on such a group; names that tell no such thing are passed over."""
    found = (_tried(item.name, item.value, _shape(graph)) for item in calibration.all_of(COLLECTIVES))
    return tuple(filter(None, found))


def _shape(graph: Graph) -> str:
    """Ranks of each host, as 2+2: as many ranks that share other cores are another group."""
    return "+".join(map(str, sorted(Counter(graph.hosts).values(), reverse=True)))


def _tried(name: str, ratio: float, shape: str) -> Tried | None:
    words = name.split(".")
    kinds = {kind.value: kind for kind in Collective}
    if len(words) != len(("TRIED", "COLLECTIVE", "WAY", "BYTES", "SHAPE")) or words[0] != TRIED:
        return None
    _, kind, way, nbytes, of = words
    if of != shape or kind not in kinds or not nbytes.isdecimal() or int(nbytes) < 1:
        return None
    return Tried(collective=kinds[kind], way=way, nbytes=int(nbytes), ratio=ratio)
