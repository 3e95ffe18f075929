"""Precision, checkpointing, batching, storage and optimizers, each in a real run of one rank."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ONE_RANK = ("devices=1", "launch=local", "batch.max_steps=3", "batch.micro=4", "data.max_eval_rows=8")
Trained = Callable[..., tuple[list[float], dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(runs: Any) -> Trained:
    """Train one rank for three steps; returns losses and summary."""

    def train(name: str, *overrides: str) -> tuple[list[float], dict[str, Any]]:
        summary = runs.train(name, *ONE_RANK, *overrides)
        return list(runs.losses(name).values()), summary

    return train


@pytest.fixture(scope="module")
def plain(trained: Trained) -> list[float]:
    return trained("plain", "engine=ddp", "checkpointing=none")[0]


@pytest.mark.parametrize("mode", ["full", pytest.param("selective", marks=pytest.mark.slow)])
def test_checkpointing_changes_nothing(trained: Trained, plain: list[float], mode: str) -> None:
    assert trained(mode, "engine=ddp", f"checkpointing={mode}")[0] == plain


@pytest.mark.slow
def test_fp16_scales_its_loss(runs: Any, trained: Trained, plain: list[float]) -> None:
    losses, _ = trained("fp16", "engine=ddp", "precision=fp16")
    assert losses == pytest.approx(plain, rel=3e-3)
    state = json.loads((runs.root / "fp16" / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert state["state"]["scaler"]["scale"] > 1


@pytest.mark.slow
def test_bf16(trained: Trained, plain: list[float]) -> None:
    losses, summary = trained("bf16", "engine=ddp", "precision=bf16", "adapter.dtype=bf16")
    assert summary["precision"] == "bf16"
    assert losses == pytest.approx(plain, rel=2e-2)


@pytest.mark.slow
def test_static_padding_changes_only_the_shape(trained: Trained, plain: list[float]) -> None:
    losses, _ = trained("static", "engine=ddp", "data.padding=static")
    assert losses == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_packing_trains(runs: Any, trained: Trained) -> None:
    _, summary = trained("packed", "engine=ddp", "data.packing=true", "batch.global=4")
    stats = json.loads((runs.root / "packed" / "data" / "stats.json").read_text())["train"]
    assert stats["packed_rows"] < stats["rows"] / 2
    assert summary["eval_loss_after"] < summary["eval_loss_before"]


@pytest.mark.slow
def test_grouping_by_length_pads_less(runs: Any, trained: Trained, plain: list[float]) -> None:
    losses, summary = trained("grouped", "engine=ddp", "data.group_by_length=true")
    assert losses != plain, "the rows come in another order"
    assert summary["eval_loss_after"] < summary["eval_loss_before"]


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fp4", "int8", "none"])
def test_other_storage_of_the_base(trained: Trained, plain: list[float], base: str) -> None:
    losses, summary = trained(f"base_{base}", "engine=ddp", f"base={base}")
    assert losses == pytest.approx(plain, rel=0.05)
    assert losses != plain, "another storage rounds in another way"
    assert summary["live_base_bytes"] > 0


@pytest.mark.slow
def test_8_bit_optimizer(trained: Trained, plain: list[float]) -> None:
    losses, _ = trained("adamw_8bit", "engine=ddp", "optimizer=adamw_8bit")
    assert losses[0] == plain[0]
    assert losses == pytest.approx(plain, rel=2e-2)


@pytest.mark.slow
def test_named_targets(runs: Any, trained: Trained) -> None:
    trained("targets", "engine=ddp", "adapter.targets=q_proj,v_proj")
    config = json.loads((runs.root / "targets" / "adapter" / "adapter_config.json").read_text())
    assert set(config["target_modules"]) == {"q_proj", "v_proj"}
