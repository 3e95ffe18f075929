"""Kinds of nodes in a cluster, from what `sinfo` prints, and how one of each kind is asked what it is.

Formats checked against SLURM 22.05.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config import LaunchConfig
from orchestrator.errors import Problem, UserError
from topology.units import MIB, format_bytes

__all__ = [
    "FORMAT",
    "Answer",
    "NodeType",
    "judged_answer",
    "parse_types",
    "probe_command",
]

FORMAT = "%N|%c|%m|%G|%f|%T"
"""For `sinfo -h -N -o`: a line for each node and partition."""
_FIELDS = 6
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned"})
_GPU = re.compile(r"gpu(?::(?P<name>[^:,()]+))?:(?P<count>\d+)(?![\w.])")
_SOCKETS = re.compile(r"\([^)]*\)")
_MINUTES = 5  # a probe takes seconds; a driver that hangs takes 20
_NONE = ("none",)
# What srun says when nothing came free in time, and of which keys it complains; the rest is the program's own.
_BUSY = ("requested nodes are busy", "immediate execution impossible", "job allocation", "been revoked")
_ABOUT = {
    "qos": "launch.qos", "account": "launch.account", "reservation": "launch.reservation",
    "partition": "launch.partition", "feature": "launch.constraint", "time limit": "launch.partition",
}  # fmt: skip
_REFUSED = "unable to allocate resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Nodes that sinfo tells alike.

    Attributes:
        cpus: of each, as SLURM counts them (usually hardware threads).
        memory_bytes: of each.
        gpus: of each, and what SLURM calls them (empty: nothing).
        gpu_name: as above.
        gres, features: as sinfo prints them, without sockets; empty for none.
        nodes: those that can be used, the idle ones first.
        states: how many nodes are in which state.
    """

    cpus: int
    memory_bytes: int
    gpus: int
    gpu_name: str
    gres: str
    features: str
    nodes: tuple[str, ...]
    states: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        """What sinfo alone tells, in a line."""
        cards = f"{self.gpus} x {self.gpu_name or 'GPU'}, " if self.gpus else ""
        features = f", features {self.features}" if self.features else ""
        states = ", ".join(f"{count} {state}" for state, count in self.states)
        return f"{cards}{self.cpus} CPUs, {format_bytes(self.memory_bytes)} of memory{features} ({states})"


def parse_types(text: str) -> tuple[NodeType, ...]:
    """Group the nodes of `sinfo -h -N -o FORMAT`, in the order in which they come; a node of many partitions is one."""
    kinds: dict[tuple[str, ...], dict[str, str]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != _FIELDS:
            continue
        name, cpus, memory, gres, features, state = fields
        key = (cpus.rstrip("+"), memory.rstrip("+"), _plain(_SOCKETS.sub("", gres)), _plain(features))
        kinds.setdefault(key, {})[name] = state
    return tuple(_type(key, nodes) for key, nodes in kinds.items())


def _plain(text: str) -> str:
    return "" if text in {"(null)", "", "N/A"} else text


def _type(key: tuple[str, ...], nodes: dict[str, str]) -> NodeType:
    cpus, memory, gres, features = key
    cards = [*_GPU.finditer(gres)]
    # A state may carry a mark: `*` does not answer, `~` is switched off, `-` is planned for another job.
    bare = {name: state.rstrip("~#!%$@^-+").lower() for name, state in nodes.items()}
    usable = [name for name, state in bare.items() if state in _USABLE]
    return NodeType(
        cpus=int(cpus),
        memory_bytes=int(memory) * MIB,
        gpus=sum(int(card["count"]) for card in cards),
        gpu_name=next((card["name"] for card in cards if card["name"]), ""),
        gres=gres,
        features=features,
        nodes=tuple(sorted(usable, key=lambda name: bare[name] != "idle")),
        states=tuple(Counter(nodes.values()).items()),
    )


def probe_command(kind: NodeType, node: str, launch: LaunchConfig, python: str) -> tuple[str, ...]:
    """The words that make one whole node tell what it is; srun waits `launch.probe_seconds` for it and no longer."""
    asked = {
        "job-name": "trainmaster-probe",
        "nodes": "1",
        "ntasks": "1",
        "nodelist": node,
        "cpus-per-task": str(kind.cpus),
        "mem": "0",
        "gres": f"gpu:{kind.gpus}" if kind.gpus else "",
        "time": str(_MINUTES),
        "immediate": str(launch.probe_seconds),
        "partition": launch.partition,
        "account": launch.account,
        "qos": launch.qos,
        "constraint": launch.constraint,
        "reservation": launch.reservation,
    }
    options = (f"--{name}={value}" for name, value in asked.items() if value)
    extra = () if launch.extra == _NONE else launch.extra
    program = (python, "-P", "-m", "orchestrator.cli", "probe", "format=json")
    return ("srun", *options, "--exclusive", *extra, *program)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of asking a node: nothing said means that it has told what it is.

    Attributes:
        is_busy: no such node came free in time.
        why: it could not be asked, or its probe failed.
    """

    is_busy: bool = False
    why: str = ""


def judged_answer(returncode: int, errors: str, launch: LaunchConfig) -> Answer:
    """Read how srun ended.

    Raises:
        UserError: srun refuses what every node would be asked with: account, QoS, partition, reservation.
    """
    if returncode == 0:
        return Answer()
    lines = [line.removeprefix("srun: ").removeprefix("error: ") for line in errors.splitlines() if line.strip()]
    low = errors.lower()
    if _REFUSED in low:
        if any(words in low for words in _BUSY):
            return Answer(is_busy=True)
        _raise_if_of_all(lines, launch)
    return Answer(why=" / ".join(lines[-2:]) or f"srun ended with code {returncode}")


def _raise_if_of_all(lines: Sequence[str], launch: LaunchConfig) -> None:
    """Refuse what is wrong for each node.

    Raises:
        UserError: naming the key.
    """
    said = next((line for line in lines if _REFUSED in line.lower()), "").partition(": ")[2]
    key = next((key for word, key in _ABOUT.items() if word in said.lower()), None)
    if key is not None:
        value = getattr(launch, key.removeprefix("launch."))
        remedy = "Give one that you may use; `sinfo` and `sacctmgr show associations user=$USER` list them."
        found = f"srun refused the probe: {said}"
        raise UserError(Problem(where=f"{key}={value}" if value else key, found=found, remedy=remedy))
