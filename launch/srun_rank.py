"""The variables that a rank reads, where `srun` started it and set SLURM's own in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_FIRST_PORT: Final = 20_000
_NUM_PORTS: Final = 12_000  # below the ports that Linux gives to outgoing connections
_NEEDED: Final = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_JOB_ID")


def variables_of_srun(environ: Mapping[str, str]) -> dict[str, str]:
    """Return rank, world size and where ranks meet, as torchrun would set them; nothing where a launcher did.

    All tasks of a step find the same: the first host of its nodes, and a port by the numbers of job and step. What the
    user has set stays. A batch script that starts Python itself is no such task: its step counts no tasks.
    """
    if "RANK" in environ or not all(environ.get(name, "").isdecimal() for name in _NEEDED):
        return {}
    # With one GPU for each task every rank sees its own as the first.
    has_one = "," not in (environ.get("CUDA_VISIBLE_DEVICES") or ",")
    job, step = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"])
    found = {
        "RANK": environ["SLURM_PROCID"],
        "LOCAL_RANK": "0" if has_one else environ["SLURM_LOCALID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_WORLD_SIZE": _count_here(environ),
        "MASTER_ADDR": first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")),
        "MASTER_PORT": str(_FIRST_PORT + (job * 31 + step) % _NUM_PORTS),
    }
    return {name: value for name, value in found.items() if name not in environ}


def wrong_variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Which variables of a rank are missing or make no sense, each with what was found; none for one rank alone."""
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "RANK" not in environ:
        broken = [name for name in _NEEDED if not environ.get(name, "").isdecimal()]
        return tuple((name, _found(environ, name)) for name in broken)
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return ()
    broken = [name for name in ("RANK", "WORLD_SIZE") if not environ.get(name, "").isdecimal()]
    if broken:
        return tuple((name, _found(environ, name)) for name in broken)
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    if rank >= size:
        return (("RANK", f"rank {rank} of {size}: they are counted from 0"),)
    meeting = ("MASTER_ADDR", "MASTER_PORT") if size > 1 else ()
    return tuple((name, _found(environ, name)) for name in meeting if not environ.get(name))


def _found(environ: Mapping[str, str], name: str) -> str:
    return f"found {environ[name]!r}" if name in environ else "not set, while others of a rank are"


def first_host(nodes: str) -> str:
    """Return the first name of a list as SLURM writes it: `a`, `a,b`, `gpu[03-05,9]`, `rack[1-2]n[1,4]`.

    An empty list is this host.
    """
    first, _, _ = re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", nodes.strip()).partition(",")
    return first or "localhost"


def _count_here(environ: Mapping[str, str]) -> str:
    """Tasks of this step on this host; `2(x3),1` among SLURM's variables is three hosts of two and one of one."""
    counts: list[str] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [count] * int(times or 1)
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else environ["SLURM_STEP_NUM_TASKS"]
