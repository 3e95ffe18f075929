"""Beats of a real process, read from another."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.monitor.beat import DUMP_SIGNAL, Heart, attempt_of, beat_path, read_beats, stacks_path

HOLDS_THE_LOCK = """
import ctypes, sys
from pathlib import Path
from orchestrator.monitor.beat import Heart
heart = Heart(Path(sys.argv[1]), 1, 3)
heart.beat("training", step=7)
def hold_the_interpreter_lock():
    ctypes.PyDLL(None).pause()  # unlike CDLL, it keeps the lock
    hold_the_interpreter_lock()
hold_the_interpreter_lock()
"""


def wait_for(what: object, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)


def test_beats_are_read_whole(tmp_path: Path) -> None:
    heart = Heart(tmp_path, 0, 2)
    heart.beat("loading")
    heart.beat("training", step=3)
    heart.beat(micro=2)
    (found,) = read_beats(tmp_path, 2)
    assert (found.phase, found.step, found.micro, found.pid) == ("training", 3, 2, os.getpid())
    heart.beat(step=4)
    (later,) = read_beats(tmp_path, 2)
    assert (later.step, later.micro) == (4, 0)
    assert later.count == found.count + 1
    assert read_beats(tmp_path, 1) == ()


def test_a_line_is_never_longer_than_it_was(tmp_path: Path) -> None:
    heart = Heart(tmp_path, 0, 1)
    size = beat_path(tmp_path, 0).stat().st_size
    heart.beat("evaluating", step=10**9, micro=10**6)
    assert beat_path(tmp_path, 0).stat().st_size == size
    assert len(read_beats(tmp_path, 1)) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"rank": 1}', b"\xff\xfe", b"null"])
def test_damaged_beats_are_left_out(tmp_path: Path, content: bytes) -> None:
    Heart(tmp_path, 0, 1)
    beat_path(tmp_path, 1).write_bytes(content)
    assert [beat.rank for beat in read_beats(tmp_path, 1)] == [0]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "beats").write_text("a file")
    Heart(tmp_path, 0, 1).beat("training", step=1)
    assert read_beats(tmp_path, 1) == ()


def test_the_number_of_the_attempt(tmp_path: Path) -> None:
    assert attempt_of(tmp_path) == 1
    for number in (1, 2):
        (tmp_path / f"plan.{number}.json").touch()
    assert attempt_of(tmp_path) == 2


def test_stacks_of_a_process_that_holds_the_lock(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)], cwd=Path(__file__).parents[4])
    try:
        wait_for(lambda: [beat.step for beat in read_beats(tmp_path, 3)] == [7])
        first = json.loads(beat_path(tmp_path, 1).read_text())
        os.kill(process.pid, DUMP_SIGNAL)
        wait_for(lambda: "hold_the_interpreter_lock" in stacks_path(tmp_path, 3, 1).read_text())
        assert process.poll() is None
        assert json.loads(beat_path(tmp_path, 1).read_text()) == first
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
