from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from orchestrator.train.adapter_ranks import lora_layers, name_of_a, name_of_b, ranks_of, saved_ranks, set_ranks
from orchestrator.train.checkpoint import Checkpoint
from orchestrator.train.model import trainable
from orchestrator.train.resized_checkpoint import span, told, with_ranks

_BETAS = (0.9, 0.999)
_IDS = torch.arange(24).view(2, 12)


def _base() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))


def _model(**options: Any) -> PeftModel:
    config = LoraConfig(r=8, lora_alpha=12, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", **options)
    model = get_peft_model(_base(), config)
    for name, parameter in trainable(model):
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def _checkpoint(model: PeftModel) -> Checkpoint:
    parameters = {name: parameter.detach().clone() for name, parameter in trainable(model)}
    moments = {}
    for name, value in parameters.items():
        moments[f"{name}@exp_avg"] = torch.randn_like(value)
        moments[f"{name}@exp_avg_sq"] = torch.rand_like(value)
        moments[f"{name}@step"] = torch.tensor(30.0)
    residuals = {
        f"{rank}.{name}": torch.ones(value.numel()) for name, value in parameters.items() for rank in (0, "since")
    }
    return Checkpoint(step=30, parameters=parameters, moments=moments, rng={}, state={}, residuals=residuals)


def _load(model: PeftModel, checkpoint: Checkpoint) -> None:
    set_ranks(model, saved_ranks(checkpoint.parameters))
    with torch.no_grad():
        for name, parameter in trainable(model):
            parameter.copy_(checkpoint.parameters[name])


def _logits(model: torch.nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=_IDS).logits
    return found


def _mixed(model: PeftModel) -> dict[str, int]:
    """A rank of its own for each adapter: smaller, larger and as before."""
    return dict(zip(ranks_of(model), (3, 8, 12, 5), strict=True))


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}], ids=["lora", "rslora", "dora"])
def test_plain_peft_reads_what_was_resized(options: dict[str, Any], tmp_path: Path) -> None:
    model = _model(**options)
    ranks = _mixed(model)
    scales = {name: module.scaling["default"] for name, module in lora_layers(model)}
    checkpoint, _ = with_ranks(_checkpoint(model), ranks, seed=0, betas=_BETAS)
    _load(model, checkpoint)
    assert ranks_of(model) == ranks
    assert {name: module.scaling["default"] for name, module in lora_layers(model)} == scales
    model.save_pretrained(str(tmp_path))
    again = PeftModel.from_pretrained(_base(), str(tmp_path))
    assert ranks_of(again) == ranks
    torch.testing.assert_close(_logits(again), _logits(model), rtol=1e-5, atol=1e-6)


def test_one_rank_for_all_needs_no_pattern() -> None:
    model = _model()
    set_ranks(model, dict.fromkeys(ranks_of(model), 2))
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.rank_pattern, config.alpha_pattern) == (2, 3, {}, {})


@pytest.mark.parametrize("rank", [8, 11])
def test_as_many_or_more_ranks_leave_the_logits(rank: int) -> None:
    model = _model()
    before = _logits(model)
    checkpoint, _ = with_ranks(_checkpoint(model), dict.fromkeys(ranks_of(model), rank), seed=0, betas=_BETAS)
    _load(model, checkpoint)
    torch.testing.assert_close(_logits(model), before, rtol=1e-5, atol=1e-6)


def test_old_matrices_are_let_go_and_new_ones_train() -> None:
    model = _model()
    before = sum(parameter.numel() for _, parameter in trainable(model))
    assert set_ranks(model, dict.fromkeys(ranks_of(model), 2))
    assert sum(parameter.numel() for _, parameter in trainable(model)) == before // 4
    assert not set_ranks(model, dict.fromkeys(ranks_of(model), 2))
    model(input_ids=_IDS, labels=_IDS).loss.backward()
    assert all(parameter.grad is not None for _, parameter in trainable(model))


def test_a_checkpoint_keeps_what_does_not_change() -> None:
    model = _model()
    before = _checkpoint(model)
    first, *others = ranks_of(model)
    after, changes = with_ranks(before, {first: 3}, seed=0, betas=_BETAS)
    assert list(changes) == [first]
    assert (changes[first].old, changes[first].new) == (8, 3)
    for other in others:
        for name in (name_of_a(other), name_of_b(other)):
            assert after.parameters[name] is before.parameters[name]
            assert after.moments[f"{name}@exp_avg"] is before.moments[f"{name}@exp_avg"]
            assert f"0.{name}" in after.residuals
    for name in (name_of_a(first), name_of_b(first)):
        assert after.moments[f"{name}@exp_avg"].shape == after.parameters[name].shape
        assert float(after.moments[f"{name}@step"]) == 10
        assert {f"0.{name}", f"since.{name}"}.isdisjoint(after.residuals)


def test_all_ranks_of_a_run_draw_the_same_rows() -> None:
    model = _model()
    ranks = dict.fromkeys(ranks_of(model), 12)
    one, other = (with_ranks(_checkpoint(model), ranks, seed=7, betas=_BETAS)[0] for _ in range(2))
    assert all(torch.equal(one.parameters[name], other.parameters[name]) for name in one.parameters)
    first, second = list(ranks)[:2]
    assert not torch.equal(one.parameters[name_of_a(first)][8:], one.parameters[name_of_a(second)][8:])


def test_what_an_event_tells() -> None:
    model = _model()
    ranks = {**dict.fromkeys(ranks_of(model), 8), next(iter(ranks_of(model))): 2}
    _, changes = with_ranks(_checkpoint(model), ranks, seed=0, betas=_BETAS)
    body = told(changes)
    (module, change), *_ = changes.items()
    assert body["ranks"] == {module: [8, 2]}
    assert 0 < body["dropped_share"] < 1
    assert body["dropped_share"] == body["largest_dropped_share"] == change.dropped / change.energy
    assert told({})["dropped_share"] == 0
    assert (span([4, 16, 8]), span([4, 4]), span([])) == ("4-16", "4", "none")
