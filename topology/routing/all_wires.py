"""All wires of a host's devices, whichever of them a group of devices will use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from topology.errors import TopologyError
from topology.graph import Edge, Graph, graph_of
from topology.model import Topology

_FABRIC: Final = ("NV", "XGMI")


def all_wires(topology: Topology, devices: Sequence[str] = ()) -> Graph:
    """The graph of a group and, beside it, what its devices have where NVLink does not join them.

    A graph leaves PCIe out where NVLink joins the whole group; a part of the group may need it.
    """
    graph = graph_of(topology, devices)
    slow = tuple(link for link in topology.links if not link.kind.startswith(_FABRIC))
    if len(slow) == len(topology.links):
        return graph
    try:
        other = graph_of(replace(topology, links=slow), graph.device_ids)
    except TopologyError:  # nothing else joins them
        return graph
    shift = len(graph.nodes) - graph.size
    edges = tuple(
        Edge(
            tail=edge.tail + (shift if edge.tail >= graph.size else 0),
            head=edge.head + (shift if edge.head >= graph.size else 0),
            units=edge.units,
            link=edge.link,
        )
        for edge in other.edges
    )
    return replace(graph, nodes=(*graph.nodes, *other.nodes[graph.size :]), edges=(*graph.edges, *edges))
