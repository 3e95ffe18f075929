"""Starts the ranks of one run under a fresh torchrun, and reads what they wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engines_job import Job

_HERE: Final = Path(__file__).parent
_SHOWN: Final = 15  # lines of a log
_PATIENCE_SECONDS: Final = 40  # torchrun gives its ranks 30


def run_ranks(job: Job, world: int, timeout_seconds: float) -> list[dict[str, Any]]:
    """Return what each rank wrote.

    Raises:
        RuntimeError: a rank failed, or they took too long; with the end of the log.
    """
    out = Path(job.out)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--rdzv-backend", "c10d"]
    argv += ["--rdzv-endpoint", "127.0.0.1:0", str(_HERE / "engines_worker.py"), str(out / "job.json")]
    with (out / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            argv, stdout=log, stderr=log, env=environment(world), start_new_session=True
        )
        try:
            code = process.wait(timeout_seconds)
        finally:
            _end(process)
    if code:
        raise RuntimeError("\n".join([f"{job.engine} on {world} ranks failed", *_last_words(out / "log")]))
    return [json.loads((out / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a launcher that still runs end its ranks, which have sessions of their own; then end it by force."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log: Path) -> list[str]:
    """The end of what a rank said; torchrun's own account follows it."""
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    ranks = [line for line in said if line.startswith("[rank")]
    return (ranks or said)[-_SHOWN:]


def environment(world: int) -> dict[str, str]:
    """Give each rank its share of the cores; waiting threads leave theirs to others."""
    path = os.pathsep.join(part for part in (str(_HERE.parent), os.environ.get("PYTHONPATH", "")) if part)
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": str(max(1, num_cores() // world)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
