"""AdaLoRA's masks: over a resume, and over a step that fp16 skips."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from peft import AdaLoraConfig, AdaLoraModel, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from orchestrator.train.adalora import Allocator, present_masks

_STEPS, _FINAL = 10, 3
_KEPT = 8  # of 2 x 2 modules with 2 each


def _model(init_rank: int = 4) -> PeftModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
    schedule = {"total_step": _STEPS, "tinit": 1, "tfinal": _FINAL, "deltaT": 2}
    config = AdaLoraConfig(
        init_r=init_rank, target_r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **schedule
    )
    return get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)), config)


class _Run:
    """Steps of a training, in the order of the library's loop."""

    def __init__(self, model: PeftModel) -> None:
        self.model, tuner = model, model.base_model
        assert isinstance(tuner, AdaLoraModel)
        self.tuner, self.masks = tuner, Allocator(tuner)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.01)

    def steps(self, first: int, last: int, overflow_at: int = 0) -> None:
        for step in range(first, last + 1):
            ids = torch.arange(step, step + 16).view(2, 8)
            self.model(input_ids=ids, labels=ids).loss.backward()
            if step == overflow_at:
                for parameter in self.parameters:
                    assert parameter.grad is not None
                    parameter.grad.fill_(torch.inf)
            state = SimpleNamespace(global_step=step - 1)
            self.masks.on_pre_optimizer_step(None, state, None)
            if step != overflow_at:
                self.optimizer.step()
            self.masks.on_optimizer_step(None, state, None)
            self.optimizer.zero_grad()

    @property
    def kept(self) -> dict[str, list[bool]]:
        return present_masks(self.tuner.model)


def _resumed(run: _Run) -> _Run:
    """What a checkpoint brings back: the parameters and their moments."""
    again = _Run(_model())
    again.model.load_state_dict(run.model.state_dict())
    again.optimizer.load_state_dict(run.optimizer.state_dict())
    return again


@pytest.mark.parametrize("last", [_STEPS - _FINAL - 1, _STEPS - _FINAL, _STEPS - 1])
def test_a_run_goes_on_about_the_last_change(last: int) -> None:
    run = _Run(_model())
    run.steps(1, last)
    again = _resumed(run)
    again.steps(last + 1, _STEPS)
    assert sum(map(sum, again.kept.values())) == _KEPT
    if last >= _STEPS - _FINAL:
        assert again.kept == run.kept, "the masks that were settled stay"


@pytest.mark.parametrize("at", [2, 3, _STEPS - _FINAL])
def test_a_step_that_fp16_skips_leaves_importance_alone(at: int) -> None:
    run = _Run(_model())
    run.steps(1, _STEPS, overflow_at=at)
    assert sum(map(sum, run.kept.values())) == _KEPT


def test_numbers_that_are_none_do_not_stay() -> None:
    run = _Run(_model())
    run.steps(1, 5, overflow_at=3)
    assert all(value.isfinite().all() for value in run.tuner.rankallocator.exp_avg_ipt.values())


def test_ranks_that_start_as_they_end_need_no_masks() -> None:
    run = _Run(_model(init_rank=2))
    run.steps(1, _STEPS)
    assert sum(map(sum, run.kept.values())) == _KEPT
