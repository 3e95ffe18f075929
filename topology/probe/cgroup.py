"""Limits that control groups (v1 and v2) set on this process: the tightest from its own group to the mount.

Inside a container without a cgroup namespace /proc/self/cgroup names the host's path, which is not under the
container's mount: levels that do not exist are skipped, and the mount itself then holds the container's limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.probe.kernel_values import ReadingAbsentError, read_text, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# v1 writes "no limit" as the largest page-aligned integer; no machine has an exbibyte.
_NO_LIMIT: Final = 2**60
_MAX_WHOLE: Final = 2**64 - 1
_MAX_CORES: Final = 2**20  # a quota may exceed what the machine has, but not by thousands of times
_MAX_LEVELS: Final = 128


def cpu_quota_cores(root: Path) -> float:
    """Return how many cores' worth of time this process may use.

    Raises:
        ReadingAbsentError: `UNLIMITED`.

    """
    quotas: list[float] = []
    for level in _levels(root, None):
        quota, _, period = (_text(level / "cpu.max") or "max").partition(" ")
        quotas += [] if quota == "max" else [_cores(quota, period)]
    for level in _levels(root, "cpu"):
        quota = _text(level / "cpu.cfs_quota_us") or "-1"
        period = _text(level / "cpu.cfs_period_us") or "100000"
        is_set = whole(quota, least=-_MAX_WHOLE, most=_MAX_WHOLE) > 0
        quotas += [_cores(quota, period)] if is_set else []
    return _least(quotas)


def _cores(quota: str, period: str) -> float:
    cores = whole(quota, least=1, most=_MAX_WHOLE) / whole(period, least=1, most=_MAX_WHOLE)
    if cores > _MAX_CORES:
        raise ValueError
    return cores


def memory_limit_bytes(root: Path) -> int:
    """Return the lowest memory limit over this process.

    Raises:
        ReadingAbsentError: `UNLIMITED`.

    """
    return int(_least([limit for limit, _ in _memory(root)]))


def memory_headroom_bytes(root: Path) -> int:
    """Return what the limits still allow; file pages not in use are dropped under pressure, so they count as free.

    Raises:
        ReadingAbsentError: `UNLIMITED`.

    """
    return int(_least([max(0, limit - used) for limit, used in _memory(root)]))


def oom_kills(root: Path) -> dict[str, int]:
    """Return how many processes the kernel has killed for want of memory, by group: this process's own and those above.

    Version 1 counts a kill in the group of the process alone, version 2 in those above it, too. Groups that tell no
    number are left out.
    """
    found: dict[str, int] = {}
    for controller, name in ((None, "memory.events"), ("memory", "memory.oom_control")):
        for level in _levels(root, controller):
            rows = (line.split() for line in _text(level / name).splitlines())
            count = next((row[1] for row in rows if row[:1] == ["oom_kill"] and len(row) > 1), None)
            if count is not None:
                found[str(level)] = whole(count, most=_MAX_WHOLE)
    return found


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    # (limit, use without inactive file pages) of every level that has a limit.
    names = (
        (None, "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for controller, limit_name, use_name, idle_name in names:
        for level in _levels(root, controller):
            limit = _text(level / limit_name) or "max"
            if limit == "max" or whole(limit, least=1, most=_MAX_WHOLE) >= _NO_LIMIT:
                continue
            rows = (line.split() for line in _text(level / "memory.stat").splitlines())
            idle = next((whole(row[1], most=_MAX_WHOLE) for row in rows if row[:1] == [idle_name]), 0)
            used = whole(_text(level / use_name) or "0", most=_MAX_WHOLE)
            yield whole(limit, most=_MAX_WHOLE), max(0, used - idle)


def _levels(root: Path, controller: str | None) -> Iterator[Path]:
    # The group's directories from the process's own up to the mount; controller None means v2.
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller is None and number == "0" and not names:
            # A hybrid host mounts v2 beside the v1 controllers.
            mount = base / "unified" if (base / "unified").is_dir() else base
        elif controller is not None and controller in names.split(","):
            mount = base / names if (base / names).is_dir() else base / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in {"", ".."}][:_MAX_LEVELS]
        yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _text(path: Path) -> str:
    # The root group has no limit files, and a level may be hidden: both read as nothing.
    try:
        return read_text(path)
    except (OSError, ValueError):  # the last is a path with a zero byte
        return ""


def _least(values: list[float] | list[int]) -> float:
    if not values:
        raise ReadingAbsentError(code="UNLIMITED")
    return min(values)
