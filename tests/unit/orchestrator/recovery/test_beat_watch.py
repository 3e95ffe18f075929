"""Ranks and their launcher: who is gone, and who was left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.monitor.beat import ENDED, Beat, Heart, beat_path, read_beats
from orchestrator.monitor.facts import Facts
from orchestrator.recovery.watch import BeatWatch, _reading
from orchestrator.train.run_files import write_json


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK_SECONDS", 0.0), ("_LEFT_SECONDS", 0.3), ("_GONE_SECONDS", 0.3)):
        monkeypatch.setattr(f"orchestrator.recovery.watch.{name}", seconds)


def _looked(watch: BeatWatch, seconds: float) -> str | None:
    """What is said within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if reason := watch.look():
            return reason
        time.sleep(0.02)
    return None


def _change(run_dir: Path, rank: int, **values: object) -> None:
    beat = next(beat for beat in read_beats(run_dir, 1) if beat.rank == rank)
    write_json(beat_path(run_dir, rank), asdict(replace(beat, **values)))  # type: ignore[arg-type]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Two ranks that train; both are this process."""
    for rank in range(2):
        Heart(tmp_path, rank, 1).beat("training")
    return tmp_path


def test_a_launcher_that_lives_on_when_all_ranks_have_ended_is_ended(ranks: Path) -> None:
    said: list[str] = []
    watch = BeatWatch(ranks, 1, Facts(world_size=2), said.append)
    _change(ranks, 0, phase=ENDED)
    assert _looked(watch, 0.8) is None, "rank 1 still trains"
    _change(ranks, 1, phase=ENDED)
    assert watch.look() is None, "it gets its time"
    assert _looked(watch, 5) == "all ranks have ended, what started them has not"
    assert "is it stopped?" in said[0]


def test_a_rank_that_has_not_shown_up_has_not_ended(ranks: Path) -> None:
    watch = BeatWatch(ranks, 1, Facts(world_size=3), lambda _: None)
    for rank in range(2):
        _change(ranks, rank, phase=ENDED)
    assert _looked(watch, 0.8) is None


def test_a_rank_that_takes_long_to_end_its_threads_is_waited_for(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.recovery.watch._is_rank", lambda _: True)
    watch = BeatWatch(ranks, 1, Facts(world_size=2), lambda _: None)
    for rank in range(2):
        _change(ranks, rank, phase=ENDED)
    assert _looked(watch, 0.8) is None


def test_a_rank_that_ended_and_was_not_collected_is_gone(ranks: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        _change(ranks, 1, pid=child.pid)
        watch = BeatWatch(ranks, 1, Facts(world_size=2), lambda _: None)
        assert _looked(watch, 10) == "the process of rank 1 is gone"
        assert watch.gone == 1
    finally:
        child.wait()


@pytest.mark.parametrize(
    ("others", "gone", "code"),
    [
        ({0: {"code": 1, "time": 7.0}, 1: {"code": 3, "time": 6.0}}, 1, 3),
        ({0: {"code": 1, "time": 5.0}, 1: {"code": None, "time": 6.0}}, 1, None),
        ({0: {}, 1: {"code": 2, "time": 5.0}}, 1, 2),
    ],
)
def test_the_rank_that_the_others_were_lost_by(
    ranks: Path, others: dict[int, dict[str, object]], gone: int, code: int | None
) -> None:
    """Its launcher has collected it and waits for another one, which may take minutes."""
    Heart(ranks, 2, 1).beat("training")
    for rank, values in others.items():
        if values:
            _change(ranks, rank, pid=NOBODY, **values)
    watch = BeatWatch(ranks, 1, Facts(world_size=3), lambda _: None)
    assert _looked(watch, 5) == f"the process of rank {gone} is gone"
    assert (watch.gone, watch.code) == (gone, code)


def test_a_rank_that_fails_by_itself_tells_its_exit_code(tmp_path: Path) -> None:
    heart = Heart(tmp_path, 0, 1)
    heart.beat("training", step=3)
    assert heart.fail(1) == 1
    (told,) = read_beats(tmp_path, 1)
    assert (told.code, told.phase, told.step) == (1, "training", 3)


NOBODY = 2**22 + 1  # no process has this number


@pytest.mark.parametrize(
    "home", [{"home": "another start of a kernel pid:[4026531836]"}, {"home": "", "host": "elsewhere"}]
)
def test_a_rank_of_another_host_is_not_looked_for(ranks: Path, home: dict[str, str]) -> None:
    """Hosts may have one name, as cloned machines and containers do; beats of older versions have nothing else."""
    _change(ranks, 1, pid=NOBODY, **home)
    assert _looked(BeatWatch(ranks, 1, Facts(world_size=2), lambda _: None), 0.8) is None
    assert isinstance(read_beats(ranks, 1)[0], Beat)


@pytest.mark.parametrize("home", [{}, {"home": ""}, {"host": "renamed meanwhile"}])
def test_a_rank_of_this_host_is(ranks: Path, home: dict[str, str]) -> None:
    _change(ranks, 1, pid=NOBODY, **home)
    assert _looked(BeatWatch(ranks, 1, Facts(world_size=2), lambda _: None), 5) == "the process of rank 1 is gone"


def test_a_process_of_another_host_with_the_number_of_one_here(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has that number here is neither a rank that is stopped, nor one that has not ended yet, nor asked."""
    monkeypatch.setattr("orchestrator.recovery.watch._is_rank", lambda _: True)
    monkeypatch.setattr("orchestrator.recovery.watch._DUMP_SECONDS", 0.0)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        child.send_signal(signal.SIGSTOP)
        for rank in range(2):
            _change(ranks, rank, pid=child.pid, home="elsewhere", phase=ENDED)
        beats = read_beats(ranks, 1)
        watch = BeatWatch(ranks, 1, Facts(world_size=2), lambda _: None)
        watch._dump(beats)
        assert child.poll() is None
        assert not any(_reading(beat).is_stopped for beat in beats)
        assert _looked(watch, 5) == "all ranks have ended, what started them has not"
    finally:
        child.kill()
        child.wait()
