"""Who is to blame, from torchrun's report."""

from collections import deque
from pathlib import Path

import pytest

from launch.execute import Outcome
from orchestrator.blame import culprit, failed, host_of_rank, last_words


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
        (deque(f"[10.0.0.2] {line}" for line in report(root=(5, 1))), ("5", "5", 1)),
    ],
)
def test_the_rank_that_failed_first(tail: deque[str], expected: tuple[str, str, int] | None) -> None:
    assert culprit(tail) == expected


def test_the_host_of_a_rank() -> None:
    assert [host_of_rank(rank, (2, 1, 3)) for rank in range(7)] == [0, 0, 1, 2, 2, 2, 2]


def test_the_words_are_those_of_the_failed_rank_on_its_host(tmp_path: Path) -> None:
    for at, words in ((0, "lost my peer"), (1, "the cause")):
        folder = tmp_path / f"host{at}" / "a-1_x" / "attempt_0" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"{words}\n")
    tail = deque(["  rank      : 2 (local_rank: 0)", "  exitcode  : 1 (pid: 7)"])
    outcome = Outcome(
        returncode=1, log_path=str(tmp_path / "a-1.log"), stopped_by_signal=None, leftovers=(), overrides=()
    )
    error = failed("the run", outcome, tail, (2, 1))
    assert "rank 2: the cause" in str(error)
    assert "lost my peer" not in str(error)


def test_without_a_report_the_words_are_those_of_the_rank_that_was_seen_to_be_gone(tmp_path: Path) -> None:
    for host, local in ((0, 0), (0, 1), (1, 0), (1, 1)):
        folder = tmp_path / f"host{host}" / "a-1_x" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"ValueError: row 5 of host {host}, {'ab'[local]}\n")
    outcome = Outcome(
        returncode=-9, log_path=str(tmp_path / "a-1.log"), stopped_by_signal=None, leftovers=(), overrides=()
    )
    tail = deque(["[10.0.0.2] step 7"])
    assert "rank 3: ValueError: row 5 of host 1, b" in str(failed("the run", outcome, tail, (2, 2), gone=3))
    assert last_words(outcome, tail, (2, 2), gone=3) == "rank #: ValueError: row # of host #, b"
    assert last_words(outcome, tail, (2, 2)) == "[#.#.#.#] step #"
