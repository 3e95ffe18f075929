"""Schedules on real gloo ranks, against torch's own collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Each group of ranks is started once for all its parts: starting torch costs more than all of them.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

Told = Callable[[int, str], list[Any]]

_RANK = Path(__file__).with_name("rank.py")
_ROOT = Path(__file__).parents[3]
_LIMIT_SECONDS = 200
_PARTS = {
    2: ("collectives", "training", "wrong_size", "slow_peer"),
    3: ("collectives", "training", "different_schedules", "lost_peer"),
    4: ("collectives",),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each rank of a group of that size says of a part; None where it said nothing."""

    @cache
    def of_size(size: int) -> list[dict[str, Any]]:
        return _run(size, tmp_path_factory.mktemp("ranks"))

    return lambda size, part: [said.get(part) for said in of_size(size)]


def _run(size: int, folder: Path) -> list[dict[str, Any]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT), "PYTHONWARNINGS": "ignore"}
    ranks = []
    for rank in range(size):
        command = [sys.executable, str(_RANK), str(rank), str(size), str(folder / "meet"), *_PARTS[size]]
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # no shell
        )
    try:
        outputs = [rank.communicate(timeout=_LIMIT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    errors = "\n".join(err[-2000:] for rank, (_, err) in zip(ranks, outputs, strict=True) if rank.returncode)
    assert not errors, errors
    return [dict(json.loads(line) for line in out.splitlines() if line.startswith("[")) for out, _ in outputs]


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective_gives_what_the_library_gives(size: int, told: Told) -> None:
    assert told(size, "collectives") == ["ok"] * size


@pytest.mark.parametrize("size", [2, 3])
def test_training_with_the_hook_is_training_without(size: int, told: Told) -> None:
    assert told(size, "training") == ["ok"] * size


def test_ranks_with_different_schedules_are_told_which(told: Told) -> None:
    for said in told(3, "different_schedules"):
        assert "rank 0, 2: ring all_reduce" in said
        assert "rank 1: star all_reduce" in said


def test_a_schedule_for_more_ranks_is_refused_by_all(told: Told) -> None:
    for said in told(2, "wrong_size"):
        assert said.startswith("rank 0: a schedule for 3 ranks in a group of 2")


@pytest.mark.parametrize(("size", "part", "timeout_seconds"), [(3, "lost_peer", 3), (2, "slow_peer", 2)])
def test_a_peer_that_is_gone_or_stuck_ends_in_an_error(
    size: int, part: str, timeout_seconds: float, told: Told
) -> None:
    for first, second in told(size, part)[:-1]:
        assert first[0] < timeout_seconds + 5
        assert second[0] < 1
        assert "ring all_reduce" in first[1]
        assert "new process group" in first[1]
