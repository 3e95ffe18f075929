"""Who ended a run, from what its launcher said and the ranks' own logs."""

from __future__ import annotations

import itertools
import re
import signal
from collections import deque
from pathlib import Path

from launch.execute import Outcome
from orchestrator.errors import Problem, RunFailed

_TAIL_LINES = 15


def culprit(tail: deque[str]) -> tuple[str, str, int] | None:
    """Return rank, local rank and exit code of the rank that failed first, from torchrun's report.

    When several end within its polling interval, the report may name one that only lost its peer:
    one that was killed comes first (torchrun itself ends the others with SIGTERM).
    """
    pattern = r"rank *: (\d+) \(local_rank: (\d+)\)\s+exitcode *: (-?\d+)"
    lines = [re.sub(r"^\[[^\]\s]+\] ", "", line) for line in tail]  # of other hosts, with their name before
    entries = [(rank, local, int(code)) for rank, local, code in re.findall(pattern, "\n".join(lines))]
    killed = [entry for entry in entries if entry[2] < 0 and -entry[2] != signal.SIGTERM]
    # The root cause is the last entry of the report.
    return killed[0] if killed else entries[-1] if entries else None


def _cause(outcome: Outcome, tail: deque[str]) -> str:
    """Say in a few words what ended the command, where a signal did."""
    found = culprit(tail)
    if found is not None and found[2] < 0:
        return f"rank {found[0]} was ended by {_signal_name(-found[2])}"
    if outcome.returncode < 0:
        return f"the launcher was ended by {_signal_name(-outcome.returncode)}"
    return f"it ended with code {outcome.returncode}"


def _signal_name(number: int) -> str:
    name = signal.Signals(number).name if number in {item.value for item in signal.Signals} else f"signal {number}"
    return f"{name} (by somebody, or by the kernel for want of memory: see dmesg)" if number == signal.SIGKILL else name


def failed(
    what: str,
    outcome: Outcome,
    tail: deque[str],
    processes: tuple[int, ...],
    *,
    cause: str = "",
    gone: int | None = None,
) -> RunFailed:
    """Return the error of a command that has failed, with the last lines of the rank that failed first.

    `gone` is the rank that was seen to be gone: a launcher that is ended has reported none.
    """
    lines = _failed_rank_lines(outcome, tail, processes, gone) or [line for line in tail if line.strip()][-_TAIL_LINES:]
    return RunFailed(
        Problem(
            where=what,
            found=f"{cause or _cause(outcome, tail)}. Last lines:\n  " + "\n  ".join(lines),
            remedy=f"The whole log is {outcome.log_path}, each rank's own is beside it. "
            "After mending the cause, the same command with resume=true continues from the last checkpoint.",
        )
    )


def last_words(outcome: Outcome, tail: deque[str], processes: tuple[int, ...], *, gone: int | None = None) -> str:
    """Return the last line of the rank that failed first, without numbers: to know a failure again."""
    lines = _failed_rank_lines(outcome, tail, processes, gone) or [line for line in tail if line.strip()]
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", lines[-1]) if lines else ""


def _failed_rank_lines(
    outcome: Outcome, tail: deque[str], processes: tuple[int, ...], gone: int | None = None
) -> list[str]:
    """Return the last lines of the rank that failed first: the others only say that it is gone."""
    found = culprit(tail)
    if found is not None:
        rank, local_rank = int(found[0]), int(found[1])
    elif gone is not None:
        rank, local_rank = gone, gone - sum(processes[: host_of_rank(gone, processes)])
    else:
        return []
    attempt = Path(outcome.log_path).with_suffix("")
    folder = attempt.parent
    if len(processes) > 1:
        folder /= f"host{host_of_rank(rank, processes)}"
    logs = sorted(folder.glob(f"{attempt.name}_*/attempt_0/{local_rank}/stderr.log"))
    if not logs:
        return []
    lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"rank {rank}: {line}" for line in lines if line.strip()][-_TAIL_LINES:]


def host_of_rank(rank: int, processes: tuple[int, ...]) -> int:
    """Number of the host that a rank runs on; the last one for ranks that there are not."""
    ends = itertools.accumulate(processes)
    return next((at for at, end in enumerate(ends) if rank < end), len(processes) - 1)
