"""What is done to a process, a file or a link, for real. Nothing of it is imitated.

kill, stop       signals
hang             a lock of C that is never released, taken with Python's interpreter lock held
exhaust_*        allocations until one is refused
flip_bit, cut    a file of a checkpoint
fill             a small file system
slow_link, ...   `tc` and `ip` in a network namespace
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from launch.spec import RUN_MARK

_CHECKPOINT: Final = re.compile(r"step-(\d+)")
_MUTEX_BYTES: Final = 256  # more than a pthread_mutex_t takes anywhere; zeros are an unlocked one
_CHUNK_BYTES: Final = 64 << 20
_DEVICE_CHUNK_BYTES: Final = 1 << 30
_ROOM_BYTES: Final = 256 << 20
_MOST_FILLED_BYTES: Final = 2 << 30
_FILLER: Final = ".filler"
_QUEUE: Final = ("burst", "256k", "latency", "50ms")
_COMMAND_SECONDS: Final = 10.0


class Refused(Exception):
    """The fault cannot be done here without harm to what is not the run's, or not for real."""


def hang() -> NoReturn:
    """Never return, and never give up the interpreter lock.

    A mutex is locked twice. Unlike a sleep, that wait goes on after a signal, so Python's own handlers never run
    either; those of C do (faulthandler).
    """
    libc = ctypes.PyDLL(None)  # of CDLL, a call would give the lock up
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
    raise AssertionError("a mutex was locked twice")


def stop_self() -> None:
    """Stop this process as SIGSTOP does; it goes on if somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_self() -> NoReturn:
    """End this process as SIGKILL does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL was survived")


def launcher_pid() -> int:
    """Return the process that started this rank, where that is a launcher of the run.

    Raises:
        Refused: it is whatever has started the run itself, or somebody's shell.
    """
    own, parent = os.environ.get(RUN_MARK), psutil.Process().parent()
    if not own or parent is None or _mark_of(parent) != own:
        raise Refused("this rank was not started by a launcher of the run")
    return int(parent.pid)


def supervisor_pid() -> int:
    """Return the process that launched the run: the parent of the outermost process that carries the run's mark.

    Raises:
        Refused: there is none, as for ranks that were started by hand.
    """
    process = psutil.Process()
    own = os.environ.get(RUN_MARK)
    while own and (parent := process.parent()) is not None:
        if _mark_of(parent) != own:
            if "train" in parent.cmdline():
                return int(parent.pid)
            break
        process = parent
    raise Refused("this rank was not started by `trainmaster train` on this host")


def _mark_of(process: psutil.Process) -> str | None:
    with suppress(psutil.Error, OSError):
        return process.environ().get(RUN_MARK)
    return None


def exhaust_host() -> NoReturn:
    """Allocate under a limit of the kernel (RLIMIT_AS) until it refuses; with torch where that is loaded.

    The limit is taken back then: what the run does about the refusal needs memory, as it has after a real one.

    Raises:
        MemoryError, RuntimeError: what Python's or torch's allocator raises.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    held: list[Any] = []
    try:
        while True:
            held.append(_allocate("cpu", _CHUNK_BYTES))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def exhaust_device(device: str) -> NoReturn:
    """Allocate on a GPU until it refuses; raises torch.OutOfMemoryError."""
    held: list[Any] = []
    while True:
        held.append(_allocate(device, _DEVICE_CHUNK_BYTES))


def _allocate(device: str, nbytes: int) -> object:
    torch: Any = sys.modules.get("torch")
    return bytearray(nbytes) if torch is None else torch.empty(nbytes, dtype=torch.uint8, device=device)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the folder of the newest checkpoint that has its own name."""
    root = run_dir / "checkpoints"
    found = [path for path in root.iterdir() if _CHECKPOINT.fullmatch(path.name)] if root.is_dir() else []
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def flip_bit(checkpoint: Path) -> Path:
    """Flip a bit in the middle of a checkpoint's largest file; returns that file."""
    path = _largest(checkpoint)
    with path.open("r+b") as file:
        at = path.stat().st_size // 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
        os.fsync(file.fileno())
    return path


