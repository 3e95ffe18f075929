"""What is to be started, independent of which launcher starts it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from launch.errors import LaunchError

__all__ = ["RESERVED_NAMES", "RUN_MARK", "Backend", "DeviceKind", "LaunchSpec"]

RUN_MARK = "TRAINMASTER_RUN_DIR"
"""Set in every process of a run, so that a process is recognised as ours even after its parent died."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A Python module to run as `num_nodes * processes_per_node` ranks.

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
    device_kind: DeviceKind
    device_ids: tuple[str, ...] = ()
    """UUIDs, in the order of the local ranks. Empty on GPU: the first devices that the user's environment shows."""
    threads_per_process: int = 1

    def __post_init__(self) -> None:
        """Refuse what no backend could start."""
        problems = [*self._text_problems(), *self._count_problems(), *self._env_problems(), *self._device_problems()]
        if problems:
            raise LaunchError(
                asked=f"launch of {self.module!r} named {self.name!r}",
                found="; ".join(found for found, _ in problems),
                remedy="; ".join(remedy for _, remedy in problems),
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.processes_per_node

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
        for field in ("num_nodes", "processes_per_node", "threads_per_process"):
            value = getattr(self, field)
            if value < 1:
                yield f"{field} = {value}", f"give {field} of at least 1"
        if self.master_port is not None and not 1 <= self.master_port <= _MAX_PORT:
            yield f"master_port = {self.master_port}", f"give a port in 1..{_MAX_PORT}, or None"

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
