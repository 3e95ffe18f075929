"""Whether the kernel has killed a process for want of memory: SIGKILL alone does not say who sent it.

The counters of this process's control groups are compared before and after: its children are in the same groups. Where
no group counts (no memory controller), the machine's own counter stands in: it also counts the kills of others, so it
means something only beside a process that SIGKILL has ended in that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from topology.probe.cgroup import oom_kills

MACHINE: Final = "machine"


def read_counters(root: Path = Path("/")) -> dict[str, int]:
    """Return kills so far by control group, or of the whole machine where no group counts; empty where nothing does."""
    try:
        groups = oom_kills(root)
    except ValueError:  # a counter that is no number
        groups = {}
    return groups or _machine(root)


def was_oom_kill(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether one of the counters that both readings know has grown."""
    return any(after[name] > count for name, count in before.items() if name in after)


def _machine(root: Path) -> dict[str, int]:
    try:
        lines = (root / "proc/vmstat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    found = {row[0]: row[1] for row in (line.split() for line in lines) if len(row) == 2}  # noqa: PLR2004 - name, value
    count = found.get("oom_kill", "")
    return {MACHINE: int(count)} if count.isdecimal() else {}
