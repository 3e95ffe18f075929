"""Beats of a real process, read from another."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.home import home
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


def test_a_line_is_never_longer_than_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = os.uname_result(("Linux", "n" * 64, "", "", ""))  # the longest name of a host
    monkeypatch.setattr("orchestrator.monitor.beat.os.uname", lambda: names)
    heart = Heart(tmp_path, 0, 1)
    size = beat_path(tmp_path, 0).stat().st_size
    heart.beat("evaluating", step=10**9, micro=10**6)
    assert beat_path(tmp_path, 0).stat().st_size == size
    assert len(read_beats(tmp_path, 1)) == 1


def test_a_beat_tells_the_home_of_its_process(tmp_path: Path) -> None:
    Heart(tmp_path, 0, 1)
    (found,) = read_beats(tmp_path, 1)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.home == f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    assert found.is_here


def test_a_kernel_that_tells_no_home_leaves_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.home._BOOT", tmp_path / "boot_id")
    assert home.__wrapped__() == os.uname().nodename


def test_beats_of_an_older_version_are_read(tmp_path: Path) -> None:
    Heart(tmp_path, 0, 1)
    body = json.loads(beat_path(tmp_path, 0).read_text())
    del body["home"]
    beat_path(tmp_path, 0).write_text(json.dumps(body))
    (found,) = read_beats(tmp_path, 1)
    assert found.is_here


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


@pytest.mark.parametrize(("told", "number"), [("4", 4), ("1", 1), ("", 2), ("0", 2), ("x", 2)])
def test_what_the_launching_side_tells_counts_more_than_what_a_folder_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, number: int
) -> None:
    monkeypatch.setenv("TRAINMASTER_ATTEMPT", told)
    for at in (1, 2):
        (tmp_path / f"plan.{at}.json").touch()
    assert attempt_of(tmp_path) == number


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
