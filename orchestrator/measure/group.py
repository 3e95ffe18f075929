r"""A rank of the parts `links` and `collectives`, on one host or several.

On one host `trainmaster bench` starts it. On several, start it on every host as a training would be started, with
torchrun or srun (there with MASTER_ADDR and MASTER_PORT set):

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        -m orchestrator.measure.group [--topology FILE] [--save calibration.json] [--save-topology machine.json]

Rank 0 joins the hosts to one machine (or reads it from FILE, whose hosts stand in the order of the nodes), stores the
calibration under that machine's fingerprint, and writes it to the file named. `trainmaster route topology=machine.json`
then finds it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launch.parent_death import die_with_parent
from orchestrator import calibration_file as files
from orchestrator.calibration_file import Calibration, Measured, Section
from orchestrator.calibration_store import cache_path
from orchestrator.errors import Problem, UserError
from orchestrator.measure.collectives import measure_collectives
from orchestrator.measure.device import versions
from orchestrator.measure.links import measure_links
from orchestrator.measure.serve import Entry
from orchestrator.measure.team import TIMEOUT, Team
from orchestrator.measure.tried import measure_tried
from orchestrator.measure.use import COLLECTIVES, LINKS, measured_graph, measured_software
from topology.codec import from_json, to_json
from topology.fingerprint import fingerprint
from topology.graph import graph_of
from topology.model import DeviceKind, Topology
from topology.network import NetworkSpec, merge
from topology.probe import probe_host, read_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands among all: by torchrun's variables, or SLURM's."""

    rank: int
    size: int
    local_rank: int
    node: int


