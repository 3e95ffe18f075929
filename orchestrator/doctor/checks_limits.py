"""Limits of this process that distributed training runs into: pure judgements of what was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.doctor.evidence import LimitEvidence, MachineEvidence
from orchestrator.doctor.finding import Finding, error, note, passed, unread, warning
from topology.reading import Reading
from topology.units import GIB, MIB, format_bytes

# NCCL user guide, troubleshooting, shared memory: `--shm-size=1g --ulimit memlock=-1` (seen 2026-11).
_SHM: Final = "/dev/shm"  # noqa: S108 - the mount of shared memory, nothing is written
_SHM_WANTED_BYTES: Final = GIB
_SHM_CONTAINER_BYTES: Final = 64 * MIB  # what Docker and Kubernetes give unless told otherwise
_SHM_FREE_BYTES: Final = 256 * MIB
_MEMLOCK_BYTES: Final = GIB  # NCCL registers some tens of MiB a connection
_OPEN_FILES: Final = 4096
_PIDS: Final = 4096
_HEADROOM_BYTES: Final = 4 * GIB
_MEMLOCK_REMEDY: Final = (
    "Raise it: `--ulimit memlock=-1` (Docker), `* - memlock unlimited` in /etc/security/limits.conf, "
    "`LimitMEMLOCK=infinity` in the unit of slurmd or containerd; then start a new session."
)


def check_limits(limits: LimitEvidence, machine: MachineEvidence) -> tuple[Finding, ...]:
    """Judge /dev/shm, locked memory, open files, processes and the memory of the control group."""
    return (
        *_shm(limits, several=len(machine.gpus) > 1),
        *_memlock(limits.memlock_bytes, has_rdma=any(nic.is_rdma for nic in machine.nics)),
        *_open_files(limits),
        *_pids(limits.pids),
        *_memory(machine),
    )


def _shm(limits: LimitEvidence, *, several: bool) -> Iterator[Finding]:
    check, remedy = (
        "shm",
        (
            "Give it at least 1 GiB: `--shm-size=1g` or `--ipc=host` (Docker), an emptyDir with `medium: Memory` at "
            "/dev/shm (Kubernetes), `mount -o remount,size=8g /dev/shm` (host)."
        ),
    )
    total, free = limits.shm_total_bytes, limits.shm_free_bytes
    if total.error == "ENOENT":
        yield error(check, f"{_SHM} does not exist: NCCL and data loaders need it", f"{total.source}: ENOENT", remedy)
        return
    if total.value is None or free.value is None:
        yield unread(check, "the size of /dev/shm", (total, free))
        return
    evidence = f"{_SHM}: {format_bytes(total.value)}, {format_bytes(free.value)} free"
    if total.value <= _SHM_CONTAINER_BYTES:
        tell = error if several else warning
        yield tell(check, f"{_SHM} is too small: NCCL and data loader workers fail when it is full", evidence, remedy)
    elif total.value < _SHM_WANTED_BYTES:
        yield warning(check, f"{_SHM} is smaller than NCCL's guide advises (1 GiB)", evidence, remedy)
    elif free.value < _SHM_FREE_BYTES:
        cleanup = "Delete what ended runs left in it (`ls -l /dev/shm`: nccl-*, torch_*, sem.*)."
        yield warning(check, f"{_SHM} is nearly full", evidence, cleanup)
    else:
        yield passed(check, f"{_SHM} is large enough", evidence)


def _memlock(memlock: Reading[int], *, has_rdma: bool) -> Iterator[Finding]:
    check = "memlock"
    if memlock.error == "UNLIMITED":
        yield passed(check, "locked memory is unlimited", "RLIMIT_MEMLOCK: unlimited")
    elif memlock.value is None:
        yield unread(check, "the limit of locked memory", (memlock,))
    else:
        evidence = f"RLIMIT_MEMLOCK: {memlock.value // 1024} KiB"
        if has_rdma and memlock.value >= _MEMLOCK_BYTES:
            title = "locked memory is limited: RDMA registers its buffers by locking them, and fails beyond it"
            yield warning(check, title, evidence, _MEMLOCK_REMEDY)
        elif has_rdma:
            title = "locked memory is limited: RDMA registers its buffers by locking them, and fails"
            yield error(check, title, evidence, _MEMLOCK_REMEDY)
        else:
            # csrc/pin_memory/page_alloc.cpp of DeepSpeed calls mlock; cudaHostAlloc does not count against the limit.
            title = "locked memory is limited: no RDMA NIC here, but offload to NVMe locks its buffers too"
            yield note(check, title, evidence, _MEMLOCK_REMEDY)


def _open_files(limits: LimitEvidence) -> Iterator[Finding]:
    check, soft, hard = "open-files", limits.open_files, limits.open_files_hard
    if soft.error == "UNLIMITED":
        yield passed(check, "open files are unlimited")
    elif soft.value is None:
        yield unread(check, "the limit of open files", (soft,))
    elif soft.value < _OPEN_FILES:
        most = "unlimited" if hard.error == "UNLIMITED" else str(hard.value or "unknown")
        title = "few open files allowed: data loader workers share tensors as file descriptors, NCCL opens sockets"
        yield warning(
            check,
            title,
            f"RLIMIT_NOFILE: {soft.value}, hard limit {most}",
            f"`ulimit -n 65536` before the start (the hard limit is {most}), or `--ulimit nofile=65536` (Docker).",
        )
    else:
        yield passed(check, "open files: enough", f"RLIMIT_NOFILE: {soft.value}")


def _pids(pids: Reading[int]) -> Iterator[Finding]:
    check = "pids"
    if pids.error == "UNLIMITED":
        yield passed(check, "processes and threads are unlimited", f"{pids.source}: unlimited")
    elif pids.value is None:
        yield unread(check, "the limit of processes", (pids,))
    elif pids.value < _PIDS:
        yield warning(
            check,
            "few processes and threads allowed: each rank starts tens of threads, and fails with EAGAIN",
            f"{pids.source}: {pids.value}",
            "Raise it: `--pids-limit=-1` (Docker), `podPidsLimit` (Kubernetes), `TasksMax=infinity` (systemd).",
        )
    else:
        yield passed(check, "processes and threads: enough", f"{pids.source}: {pids.value}")


def _memory(machine: MachineEvidence) -> Iterator[Finding]:
    check, limit, left = "memory-limit", machine.memory_limit_bytes, machine.memory_headroom_bytes
    if limit.error == "UNLIMITED":
        yield passed(check, "no control group limits the memory")
    elif limit.value is None or left.value is None:
        yield unread(check, "the control group's memory limit", (limit, left))
    else:
        evidence = f"{limit.source}: {format_bytes(limit.value)}, {format_bytes(left.value)} left"
        if left.value < min(_HEADROOM_BYTES, limit.value // 2):
            title = "the control group leaves little host memory: loading a model may end in an OOM kill"
            yield warning(check, title, evidence, "Ask for more (`--mem`, `--memory`, resources.limits.memory).")
        else:
            yield passed(check, "the control group leaves host memory", evidence)
