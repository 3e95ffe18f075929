"""Ranks and their launcher: who is gone, and who was left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.monitor.beat import ENDED, Beat, Heart, beat_path, read_beats
from orchestrator.monitor.facts import Facts
from orchestrator.recovery.watch import BeatWatch
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


def test_a_rank_of_another_host_is_not_looked_for(ranks: Path) -> None:
    _change(ranks, 1, host="elsewhere", pid=2**22 + 1)
    assert _looked(BeatWatch(ranks, 1, Facts(world_size=2), lambda _: None), 0.8) is None
    assert isinstance(read_beats(ranks, 1)[0], Beat)
