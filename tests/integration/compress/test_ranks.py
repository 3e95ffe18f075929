"""Compressed exchanges on real gloo ranks: what is said and what is left over add up, on all ranks alike."""

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

# Each rank is a process that imports torch.
_MANY = [pytest.param(size, marks=pytest.mark.slow) for size in (5, 8)]

Told = Callable[[str, int, str], list[Any]]

_HERE = Path(__file__).parent
_ROOT = Path(__file__).parents[3]
_LIMIT_SECONDS = 200
_LAW = 1e-6  # of the largest number of a parameter: what fp32 sums in another order differ by
_FP16 = 2.0**-11  # what a mean is off by when it is rounded to fp16
_PARTS = {
    ("rank", 2): ("law", "everything"),
    ("rank", 3): ("law", "everything", "saved"),
    ("rank", 5): ("law", "everything"),
    ("rank", 8): ("law", "everything", "saved"),
    ("hook_rank", 2): ("training", "warming_up", "scaled", "counted", "refreshing"),
    ("hook_rank", 3): (
        *("training", "warming_up", "not_finite", "scaled", "restored", "counted", "along_schedules", "refreshing"),
    ),
    ("hook_rank", 4): ("training", "not_finite", "scaled", "restored", "counted", "refreshing"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each rank of a group of that size says of a part; None where it said nothing."""

    @cache
    def of_group(script: str, size: int) -> list[dict[str, Any]]:
        return _run(script, size, tmp_path_factory.mktemp("ranks"))

    return lambda script, size, part: [said.get(part) for said in of_group(script, size)]


def _run(script: str, size: int, folder: Path) -> list[dict[str, Any]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT), "PYTHONWARNINGS": "ignore"}
    ranks = []
    for rank in range(size):
        words = [str(_HERE / f"{script}.py"), str(rank), str(size), str(folder / "meet"), *_PARTS[script, size]]
        ranks.append(
            subprocess.Popen(
                [sys.executable, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        outputs = [rank.communicate(timeout=_LIMIT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    errors = "\n".join(err[-2000:] for rank, (_, err) in zip(ranks, outputs, strict=True) if rank.returncode)
    assert not errors, errors
    return [dict(json.loads(line) for line in out.splitlines() if line.startswith("[")) for out, _ in outputs]


@pytest.mark.parametrize("size", [2, 3, *_MANY])
def test_what_is_said_and_what_is_left_over_add_up(size: int, told: Told) -> None:
    for worst in told("rank", size, "law"):
        print(size, max(worst.values()), worst)
        assert max(worst.values()) < _LAW
    assert len(worst) == (20 if size == 8 else 12)


@pytest.mark.parametrize("size", [2, 3, *_MANY])
def test_keeping_everything_is_a_dense_mean(size: int, told: Told) -> None:
    """Each rank asserts it but for the order of sums; with two ranks there is only one order."""
    for found in told("rank", size, "everything"):
        assert {"gather/1", "split/1", "threshold/1"} <= set(found)
        assert size > 2 or all(found.values())


@pytest.mark.parametrize("size", [3, _MANY[-1]])
def test_residuals_go_on_and_keep_their_mean_over_more_or_fewer_ranks(size: int, told: Told) -> None:
    assert told("rank", size, "saved") == ["ok"] * size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_training_obeys_the_law_with_new_buckets_and_accumulation(size: int, told: Told) -> None:
    for worst in told("hook_rank", size, "training"):
        assert max(worst.values()) < _LAW
    assert ("hierarchical/2" in worst) == (size == 4)


@pytest.mark.parametrize("size", [2, 3])
def test_dense_steps_are_those_of_ddp(size: int, told: Told) -> None:
    assert told("hook_rank", size, "warming_up") == ["ok"] * size


@pytest.mark.parametrize("size", [3, 4])
def test_a_gradient_that_is_not_finite_reaches_all_ranks_and_no_residual(size: int, told: Told) -> None:
    assert told("hook_rank", size, "not_finite") == ["ok"] * size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_residuals_of_scaled_gradients_are_unscaled(size: int, told: Told) -> None:
    for worst in told("hook_rank", size, "scaled"):
        assert max(worst.values()) < _FP16


@pytest.mark.parametrize("size", [3, 4])
def test_a_restored_run_goes_on_from_what_was_saved(size: int, told: Told) -> None:
    assert told("hook_rank", size, "restored") == ["ok"] * size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_send_what_the_formula_says(size: int, told: Told) -> None:
    assert told("hook_rank", size, "counted") == ["ok"] * size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_refresh_steps_share_residuals_with_the_others(size: int, told: Told) -> None:
    for worst in told("hook_rank", size, "refreshing"):
        assert max(worst.values()) < _LAW
    assert ("hierarchical/2" in worst) == (size == 4)


def test_schedules_of_the_topology_move_the_same_bytes(told: Told) -> None:
    assert told("hook_rank", 3, "along_schedules") == ["ok"] * 3
