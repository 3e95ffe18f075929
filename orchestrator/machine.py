"""The machine to plan for: this host, a description in a file, or a drawn one."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config import NetworkKind, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.named_hosts import named_hosts
from topology.errors import TopologyError
from topology.judge import judged
from topology.model import Topology
from topology.network import NetworkSpec, network_from_json, repeated
from topology.probe import MachineReadings, assemble, probe_host, read_machine, read_topology
from topology.units import GB

_FILE_SUFFIXES = frozenset({".json", ".txt", ".xml", ".log"})


def machine_to_plan_for(config: RunConfig) -> Topology:
    """The machine, with the memory that a matrix of links alone does not tell.

    CPU hosts that the user names are taken to be like the one that is described.
    """
    machine = machine_of(config)
    if not machine.gpus and len(machine.hosts) == 1:
        machine = repeated(machine, len(named_hosts(config.launch)) or 1, network_of(config))
    silent = [device.id for device in machine.devices if device.memory_bytes is None]
    silent += [host.name for host in machine.hosts if host.memory_bytes is None]
    if silent:
        raise UserError(
            Problem(
                where=f"topology={config.topology.path or config.topology.preset or 'probe'}",
                found=f"it does not tell the memory of {', '.join(silent[:4])}",
                remedy="Plan with a file that `trainmaster probe save=FILE` wrote on that machine.",
            )
        )
    return machine


def machine_of(config: RunConfig) -> Topology:
    """Probe this host, read the description the user names, or draw the machine of that name.

    Raises:
        UserError: with every problem of the description.
    """
    chosen = config.topology
    try:
        if chosen.path:
            return _enough(_described(config), config)
        if chosen.preset:
            return _drawn(chosen.preset, config)
        return _enough(probe_host(), config)
    except TopologyError as error:
        where = f"topology={chosen.path or chosen.preset or 'probe'}"
        remedy = f"{error.remedy[:1].upper()}{error.remedy[1:]}."
        raise UserError(*(Problem(where=where, found=problem, remedy=remedy) for problem in error.problems)) from error


def _enough(found: Topology, config: RunConfig) -> Topology:
    if not found.gpus and len(found.hosts) == 1:  # CPU hosts are taken to be alike
        return repeated(found, config.nodes, network_of(config))
    if config.nodes > len(found.hosts):
        described = f"{config.nodes} hosts asked for, {len(found.hosts)} described"
        remedy = "Give a folder with a description of each, or a drawn machine (topology=dgx_h100 nodes=16)"
        raise UserError(Problem(where="nodes", found=described, remedy=remedy))
    return found


def _described(config: RunConfig) -> Topology:
    """Read the file or folder; a bare name that is none may be another spelling of a drawn machine (p4d.24xlarge)."""
    path = Path(config.topology.path)
    is_bare = path.parent in {Path(), Path.cwd()}
    if not is_bare or path.exists() or path.suffix in _FILE_SUFFIXES:
        return read_topology(path, network=network_of(config), matrix=config.topology.matrix or None)
    return _drawn(path.name, config)


def _drawn(name: str, config: RunConfig) -> Topology:
    from topology.presets import preset

    return judged(preset(name, nodes=config.nodes, network=network_of(config)))


def probe_readings() -> tuple[MachineReadings, Topology]:
    """Probe this host; returns the raw readings beside what they assemble to."""
    readings = read_machine()
    return readings, judged(assemble(readings))


def network_of(config: RunConfig) -> NetworkSpec | None:
    """The description of the network in the configuration; None leaves it to the topology's own."""
    network = config.network
    if network.kind is NetworkKind.auto:
        return None
    told = {
        "bytes_per_second": network.port_gbit * GB / 8,
        "hosts_per_leaf": network.hosts_per_leaf,
        "rails": network.rails,
    }
    return network_from_json(
        {"kind": network.kind.value, "oversubscription": network.oversubscription}
        | {key: value for key, value in told.items() if value}
    )
