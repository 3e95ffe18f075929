"""Directions and ranks that EVA takes from what modules are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from orchestrator.config import AdapterConfig, AdapterInit, BaseConfig, DataConfig, ModelConfig, Quant, RunConfig
from orchestrator.errors import UserError
from orchestrator.train.adapter_init import keep, kept_or_none, start_key
from orchestrator.train.eva import Look, alpha_of

FEATURES = 24


class Block(nn.Module):
    """Three modules, of which two are given the same."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.down = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(3))

    def forward(self, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.query(near) + self.key(near) + self.down(far)
        return found


def tokens(shares: list[float], rows: int, seed: int) -> torch.Tensor:
    """Tokens (rows, 16, features) whose variance lies along a few directions, with these standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=generator)).Q
    scale = torch.tensor(shares + [1e-3] * (FEATURES - len(shares)))
    return (torch.randn(rows, 16, FEATURES, generator=generator) * scale) @ basis.T


def looked(near: torch.Tensor, far: torch.Tensor, most: int, mask: torch.Tensor | None = None) -> Look:
    block = Block()
    look = Look(dict(block.named_children()), most)
    with torch.no_grad():
        for first in range(0, len(near), 4):
            look.mask = None if mask is None else mask[first : first + 4]
            block(near[first : first + 4], far[first : first + 4])
    look.close()
    assert not any(module._forward_pre_hooks for module in block.children())
    return look


def principal(values: torch.Tensor, count: int) -> torch.Tensor:
    flat = values.reshape(-1, FEATURES)
    return torch.linalg.svd(flat - flat.mean(0)).Vh[:count]


def test_directions_are_the_principal_ones_and_ranks_go_where_they_explain_most() -> None:
    near, far = tokens([5.0], 16, seed=1), tokens([3.0, 3.0, 3.0, 2.9], 16, seed=2)
    look = looked(near, far, most=4)
    ranks = look.ranks(budget=6)
    assert ranks == {"query": 1, "key": 1, "down": 4}
    for name, values in (("query", near), ("key", near), ("down", far)):
        found = look.directions(name, ranks)
        assert found.shape == (ranks[name], FEATURES)
        wanted = principal(values, ranks[name])
        # The same subspace: of directions alike in strength, each may be turned.
        assert torch.linalg.matrix_norm(found.T @ found - wanted.T @ wanted) < 0.05
    assert torch.equal(look.directions("query", ranks), look.directions("key", ranks))


def test_what_gets_no_rank_has_no_adapter_and_no_module_more_than_the_most() -> None:
    look = looked(tokens([5.0], 16, seed=1), tokens([1.0] * FEATURES, 16, seed=2), most=3)
    assert look.ranks(budget=2) == {"query": 1, "key": 1}
    assert look.ranks(budget=100) == {"query": 3, "key": 3, "down": 3}


def test_fillers_do_not_count() -> None:
    near, far = tokens([5.0, 4.0], 16, seed=1), tokens([3.0], 16, seed=2)
    mask = torch.ones(16, 16, dtype=torch.long)
    mask[:, 10:] = 0
    filled = near.clone()
    filled[:, 10:] = 1e6
    masked, short = looked(filled, far, 2, mask), looked(near[:, :10], far[:, :10], 2)
    ranks = masked.ranks(budget=6)
    assert ranks == short.ranks(budget=6)
    torch.testing.assert_close(masked.directions("query", ranks), short.directions("query", ranks))


def test_too_few_tokens_are_told() -> None:
    near = tokens([5.0], 1, seed=1)[:, :4]
    with pytest.raises(UserError, match="fewer than 8 tokens"):
        looked(near, near.clone(), most=8).ranks(budget=3)


@pytest.mark.parametrize(("rslora", "ranks"), [(False, {4: 4.0, 32: 32.0}), (True, {4: 8.0, 64: 32.0})])
def test_alpha_follows_the_rank_so_that_the_scale_stays(rslora: bool, ranks: dict[int, float]) -> None:
    adapter = AdapterConfig(rank=16, alpha=16.0, rslora=rslora, init=AdapterInit.eva)
    assert {rank: alpha_of(adapter, rank) for rank in ranks} == ranks
    for rank, alpha in ranks.items():
        assert alpha / (rank**0.5 if rslora else rank) == pytest.approx(16 / (4 if rslora else 16))


def test_what_a_start_that_came_to_nothing_has_left_is_not_taken(tmp_path: Path) -> None:
    model, data = ModelConfig(path="m"), DataConfig(path="d")
    config = RunConfig(model=model, data=data, adapter=AdapterConfig(rank=8, init=AdapterInit.loftq))
    other = replace(config, base=BaseConfig(quant=Quant.fp4))
    keep(tmp_path, {"a": torch.ones(2)}, start_key(config))
    assert torch.equal((kept_or_none(tmp_path, start_key(config)) or {})["a"], torch.ones(2))
    assert kept_or_none(tmp_path, start_key(other)) is None
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    assert kept_or_none(tmp_path, start_key(other)) is not None
