"""Ranks as forks of a process that has the libraries loaded: importing them takes longer than two small steps do."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Final

from launch.parent_death import die_with_parent

_POLL_SECONDS: Final = 0.05
_SHOWN_CHARACTERS: Final = 1500
# torch and DeepSpeed read them when they are imported.
_VARIABLES: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}


def load_libraries() -> None:
    """Import what every rank needs, with the variables a worker sets before."""
    os.environ.update(_VARIABLES)
    from orchestrator.train.worker import quiet_libraries

    quiet_libraries()
    import deepspeed  # noqa: F401 - transformers imports it in the rank

    import orchestrator.train.rank  # noqa: F401


def run_ranks(target: Callable[[], int], num_ranks: int, log: Path, timeout_seconds: float) -> None:
    """Run `target` in as many forks, with the variables a launcher sets.

    The forks inherit no threads, so this process must not have used torch itself.

    Args:
        target: returns an exit code.
        num_ranks: how many.
        log: what they say, `.RANK` appended.
        timeout_seconds: then they are ended.

    Raises:
        RuntimeError: one of them failed or they took too long; holds the end of its log.
    """
    context: ForkContext = multiprocessing.get_context("fork")
    port, ends = _free_port(), time.monotonic() + timeout_seconds
    logs = [log.with_name(f"{log.name}.{rank}") for rank in range(num_ranks)]
    ranks = [
        context.Process(target=_rank, args=(target, at, num_ranks, port, path, os.getpid()))
        for at, path in enumerate(logs)
    ]
    for rank in ranks:
        rank.start()
    try:
        _wait(ranks, logs, ends)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _wait(ranks: list[ForkProcess], logs: list[Path], ends: float) -> None:
    while any(rank.is_alive() for rank in ranks):
        if any(rank.exitcode for rank in ranks) or time.monotonic() > ends:
            break
        time.sleep(_POLL_SECONDS)
    for rank, log in zip(ranks, logs, strict=True):
        if rank.exitcode:
            said = log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"exit code {rank.exitcode}\n{said[-_SHOWN_CHARACTERS:]}")
    if any(rank.is_alive() for rank in ranks):
        raise RuntimeError("took too long and was ended")


def _rank(target: Callable[[], int], rank: int, num_ranks: int, port: int, log: Path, parent_pid: int) -> None:
    die_with_parent(expected_parent_pid=parent_pid)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(num_ranks),
        LOCAL_WORLD_SIZE=str(num_ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    with log.open("w", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    code = 1
    try:
        code = target()
    except BaseException:  # noqa: BLE001 - whatever it is, the log must hold it
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of communication libraries may outlive their groups


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
