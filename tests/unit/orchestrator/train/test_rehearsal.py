"""The longest batches that a run will meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Rehearse
from orchestrator.config_codec import parse_config
from orchestrator.planner.setbacks import Ceiling, Setbacks
from orchestrator.train.rehearsal import batches_of, conflict, held_out_batches, is_wanted, longest_batch
from orchestrator.train.sampler import MASKED, GlobalSampler, RankBatches
from orchestrator.train.settings import TrainSettings


def _settings(rank: int = 0, shares: tuple[int, ...] = (3, 1), micro: tuple[int, ...] = (2, 1)) -> TrainSettings:
    return TrainSettings(
        run_dir=Path("run"),
        rank=rank,
        local_rank=rank,
        world_size=len(shares),
        device=torch.device("cpu"),
        engine="ddp",
        precision="fp32",
        adapter_dtype="fp32",
        quant_storage="uint8",
        checkpointing="none",
        shares=shares,
        micro=micro,
        accumulation=2,
    )


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    seed=st.integers(0, 50),
    rank=st.integers(0, 1),
    quadratic=st.booleans(),
)
def test_no_batch_of_the_run_is_longer(lengths: list[int], seed: int, rank: int, *, quadratic: bool) -> None:
    settings = _settings(rank)
    sampler = GlobalSampler(num_rows=len(lengths), global_batch=4, seed=seed, epochs=2)
    found = longest_batch(batches_of(sampler, settings, 0), lengths, quadratic=quadratic)

    def cells(batch: tuple[int, ...]) -> int:
        longest = max(lengths[row] if row != MASKED else min(lengths) for row in batch)
        return len(batch) * longest ** (2 if quadratic else 1)

    every = list(RankBatches(sampler=sampler, rank=rank, shares=settings.shares, micro=settings.micro))
    assert found in every
    assert cells(found) == max(map(cells, every))


def test_what_is_behind_does_not_count() -> None:
    sampler = GlobalSampler(num_rows=8, global_batch=4, seed=0)
    settings = _settings()
    first = list(batches_of(sampler, settings, 0))
    rest = list(batches_of(sampler, settings, 1))
    assert rest == first[len(first) // 2 :]
    # A run whose last step is done has no rows left: its last step stands in.
    assert list(batches_of(sampler, settings, 2)) == rest


@given(num_rows=st.integers(1, 30), rank=st.integers(0, 1))
def test_an_evaluation_takes_all_rows_once(num_rows: int, rank: int) -> None:
    batches = held_out_batches(num_rows, _settings(rank, micro=(2, 1)))
    rows = [row for batch in batches for row in batch]
    assert rows == (list(range(rank, num_rows, 2)) or [MASKED])
    assert max(map(len, batches)) <= 2


def _config(**recovery: object) -> Any:
    return parse_config({"model": {"path": "m"}, "data": {"path": "d"}, "recovery": recovery})


@pytest.mark.parametrize(
    ("asked", "kind", "ran_out", "wanted"),
    [
        ("auto", "gpu", False, True),
        ("auto", "cpu", False, False),
        ("auto", "cpu", True, True),
        (True, "cpu", False, True),
        (False, "gpu", True, False),
    ],
)
def test_where_it_is_worth_it(plan_for: Any, asked: object, kind: str, ran_out: bool, wanted: bool) -> None:
    plan = plan_for("tiny", "cpu" if kind == "cpu" else "1x24gb")
    ceiling = Ceiling(phase="train", where="host", device_name="x", nbytes=1)
    if ran_out:
        plan = replace(plan, setbacks=Setbacks(ceilings=(ceiling,)))
    assert is_wanted(_config(rehearse=asked), plan) is wanted
    assert _config(rehearse=asked).recovery.rehearse is Rehearse(str(asked).lower())


def test_deepspeed_is_left_out_with_a_word() -> None:
    assert "DeepSpeed" in conflict(replace(_settings(), engine="zero3"))
    assert not conflict(_settings())
