"""While ranks are decided on, nobody may take the run for one that hangs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from orchestrator.config import ResizeConfig, ResizeWhen
from orchestrator.config_codec import parse_config
from orchestrator.monitor.beat import Heart
from orchestrator.train import resizing
from orchestrator.train.resizing import Resizing

_BY_LOSS = ResizeConfig(when=ResizeWhen.plateau, every=1, energy=1.0)
_CONFIG = parse_config({"model": {"path": "m"}, "data": {"path": "d"}})


class _OneRank:
    def from_main(self, value: Any) -> Any:
        return value


def _run(resize: ResizeConfig, folder: Path) -> Any:
    model = get_peft_model(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),  # type: ignore[arg-type] - PEFT takes any module
        LoraConfig(r=4, target_modules=["0", "1"], init_lora_weights=False),
    )
    heart = Heart(folder, rank=0, attempt=1)
    heart.beat("training", step=1)
    return SimpleNamespace(
        config=replace(_CONFIG, adapter=replace(_CONFIG.adapter, rank=4, resize=resize)),
        plan=SimpleNamespace(setbacks=None),
        sampler=SimpleNamespace(num_steps=10),
        settings=SimpleNamespace(is_main=True),
        trainer=SimpleNamespace(model=model),
        group=_OneRank(),
        heart=heart,
        go_on=lambda: heart.beat("training"),
    )


def test_it_beats_before_each_adapter_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(_BY_LOSS, tmp_path)
    seen: list[tuple[str, int]] = []

    def weighed(a: torch.Tensor, b: torch.Tensor) -> tuple[float, ...]:
        seen.append((run.heart.now.phase, run.heart.now.count))
        return (1.0,) * a.shape[0]  # all of them are needed, so nothing changes

    monkeypatch.setattr(resizing, "energies", weighed)
    ranks = Resizing(run)
    assert not ranks.logged(1, 1.0)
    assert not ranks.logged(2, 1.0)
    assert [phase for phase, _ in seen] == ["saving", "saving"]
    assert seen[0][1] < seen[1][1]
    assert run.heart.now.phase == "training"


def test_named_ranks_need_no_singular_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "energies", None)
    run = _run(ResizeConfig(at=(("3", 2.0),)), tmp_path)
    ranks = Resizing(run)
    assert not ranks.logged(2, 1.0)
    assert ranks.logged(3, 1.0)
    assert ranks.history.pending is not None
    assert set(ranks.history.pending.ranks.values()) == {2}
    assert run.heart.now.phase == "saving", "the change itself follows"
