"""What each of several hosts is to do, as a file that all of them read.

It stands in the run directory, so a host that cannot read it does not share that file system, and can say so.
"""

import json
from dataclasses import asdict, dataclass

from launch.errors import LaunchError

__all__ = ["ADDRESS", "LOCAL", "PORT", "HostJob", "HostPart", "candidate_ports", "dumps", "loads"]

SCHEMA = 1
# Known when the hosts have met: words of `HostPart.argv` that are replaced then.
ADDRESS = "{master_addr}"
PORT = "{master_port}"
LOCAL = "{local_addr}"

# Below the ports that Linux hands out by itself (32768 on), above those of well-known services.
_FIRST_PORT = 20_000
_NUM_PORTS = 10_000
_NUM_CANDIDATES = 8
# Coprime to the number of ports: neighbouring jobs and the candidates of one job stay apart.
_STRIDE = 1_009


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """What one host runs."""

    name: str
    """As the user wrote it; empty under a batch system, which numbers the hosts."""
    processes: int
    argv: tuple[str, ...]
    """Command, with ADDRESS, PORT and LOCAL for what is known at the start only."""
    env: tuple[tuple[str, str], ...] = ()
    """Beside those of the job."""
    node: str = ""
    """Under a batch system, the node that this part is for, once that is known; empty: that of the part's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJob:
    """One launch on several hosts."""

    name: str
    run_dir: str
    parts: tuple[HostPart, ...]
    env: tuple[tuple[str, str], ...]
    ports: tuple[int, ...] = ()
    """Where the hosts meet, the first free one; empty: by the number of the batch job."""
    must_see: tuple[str, ...] = ()
    """Files that every host needs."""
    packages: tuple[str, ...] = ("launch",)
    """Whose source code must be the same on all hosts."""
    interfaces: tuple[str, ...] = ()
    join_seconds: int = 120
    met_before: bool = False
    """Whether they have met for this run: who finds no way to the first one then is cut off, and says so soon."""
    uses_devices: bool = False
    """Whether each rank needs a GPU of its own."""


def candidate_ports(number: int) -> tuple[int, ...]:
    """Ports for a job of that number: different for jobs that follow each other, the same on every host."""
    return tuple(_FIRST_PORT + (number * 7 + at * _STRIDE) % _NUM_PORTS for at in range(_NUM_CANDIDATES))


def dumps(job: HostJob) -> str:
    """Return the text of the file."""
    body = asdict(job)
    body["env"] = dict(job.env)
    body["parts"] = [_part_body(part) for part in job.parts]
    if not job.met_before:
        del body["met_before"]
    return json.dumps({"schema": SCHEMA, **body}, indent=1) + "\n"


def _part_body(part: HostPart) -> dict[str, object]:
    body = {**asdict(part), "env": dict(part.env)}
    return body if part.node else {name: value for name, value in body.items() if name != "node"}


def loads(text: str) -> HostJob:
    """Read it back. Raises LaunchError for anything else."""
    try:
        body = json.loads(text)
        _check_schema(body.pop("schema"))
        parts = tuple(
            HostPart(**{**part, "argv": tuple(part["argv"]), "env": tuple(part["env"].items())})
            for part in body["parts"]
        )
        lists = {name: tuple(body[name]) for name in ("ports", "must_see", "packages", "interfaces")}
        return HostJob(**{**body, **lists, "parts": parts, "env": tuple(body["env"].items())})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LaunchError(
            asked="a launch on several hosts",
            found=f"its file is damaged or from another version ({error})",
            remedy="start the run again; all hosts need the same version of trainmaster",
        ) from error


def _check_schema(schema: object) -> None:
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, not {SCHEMA}")
