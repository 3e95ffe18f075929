"""Who is to blame, from torchrun's report."""

from collections import deque

import pytest

from orchestrator.supervise import _culprit


def report(*entries: tuple[int, int], root: tuple[int, int]) -> deque[str]:
    lines = ["Failures:"]
    for number, (rank, code) in enumerate((*entries, root)):
        lines += ["Root Cause (first observed failure):"] if number == len(entries) else []
        lines += [f"[{number}]:", "  host      : localhost", f"  rank      : {rank} (local_rank: {rank})"]
        lines += [f"  exitcode  : {code} (pid: {100 + rank}) ", "  error_file: <N/A>"]
    return deque(lines)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (report(root=(3, 1)), ("3", "3", 1)),
        (report((1, -9), root=(0, 1)), ("1", "1", -9)),
        (report((0, -15), root=(1, 1)), ("1", "1", 1)),
        (report((0, 1), root=(1, -11)), ("1", "1", -11)),
        (deque(["no report"]), None),
    ],
)
def test_the_rank_that_failed_first(tail: deque[str], expected: tuple[str, str, int] | None) -> None:
    assert _culprit(tail) == expected
