"""Many hosts as one topology: snapshots merged by a description of the network between them. Pure."""

from topology.network.merging import merge, repeated
from topology.network.spec import NetworkKind, NetworkSpec, network_from_json, network_to_json

__all__ = ["NetworkKind", "NetworkSpec", "merge", "network_from_json", "network_to_json", "repeated"]