def place_of(environ: dict[str, str]) -> Place:
    """Read the place.

    Raises:
        UserError: neither launcher's variables are there.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
    slurm = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID")
    for chosen in (names, slurm):
        if all(environ.get(name, "").isdecimal() for name in chosen):
            rank, size, local, node = (int(environ[name]) for name in chosen)
            return Place(rank=rank, size=size, local_rank=local, node=node)
    found = f"no {', '.join(names)}"
    raise UserError(Problem(where="environment", found=found, remedy="Start this with torchrun or srun, see --help"))


def main(arguments: Sequence[str]) -> int:
    """Measure as one rank; returns the exit code."""
    asked = _arguments(arguments)
    try:
        place = place_of(dict(os.environ))
        if asked.init:
            die_with_parent()
        _measure(asked, place)
    except UserError as error:
        for problem in error.problems:
            print(f"{problem.where}: {problem.found}. {problem.remedy}", file=sys.stderr)
        return 2
    return 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.measure.group",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topology", type=Path, help="the hosts joined, as probe saved it; none: probe each host")
    parser.add_argument("--save", type=Path, help="file for the calibration, beside the cache")
    parser.add_argument("--save-topology", type=Path, help="file for the hosts joined")
    parser.add_argument("--parts", default=f"{LINKS},{COLLECTIVES}", help="one of the two, or both")
    parser.add_argument("--init", default="", help="where ranks of one host meet: file://...")
    parser.add_argument("--entries", type=Path, help="file for the bare numbers; nothing is stored then")
    return parser.parse_args(arguments)


def _measure(asked: argparse.Namespace, place: Place) -> None:
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda", place.local_rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # as many ranks as cores
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=asked.init or "env://",
        rank=place.rank,
        world_size=place.size,
        timeout=TIMEOUT,
    )
    team = Team(device)
    try:
        topology, nodes = _machine(asked.topology, place, team)
        hosts = [[rank for rank, node in enumerate(nodes) if node == each] for each in dict.fromkeys(nodes)]
        devices = _devices(topology, hosts)
        bare = graph_of(topology, devices)
        found = {LINKS: list(measure_links(team, hosts, topology, bare).entries)}
        so_far = _calibration(topology, team, hosts, found)
        if COLLECTIVES in asked.parts.split(","):
            graph = measured_graph(topology, devices, so_far)
            found[COLLECTIVES] = measure_collectives(team, graph, measured_software(graph, so_far))
            fitted = _calibration(topology, team, hosts, found)
            if place.rank == 0:  # what follows takes long, and all this is worth keeping without it
                _keep(asked, topology, fitted, found)
            found[COLLECTIVES] += measure_tried(team, graph, measured_software(graph, fitted))
        if place.rank == 0:
            _keep(asked, topology, _calibration(topology, team, hosts, found), found)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _machine(path: Path | None, place: Place, team: Team) -> tuple[Topology, list[int]]:
    """All hosts joined, and the node of each rank."""
    own = to_json(probe_host()) if path is None and place.local_rank == 0 else None
    told: list[Any] = [None] * team.size
    dist.all_gather_object(told, (place.node, own), group=team.clock)
    nodes = [node for node, _ in told]
    if path is not None:
        return read_topology(path), nodes
    probed = [from_json(body) for _, body in sorted(told, key=lambda one: one[0]) if body is not None]
    names = [one.hosts[0].name for one in probed]
    if len(set(names)) < len(names):
        found = f"hosts of the same name: {', '.join(names)}"
        raise UserError(Problem(where="hosts", found=found, remedy="Name the joined machine with --topology FILE"))
    if len(probed) == 1:
        return probed[0], nodes
    merged = merge(probed, NetworkSpec())
    by_name = [host.name for host in merged.hosts]  # in their natural order, which is not always the nodes'
    order = {node: by_name.index(name) for node, name in zip(sorted(set(nodes)), names, strict=True)}
    return merged, [order[node] for node in nodes]


def _devices(topology: Topology, hosts: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """The device of each rank: a host's ranks take its devices in order."""
    if len(hosts) > len(topology.hosts):
        found = f"ranks on {len(hosts)} hosts, and {len(topology.hosts)} are described"
        raise UserError(Problem(where="--topology", found=found, remedy="Describe all hosts"))
    devices: dict[int, str] = {}
    for ranks, host in zip(hosts, topology.hosts, strict=False):
        gpus = [device for device in host.devices if device.kind is DeviceKind.gpu]
        slots = gpus or list(host.devices)
        if len(ranks) > len(slots):
            found = f"{len(ranks)} ranks on {len(slots)} devices of {host.name}"
            raise UserError(Problem(where="ranks", found=found, remedy="Start one rank for each device at most"))
        devices |= {rank: device.id for rank, device in zip(ranks, slots, strict=False)}
    return tuple(devices[rank] for rank in sorted(devices))


def _calibration(
    topology: Topology, team: Team, hosts: Sequence[Sequence[int]], found: dict[str, list[Entry]]
) -> Calibration:
    today = time.strftime("%Y-%m-%d")
    sections = tuple(
        Section(name=name, made=today, measured=tuple(Measured(**asdict(entry)) for entry in entries))
        for name, entries in found.items()
    )
    return Calibration(
        made=today,
        fingerprint=fingerprint(topology),
        hosts=tuple(host.name for host in topology.hosts),
        devices=tuple(dict.fromkeys(device.name for device in topology.devices)),
        versions=tuple(sorted(versions().items())),
        ranks=0 if team.is_cuda else max(map(len, hosts)),
        threads=0 if team.is_cuda else 1,
        sections=sections,
    )


def _keep(
    asked: argparse.Namespace, topology: Topology, calibration: Calibration, found: dict[str, list[Entry]]
) -> None:
    if asked.entries:
        asked.entries.write_text(json.dumps({name: list(map(asdict, entries)) for name, entries in found.items()}))
        return
    for path, text in (
        (asked.save, files.dumps(calibration)),
        (asked.save_topology, json.dumps(to_json(topology), indent=2) + "\n"),
        (cache_path(calibration.fingerprint, os.environ), files.dumps(calibration)),
    ):
        if path is not None:
            _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        found = error.strerror or str(error)
        raise UserError(Problem(where=str(path), found=found, remedy="Give a place that can be written")) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
