"""Reads the limits of this process and the signs of a container. Raises nothing."""

from __future__ import annotations

import errno
import os
import platform
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from orchestrator.doctor.evidence import ContainerEvidence, LimitEvidence
from topology.reading import Reading

V = TypeVar("V")

_SHM: Final = "dev/shm"
_NO_PIDS: Final = 2**31
# Files and words in a control group's path that container runtimes leave.
_MARK_FILES: Final = (".dockerenv", "run/.containerenv", ".singularity.d")
_MARK_WORDS: Final = ("docker", "kubepods", "containerd", "libpod", "lxc")


class AbsentError(Exception):
    """There is no value, and `code` says why."""

    def __init__(self, code: str) -> None:
        """Keep the code."""
        self.code = code
        super().__init__(code)


def attempt(source: str, read: Callable[[], V]) -> Reading[V]:
    """Read; what is raised becomes an error code (`ENOENT`, `EACCES`, `MALFORMED`)."""
    try:
        return Reading(source=source, value=read())
    except AbsentError as absent:
        return Reading(source=source, error=absent.code)
    except OSError as error:
        return Reading(source=source, error=errno.errorcode.get(error.errno or 0, "OSERROR"))
    except (ValueError, LookupError):
        return Reading(source=source, error="MALFORMED")


def read_limits(root: Path = Path("/")) -> LimitEvidence:
    """Read shared memory and the limits of this process; `root` is replaced in tests."""
    shm = root / _SHM

    def shm_bytes(*, free: bool) -> int:
        found = os.statvfs(shm)
        return found.f_frsize * (found.f_bavail if free else found.f_blocks)

    return LimitEvidence(
        shm_total_bytes=attempt(f"statvfs /{_SHM}", lambda: shm_bytes(free=False)),
        shm_free_bytes=attempt(f"statvfs /{_SHM}", lambda: shm_bytes(free=True)),
        memlock_bytes=attempt("RLIMIT_MEMLOCK", lambda: _limit(resource.RLIMIT_MEMLOCK)[0]),
        open_files=attempt("RLIMIT_NOFILE", lambda: _some(_limit(resource.RLIMIT_NOFILE)[0])),
        open_files_hard=attempt("RLIMIT_NOFILE", lambda: _some(_limit(resource.RLIMIT_NOFILE)[1])),
        pids=attempt("pids limit", lambda: _pids(root)),
    )


def _limit(kind: int) -> tuple[int, int]:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY:
        raise AbsentError("UNLIMITED")
    return soft, hard


def _some(limit: int) -> int:
    if limit == resource.RLIM_INFINITY:
        raise AbsentError("UNLIMITED")
    return limit


def _pids(root: Path) -> int:
    """The tightest of RLIMIT_NPROC and the control groups from this process's own up to the mount."""
    limits = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
        limits.append(soft)
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" and not names) or "pids" in names.split(","):
            base = root / "sys/fs/cgroup" / ("pids" if names else "")
            parts = [part for part in path.split("/") if part not in {"", ".."}]
            texts = (_text(base.joinpath(*parts[:depth]) / "pids.max") for depth in range(len(parts), -1, -1))
            limits += [int(text) for text in texts if text.isdecimal() and int(text) < _NO_PIDS]
    if not limits:
        raise AbsentError("UNLIMITED")
    return min(limits)


def read_container(root: Path, environment: Mapping[str, str], bus_gpus: Reading[tuple[str, ...]]) -> ContainerEvidence:
    """Read which devices the kernel has, and which of them have a file here."""
    devices = attempt("/dev", lambda: _names(root / "dev", "nvidia"))
    return ContainerEvidence(
        marks=_marks(root, environment),
        bus_gpus=bus_gpus,
        driver_gpus=attempt("/proc/driver/nvidia/gpus", lambda: _names(root / "proc/driver/nvidia/gpus", "")),
        device_files=Reading(
            source="/dev",
            value=None if devices.value is None else tuple(f"/dev/{name}" for name in devices.value),
            error=devices.error,
        ),
        rdma_files=attempt("/dev/infiniband", lambda: _names(root / "dev/infiniband", "")),
        rdma_devices=attempt("/sys/class/infiniband", lambda: _names(root / "sys/class/infiniband", "")),
        visible=environment.get("NVIDIA_VISIBLE_DEVICES"),
        is_wsl=(root / "dev/dxg").exists() or "microsoft" in platform.release().lower(),
    )


def _marks(root: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    marks = [f"/{name}" for name in _MARK_FILES if (root / name).exists()]
    groups = _text(root / "proc/self/cgroup")
    marks += [f"control group of {word}" for word in _MARK_WORDS if word in groups]
    keys = ("container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "KUBERNETES_SERVICE_HOST")
    return (*marks, *(f"{key} is set" for key in keys if environment.get(key)))


def _names(folder: Path, prefix: str) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix)))


def _text(path: Path) -> str:
    # A limit that cannot be read is another's: the levels above and below still count.
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
