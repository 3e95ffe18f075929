"""Searches that are left out because their outcome is known: they would find what is taken for granted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config import (
    BaseConfig,
    DataConfig,
    Engine,
    EngineConfig,
    ModelConfig,
    Optimizer,
    OptimizerConfig,
    Quant,
    RunConfig,
)
from orchestrator.planner.build import _whole_fits
from orchestrator.planner.solve import Asked, cannot_fit, solve
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.presets import preset

DATA = DataStats(rows=10_000, eval_rows=0, mean_tokens=300, max_tokens=1024, total_tokens=3_000_000, source="counted")


def _asked(model: str, machine: str, engine: Engine, quant: Quant = Quant.nf4) -> Asked:
    config = RunConfig(
        model=ModelConfig(path=model),
        data=DataConfig(path="rows.jsonl"),
        engine=EngineConfig(name=engine),
        base=BaseConfig(quant=quant),
    )
    return Asked(config=config, topology=preset(machine), model=preset_shape(model), data=DATA)


@pytest.mark.parametrize("quant", list(Quant))
@pytest.mark.parametrize("machine", ["4xv100-16gb", "2xa100-40gb+2xt4"])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.1-70B"])
def test_a_search_that_is_left_out_would_find_nothing(model: str, machine: str, quant: Quant) -> None:
    asked = _asked(model, machine, Engine.ddp, quant)
    if cannot_fit(asked):
        assert solve(asked).found.best is None


def test_what_cannot_fit() -> None:
    """70B in 4 bits takes 36 GiB: more than a 24 GB card has, less than one of 80 GB."""
    assert cannot_fit(_asked("Llama-3.1-70B", "2x24gb-pcie", Engine.ddp))
    assert not cannot_fit(_asked("Llama-3.1-70B", "2x24gb-pcie", Engine.auto))
    assert not cannot_fit(_asked("Llama-3.1-70B", "4xa100-40gb+4xh100-80gb", Engine.ddp))  # fits some of them
    assert not cannot_fit(_asked("Llama-3.1-70B", "cpu", Engine.ddp))  # a host's memory is another limit
    assert cannot_fit(_asked("Llama-3.1-8B", "4xv100-16gb", Engine.ddp, Quant.none))


@pytest.mark.parametrize(
    ("model", "machine"),
    [("Llama-3.1-8B", "4xv100-16gb"), ("Llama-3.1-70B", "dgx_a100"), ("Llama-3.1-70B", "8xa100-80gb")],
)
def test_the_first_search_knows_whether_a_whole_copy_fits(model: str, machine: str) -> None:
    asked = _asked(model, machine, Engine.auto)
    solution = solve(asked)
    whole = replace(
        _asked(model, machine, Engine.ddp), config=replace(solution.job.config, engine=EngineConfig(name=Engine.ddp))
    )
    assert _whole_fits(asked, solution) is (solve(whole).found.best is not None)


def test_the_first_search_does_not_know_of_optimizers_left_open() -> None:
    asked = _asked("Llama-3.1-8B", "4xv100-16gb", Engine.auto)
    left_open = replace(asked, config=replace(asked.config, optimizer=OptimizerConfig(name=Optimizer.auto)))
    assert _whole_fits(left_open, solve(left_open)) is None
