from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config import ResizeWhen
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError
from orchestrator.planner.smaller_ranks import smaller_ranks, with_rank

_BASE: dict[str, Any] = {"model": {"path": "x"}, "data": {"path": "y"}}


def _with(adapter: dict[str, Any] | None = None, **resize: Any) -> dict[str, Any]:
    return {**_BASE, "adapter": {**(adapter or {}), "resize": resize}}


@pytest.mark.parametrize("at", ["60:8,90:4", ["60:8", "90:4"], {"60": 8, "90": 4}])
def test_steps_and_ranks_in_each_spelling(at: object) -> None:
    config = parse_config(_with(at=at, when="plateau"))
    assert config.adapter.resize.steps == {60: 8, 90: 4}
    assert config.adapter.resize.when is ResizeWhen.plateau
    assert parse_config(dump_config(config)) == config


def test_nothing_changes_unless_asked() -> None:
    assert not parse_config(_BASE).adapter.resize.in_training


@pytest.mark.parametrize(
    ("raw", "where", "found"),
    [
        (_with(at="6:0"), "adapter.resize.at", "6:0"),
        (_with(at="0:4"), "adapter.resize.at", "0:4"),
        (_with(at="x:4"), "adapter.resize.at", "x:4"),
        (_with(at="6:4.5"), "adapter.resize.at", "6:4.5"),
        (_with(at="6:4,06:8"), "adapter.resize.at", "twice"),
        (_with(every=0), "adapter.resize.every", "0"),
        (_with(energy=0), "adapter.resize.energy", "0"),
        (_with(energy=1.1), "adapter.resize.energy", "1.1"),
        (_with(gain=1), "adapter.resize.gain", "1"),
        (_with(max_rank=2), "adapter.resize.max_rank", "below"),
        (_with({"kind": "adalora"}, when="plateau"), "adapter.resize", "masks"),
        (_with({"init": "pissa"}, at="6:4"), "adapter.resize", "pissa"),
        (_with({"rank_pattern": "q_proj:8"}, under_pressure=True), "adapter.resize.under_pressure", "rank_pattern"),
        ({**_with(at="6:4"), "engine": {"name": "zero3"}}, "adapter.resize", "flat buffers"),
    ],
)
def test_what_cannot_be_is_said(raw: dict[str, Any], where: str, found: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_config(raw)
    (problem,) = caught.value.problems
    assert problem.where == where
    assert found in problem.found


def test_zero3_may_start_smaller_where_memory_runs_out() -> None:
    parse_config({**_with(under_pressure=True), "engine": {"name": "zero3"}})


@pytest.mark.parametrize(("rslora", "alpha"), [(False, 8.0), (True, 16.0)])
def test_a_smaller_rank_keeps_the_scale(rslora: bool, alpha: float) -> None:
    adapter = parse_config(_with({"rank": 16, "alpha": 32.0, "rslora": rslora}, under_pressure=True)).adapter
    assert smaller_ranks(adapter) == (8, 4)
    smaller = with_rank(adapter, 4)
    assert (smaller.rank, smaller.alpha) == (4, alpha)
    assert with_rank(adapter, 16) == adapter


def test_no_smaller_rank_unless_allowed() -> None:
    assert smaller_ranks(parse_config(_with({"rank": 16})).adapter) == ()
