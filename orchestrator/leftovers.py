"""Ranks that outlived whoever watched them: a run starts again only when none of them is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from launch.spec import RUN_MARK

_GRACE_SECONDS: Final = 60.0  # they were told to stop when their watcher died, and may be writing a checkpoint
_LAUNCHER: Final = "torch.distributed.run"
_KILL_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.2


def leftovers(run_dir: Path) -> list[psutil.Process]:
    """Find living processes of a run that are not ours: neither this one, nor what it was started by, nor its own."""
    ours = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in ours and process.environ().get(RUN_MARK) == str(run_dir):
                found.append(process)
    return found


def _works(process: psutil.Process) -> bool:
    """Whether it may still save something: torchrun waits for ever when nobody reads its output any more."""
    try:
        return _LAUNCHER not in process.cmdline()
    except psutil.Error:
        return False


def end_leftovers(run_dir: Path, say: Callable[[str], None], grace_seconds: float = _GRACE_SECONDS) -> None:
    """Wait for what is left of an earlier attempt here, then kill it; two sets of ranks would write one checkpoint."""
    left = leftovers(run_dir)
    if not left:
        return
    say(f"waiting for {len(left)} processes of an earlier start (at most {grace_seconds:.0f} s)")
    until = time.monotonic() + grace_seconds
    while any(map(_works, left)) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        left = leftovers(run_dir)
    if not left:
        return
    say("killing what is left of an earlier start: " + ", ".join(str(process.pid) for process in left))
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=_KILL_SECONDS)
