"""What is to be started, independent of which launcher starts it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from launch.errors import LaunchError

__all__ = [
    "ATTEMPT_MARK",
    "HOST_MARK",
    "LATE_MARK",
    "RESERVED_NAMES",
    "RUN_MARK",
    "Backend",
    "DeviceKind",
    "HostShare",
    "LaunchSpec",
]

RUN_MARK = "TRAINMASTER_RUN_DIR"
"""Set in every process of a run, so that a process is recognised as ours even after its parent died."""

ATTEMPT_MARK = "TRAINMASTER_ATTEMPT"
"""Number of the start that a process of a run belongs to."""

HOST_MARK = "TRAINMASTER_HOST"
"""Set in every process of one host's part of a run: which start of which host it belongs to."""

LATE_MARK = "TRAINMASTER_LATE"
"""Set in a process that tells others how a run has ended: it bears no other mark, is left alone when a launch ends, and
has to see to it that it ends by itself."""

RESERVED_NAMES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        ATTEMPT_MARK,
        RUN_MARK,
    },
)
"""Identity and placement. A value left over in a shell or a container image would start a wrong world, or the
right one on devices the plan did not choose, so these are fields of the spec and never taken from an environment."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# The name becomes part of a directory name (torchrun's logs) and of the rendezvous id.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICE_ID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]+")
# A name or an address as ssh and a hostfile take it; a leading dash would be read as an option.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9_\[:.][A-Za-z0-9._:\[\]%-]*")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
_MAX_PORT = 65535


class DeviceKind(Enum):
    """What a rank computes on."""

    cpu = "cpu"
    gpu = "gpu"


class Backend(Enum):
    """Which launcher starts the ranks."""

    local = "local"
    torchrun = "torchrun"
    deepspeed = "deepspeed"
    slurm = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The ranks of one host."""

    name: str = ""
    """As ssh takes it, with USER@ where needed. Empty: this host, or one that a batch system chooses."""
    processes: int
    device_ids: tuple[str, ...] = ()
    """UUIDs on that host, in the order of its ranks; empty: its first devices."""
    threads: int | None = None
    """CPU threads of each rank there, where hosts differ; None: those of the spec."""

    @property
    def address(self) -> str:
        """The name without a user."""
        return self.name.rpartition("@")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A Python module to run as `num_nodes * processes_per_node` ranks, or as those that `hosts` say.

    Raises LaunchError with all problems at once.
    """

    module: str
    """Dotted name, run with `python -m`."""
    args: tuple[str, ...] = ()
    """Given to every rank unchanged."""
    run_dir: str
    """Absolute; working directory of the ranks, with their logs in `run_dir/logs`."""
    num_nodes: int = 1
    processes_per_node: int
    env: tuple[tuple[str, str], ...] = ()
    """Added to (and before) the variables of `environment.build`; none of RESERVED_NAMES."""
    python: str
    """Interpreter of the ranks: absolute path, or a bare name looked up in PATH."""
    master_port: int | None = None
    """None: the launcher finds a free port by itself, where it can."""
    name: str
    """Of this attempt; also the rendezvous id, so each attempt needs a new one."""
    attempt: int = 0
    """Number of this start of the run, from 1; 0 where it is known only later, as of a batch job."""
    device_kind: DeviceKind
    device_ids: tuple[str, ...] = ()
    """UUIDs, in the order of the local ranks. Empty on GPU: the first devices that the user's environment shows."""
    threads_per_process: int = 1
    hosts: tuple[HostShare, ...] = ()
    """In the order of the ranks, where they differ, have names or have devices of their own; `num_nodes` of them, the
    most ranks of one being `processes_per_node`. Empty: `num_nodes` hosts that are alike."""
    packages: tuple[str, ...] = ()
    """Whose source code must be the same on all hosts, beside `launch` and the module's own."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that ranks of several hosts should meet over, best first; empty: the route between them."""
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15")
    """Reaches another host: takes its name and a line for its shell. It must pass on standard input."""
    join_seconds: int = 120
    """How long hosts wait for each other at the start."""
    met_before: bool = False
    """Whether these hosts have met for this run."""

    def __post_init__(self) -> None:
        """Refuse what no backend could start."""
        problems = [
            *self._text_problems(),
            *self._count_problems(),
            *self._host_problems(),
            *self._env_problems(),
            *self._device_problems(),
        ]
        if problems:
            raise LaunchError(
                asked=f"launch of {self.module!r} named {self.name!r}",
                found="; ".join(found for found, _ in problems),
                remedy="; ".join(remedy for _, remedy in problems),
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(host.processes for host in self.shares)

    @property
    def shares(self) -> tuple[HostShare, ...]:
        """Each host with its ranks."""
        alike = HostShare(processes=self.processes_per_node, device_ids=self.device_ids)
        return self.hosts or (alike,) * self.num_nodes

    @property
    def is_here(self) -> bool:
        """Whether all ranks run on the host that launches them."""
        return len(self.shares) == 1 and self.shares[0].address in {"", *_LOOPBACK}

    def _text_problems(self) -> Iterator[tuple[str, str]]:
        if not _MODULE.fullmatch(self.module):
            yield f"module {self.module!r}", "give a dotted module name, as for python -m"
        if not _NAME.fullmatch(self.name):
            yield f"name {self.name!r}", "use letters, digits, '.', '_' and '-' in the name"
        if not PurePath(self.run_dir).is_absolute():
            yield f"run_dir {self.run_dir!r} is relative", "give an absolute run_dir"
        if not self.python or ("/" in self.python and not PurePath(self.python).is_absolute()):
            yield f"python {self.python!r}", "give an absolute path, or a bare name in PATH"
        if any("\0" in text for text in (*self.args, self.run_dir, self.python)):
            yield "a NUL byte in an argument or path", "remove it: the system cannot pass it on"

    def _count_problems(self) -> Iterator[tuple[str, str]]:
        for field in ("num_nodes", "processes_per_node", "threads_per_process", "join_seconds"):
            value = getattr(self, field)
            if value < 1:
                yield f"{field} = {value}", f"give {field} of at least 1"
        if self.attempt < 0:
            yield f"attempt = {self.attempt}", "give a number from 1, or 0 where it is not known"
        for host in self.hosts:
            if host.threads is not None and host.threads < 1:
                yield f"{host.threads} threads for a rank of host {host.name!r}", "give at least 1, or None"
        if self.master_port is not None and not 1 <= self.master_port <= _MAX_PORT:
            yield f"master_port = {self.master_port}", f"give a port in 1..{_MAX_PORT}, or None"

    def _host_problems(self) -> Iterator[tuple[str, str]]:
        if not self.hosts:
            return
        names = [host.name for host in self.hosts if host.name]
        counts = [host.processes for host in self.hosts]
        if (len(counts), max(counts)) != (self.num_nodes, self.processes_per_node):
            found = f"{len(counts)} hosts with {counts} ranks, num_nodes {self.num_nodes}"
            yield f"{found}, processes_per_node {self.processes_per_node}", "let both fit the hosts"
        for host in self.hosts:
            if host.processes < 1:
                yield f"no ranks on host {host.name!r}", "leave that host out"
            if host.device_ids and len(host.device_ids) != host.processes:
                found = f"{len(host.device_ids)} device ids for {host.processes} ranks of {host.name!r}"
                yield found, "give one device id for each rank of a host"
        for name in names:
            if not _HOST.fullmatch(name):
                yield f"host {name!r}", "give host names or addresses, as ssh takes them"
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield f"host {', '.join(twice)} given twice", "give each host once, with all its ranks"
        loop = [name for name in names if name in _LOOPBACK]
        if loop and len(self.hosts) > 1:
            yield f"host {loop[0]} among {len(self.hosts)}", "give the name by which the other hosts reach it"

    def _env_problems(self) -> Iterator[tuple[str, str]]:
        names = [name for name, _ in self.env]
        for name, value in self.env:
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                yield f"environment variable {name!r}={value!r}", "use a shell-safe name, and no NUL byte"
            if name in RESERVED_NAMES:
                yield f"{name} in env", f"remove {name}: it follows from the other fields"
        if len(set(names)) != len(names):
            yield "a variable given twice in env", "give each variable once"

    def _device_problems(self) -> Iterator[tuple[str, str]]:
        if not self.device_ids:
            return
        if self.device_kind is DeviceKind.cpu:
            yield "device_ids on cpu", "leave device_ids empty on cpu"
        for device_id in self.device_ids:
            if not _DEVICE_ID.fullmatch(device_id):
                yield f"device id {device_id!r}", "give UUIDs (GPU-... or MIG-...), never an index"
        if len(set(self.device_ids)) != len(self.device_ids):
            yield "a device id given twice", "give each device to one process"
        if len(self.device_ids) != self.processes_per_node:
            yield (
                f"{len(self.device_ids)} device ids for {self.processes_per_node} processes",
                "give one device id for each process of a node",
            )
