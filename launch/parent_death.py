"""End a process when its parent ends, however the parent ends. Linux only; does nothing elsewhere."""

import ctypes
import os
import signal
import sys

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Loaded on import: between fork and exec nothing should be looked up.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(
    *,
    signal_number: signal.Signals = signal.SIGKILL,
    expected_parent_pid: int | None = None,
) -> None:
    """Ask the kernel to send `signal_number` to this process when its parent ends.

    A worker calls this first of all, so that no rank outlives its launcher. If the parent is gone already
    (this process belongs to another one than `expected_parent_pid`, by default the parent at the time of the
    call), this process ends at once by SIGKILL, since no signal would ever come.

    The kernel watches the parent *thread* that forked: that thread must live as long as the child should.
    Raises OSError if the kernel refuses.
    """
    if _LIBC is None:
        return
    parent_pid = os.getppid() if expected_parent_pid is None else expected_parent_pid
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
