"""`trainmaster probe launch=slurm`: what the nodes of a cluster are, asked from a login node.

sinfo tells the kinds of nodes; of each kind one node is asked by a short job. Equal nodes are copies of it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.config import LaunchConfig, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.machine import network_of
from orchestrator.slurm import command_of_slurm
from orchestrator.slurm_node import renamed
from orchestrator.slurm_types import FORMAT, NodeType, judged_answer, parse_types, probe_command
from topology.codec import from_json
from topology.errors import TopologyError
from topology.judge import judged
from topology.model import Topology
from topology.network import merge
from topology.network.parts import Mould, parts_of

__all__ = ["cluster", "commands", "copies_of"]

_MAX_COPIES = 256
_MAX_TRIES = 3  # nodes of one kind whose probe fails
_MORE_SECONDS = 120.0  # for the job itself, beside the wait for a node


def commands(config: RunConfig) -> str:
    """What `cluster` would run, line by line.

    Raises:
        UserError: as of `cluster`.
    """
    partition = _partition(config.launch)
    lines = [shlex.join(_sinfo(partition))]
    for kind in _kinds(partition):
        if kind.nodes:
            lines += [f"# {kind}", shlex.join(_command(kind, kind.nodes[0], config.launch))]
        else:
            lines.append(f"# no node can be used: {kind}")
    return "\n".join(lines) + "\n"


def cluster(config: RunConfig, say: Callable[[str], None]) -> Topology:
    """Ask one node of each kind; the result has every usable node of the kinds that have answered.

    Raises:
        UserError: this host has no SLURM, there is no such partition, SLURM refuses the probes, or no kind answers.
    """
    known: list[Topology] = []
    notes: list[str] = []
    partition = _partition(config.launch)
    for kind in _kinds(partition):
        found, why = _asked(kind, config.launch, say)
        if found is not None:
            known += copies_of(found, kind.nodes[:_MAX_COPIES])
        if why:
            notes.append(f"{why}; sinfo tells of such nodes: {kind}")
            say(f"note: {notes[-1]}")
    if not known:
        where = f"launch.partition={partition}"
        remedy = "Wait for longer (launch.probe_seconds), or plan for a machine of a name (topology=dgx_h100)."
        raise UserError(*(Problem(where=where, found=note, remedy=remedy) for note in notes))
    whole = judged(merge(known, network_of(config)))
    return replace(whole, warnings=(*whole.warnings, *(f"left out: {note}" for note in notes)))


def copies_of(found: Topology, nodes: Sequence[str]) -> list[Topology]:
    """The node that was asked, and the others of its kind: their GPUs are known by their places, not by UUIDs."""
    asked = found.hosts[0].name
    copies = [found]
    for node in nodes:
        if node == asked:
            continue
        ids = {device.id: f"{node}/gpu{at}" for at, device in enumerate(found.gpus)}
        one = renamed(found, node)
        parts = Mould(parts_of(one)).copy({}, ids, {})
        hosts = tuple(
            replace(host, devices=tuple(replace(each, uuid=None) for each in host.devices)) for host in parts.hosts
        )
        copies.append(replace(one, hosts=hosts, links=parts.links, pairs=parts.pairs, switches=parts.switches))
    return copies


def _sinfo(partition: str) -> tuple[str, ...]:
    return ("sinfo", "-h", "-N", "-p", partition, "-o", FORMAT)


def _partition(launch: LaunchConfig) -> str:
    """The partition asked for, or the one that a job without this option goes to.

    sinfo itself takes a partition that is not there for an empty one.
    """
    lines = dict.fromkeys(line.strip() for line in _output("sinfo", "-h", "-o", "%P").splitlines())
    there = [line.rstrip("*") for line in lines]
    asked = launch.partition or next((line.rstrip("*") for line in lines if line.endswith("*")), "")
    missing = [name for name in asked.split(",") if name not in there]
    if missing:
        what = f"no partition {', '.join(missing)}" if asked else "the cluster has no default partition"
        found = f"{what}; there are {', '.join(there) or 'none'}"
        raise UserError(Problem(where=f"launch.partition={launch.partition}", found=found, remedy="Give one of these."))
    return asked


def _kinds(partition: str) -> tuple[NodeType, ...]:
    kinds = parse_types(_output(*_sinfo(partition)))
    if not kinds:
        found = "sinfo tells of no node"
        raise UserError(Problem(where="launch=slurm", found=found, remedy="See `sinfo`; is the controller up?"))
    return kinds


def _output(*words: str) -> str:
    done = command_of_slurm(*words)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UserError(Problem(where=words[0], found=said, remedy="Is the controller up? Ask again later."))
    return done.stdout


def _command(kind: NodeType, node: str, launch: LaunchConfig) -> tuple[str, ...]:
    python = f"{launch.venv.rstrip('/')}/bin/python" if launch.venv else sys.executable
    return probe_command(kind, node, launch, python)


def _asked(kind: NodeType, launch: LaunchConfig, say: Callable[[str], None]) -> tuple[Topology | None, str]:
    """Ask nodes of the kind until one has told what it is; returns that, or why there is nothing."""
    if not kind.nodes:
        return None, "no node can be used"
    why = ""
    for node in kind.nodes[:_MAX_TRIES]:
        say(f"asking {node} of {len(kind.nodes)} like it: {kind}")
        found, why, is_busy = _ask(kind, node, launch)
        if found is not None:
            if len(found.gpus) != kind.gpus:
                say(f"note: {node}: SLURM counts {kind.gpus} GPUs, the probe saw {len(found.gpus)}")
            return found, ""
        if is_busy:
            return None, f"no node came free within {launch.probe_seconds} s"
        say(f"note: {why}")
    return None, why


def _ask(kind: NodeType, node: str, launch: LaunchConfig) -> tuple[Topology | None, str, bool]:
    try:
        done = subprocess.run(  # noqa: S603 - the words that the dry run shows
            _command(kind, node, launch),
            capture_output=True,
            text=True,
            check=False,
            timeout=launch.probe_seconds + _MORE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        remedy = "Run this where SLURM's commands are, such as the login node."
        raise UserError(Problem(where="srun", found="no such program on this host", remedy=remedy)) from error
    except subprocess.TimeoutExpired:
        return None, f"the probe of {node} has not ended within {_MORE_SECONDS:.0f} s of its start", False
    answer = judged_answer(done.returncode, done.stderr, launch)
    if answer.is_busy:
        return None, "", True
    if answer.why:
        return None, f"the probe of {node} failed: {answer.why}", False
    try:
        return renamed(from_json(json.loads(done.stdout)), node), "", False
    except (ValueError, TopologyError) as error:
        return None, f"the probe of {node} gave no topology ({error})", False
