"""The capacity graph of a group of devices, and how it is made from a machine."""

from topology.graph.build import HOST_COPY_BYTES_PER_SECOND, MEASURED, copies_over_pcie, graph_of, link_class
from topology.graph.value import UNIT_BYTES_PER_SECOND, Edge, Graph, LinkClass, Node, NodeKind

__all__ = [
    "HOST_COPY_BYTES_PER_SECOND",
    "MEASURED",
    "UNIT_BYTES_PER_SECOND",
    "Edge",
    "Graph",
    "LinkClass",
    "Node",
    "NodeKind",
    "copies_over_pcie",
    "graph_of",
    "link_class",
]