def cut(checkpoint: Path) -> Path:
    """Cut a checkpoint's largest file to half; returns that file."""
    path = _largest(checkpoint)
    os.truncate(path, path.stat().st_size // 2)
    return path


def _largest(checkpoint: Path) -> Path:
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return max(files, key=lambda path: (path.stat().st_size, path.name))


def fill(folder: Path) -> int:
    """Fill the file system of a folder to the last byte; returns the bytes that went in.

    Raises:
        Refused: it is so large that it may be somebody else's as well.
    """
    check_small(folder)
    descriptor = os.open(folder / _FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    written = 0
    try:
        for chunk_bytes in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    written += os.write(descriptor, bytes(chunk_bytes))
    finally:
        os.close(descriptor)
    return written


def check_small(folder: Path) -> None:
    """Make sure that a folder lies on a small file system, which may be filled.

    Raises:
        Refused: it is so large that it may be somebody else's as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = os.statvfs(folder)
    size_bytes = whole.f_frsize * whole.f_blocks
    if size_bytes > _MOST_FILLED_BYTES:
        found = f"the file system of {folder} has {size_bytes / 2**30:.0f} GiB"
        raise Refused(f"{found}; only one of its own, up to {_MOST_FILLED_BYTES >> 30} GiB, is filled")


def slow_link(factor: float) -> str:
    """Shape this host's link down to a part of its rate; returns what was done.

    Raises:
        Refused: the network is the machine's own.
    """
    name = interface()
    shown = json.loads(_run("tc", "-j", "qdisc", "show", "dev", name) or "[]")
    rates = [entry["options"]["rate"] for entry in shown if "rate" in entry.get("options", {})]
    rate = min(rates) if rates else _speed_of(name)
    wanted = max(1, round(rate * 8 / factor))
    _run("tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", f"{wanted}bit", *_QUEUE)
    return f"{name}: {rate * 8 / 1e6:g} Mbit/s, now {wanted / 1e6:g}"


def cut_link(seconds: float) -> str:
    """Take this host's link down, and bring it up again after some seconds (0: never); returns what was done.

    Raises:
        Refused: the network is the machine's own.
    """
    name = interface()
    _run("ip", "link", "set", "dev", name, "down")
    if not seconds:
        return f"{name} is down"
    # What heals the link must outlive the attempt: without the run's mark, and nobody's child.
    env = {key: value for key, value in os.environ.items() if key != RUN_MARK}
    line = f"(sleep {seconds:g} && ip link set dev {name} up) < /dev/null > /dev/null 2>&1 &"
    subprocess.run(["sh", "-c", line], env=env, start_new_session=True, check=True)  # noqa: S603, S607 - our own words
    return f"{name} is down for {seconds:g} s"


def interface() -> str:
    """Return the port that ranks talk through, where it is safe to touch.

    Raises:
        Refused: the network is the machine's own, or no port is up.
    """
    if not _is_namespace():
        raise Refused("this is the machine's own network; only a network namespace's link is touched")
    wanted = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
    links = [link["ifname"] for link in json.loads(_run("ip", "-j", "link", "show", "up")) if "ifname" in link]
    name = next((link for link in links if link in wanted.split(",") or (not wanted and link != "lo")), None)
    if name is None:
        raise Refused(f"no port {wanted or 'but lo'} is up")
    return str(name)


def _is_namespace() -> bool:
    """Whether the network is another one than that of the machine (or container), which is its first process's."""
    try:
        own, first = (os.stat(f"/proc/{who}/ns/net").st_ino for who in ("self", "1"))  # noqa: PTH116 - no file
    except OSError:  # that process may not be looked at; `ip` knows the namespaces that it has made itself
        return bool(_run("ip", "netns", "identify").strip())
    return own != first


def _speed_of(name: str) -> float:
    """Bytes a second by the driver."""
    with suppress(OSError, ValueError):
        return int(Path(f"/sys/class/net/{name}/speed").read_text(encoding="ascii")) * 1e6 / 8
    raise Refused(f"the rate of {name} is not known")


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Refused(
            f"{' '.join(words)}: {str(said).strip() or errno.errorcode.get(getattr(error, 'errno', 0), '')}"
        ) from error
    return done.stdout
