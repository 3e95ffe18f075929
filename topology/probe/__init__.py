"""The only I/O of the package: raw readings of this host or of a file, assembled into a Topology."""

from topology.probe.assemble import assemble
from topology.probe.files import read_topology
from topology.probe.local import probe_host, read_machine
from topology.probe.readings import MachineReadings, readings_from_json, readings_to_json
from topology.probe.visible import visible_gpus

__all__ = [
    "MachineReadings",
    "assemble",
    "probe_host",
    "read_machine",
    "read_topology",
    "readings_from_json",
    "readings_to_json",
    "visible_gpus",
]
