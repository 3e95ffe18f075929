"""One optimizer step on fake tensors, with every allocation counted."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from accelerate.utils.operations import convert_outputs_to_fp32
from peft import PeftModel
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.simulate.build import DTYPES, build_model
from orchestrator.simulate.case import Case
from orchestrator.simulate.cuda import SUBSTITUTES, WORKSPACES, cuda_autocast, cuda_rules
from orchestrator.simulate.meter import Allocation, StorageMeter

_MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Peak bytes of live storages.

    Attributes:
        peak_bytes: of the whole step.
        state_bytes: base, adapters and moments, before the step.
        pass_bytes: peak of the forward and backward passes.
        optimizer_bytes: peak of clipping and update.
        layers: of the simulated model.
        at_peak: what was live at the peak, largest first.
    """

    peak_bytes: int
    state_bytes: int
    pass_bytes: int
    optimizer_bytes: int
    layers: int
    at_peak: tuple[Allocation, ...]


def simulate(case: Case, *, real: bool = False) -> Simulated:
    """Run a whole step after one that created gradients' and optimizer's state.

    Args:
        case: what to run.
        real: use ordinary CPU tensors instead of fake ones, to check the count itself. Only for small models with
            plain attention and unquantised weights: CUDA's kernels do not run here.
    """
    transformers.logging.set_verbosity_error()
    meter = StorageMeter(WORKSPACES, SUBSTITUTES)
    tensors = nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), tensors, cuda_rules(masked=case.masked):
        warnings.simplefilter("ignore")
        model = build_model(case)
        meter.add([list(model.parameters()), list(model.buffers()), _states(model)], "model")
        with meter:
            return _measured(case, model, meter)


def _states(model: PeftModel) -> list[torch.Tensor]:
    tensors = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            tensors += [state.absmax, state.code]
            tensors += [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
    return tensors


def _measured(case: Case, model: PeftModel, meter: StorageMeter) -> Simulated:
    trained = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=True)
    _make_moments(optimizer, trained, meter)
    batch = _batch(case)
    state = meter.live_bytes
    meter.reset_peak()
    for _ in range(min(case.accumulation, 2)):  # every later pass is like the second
        _micro_step(case, model, batch, meter)
    passes, at_peak = meter.peak_bytes, meter.at_peak()
    meter.reset_peak()
    with meter.phase("optimizer"):
        torch.nn.utils.clip_grad_norm_(trained, _MAX_GRAD_NORM, foreach=True)
        optimizer.step()
    update = meter.peak_bytes
    return Simulated(
        peak_bytes=max(passes, update),
        state_bytes=state,
        pass_bytes=passes,
        optimizer_bytes=update,
        layers=model.config.get_text_config().num_hidden_layers,
        at_peak=at_peak if passes >= update else meter.at_peak(),
    )


def _make_moments(optimizer: torch.optim.Optimizer, trained: list[torch.nn.Parameter], meter: StorageMeter) -> None:
    with meter.phase("optimizer"):
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _batch(case: Case) -> dict[str, torch.Tensor]:
    shape = (case.micro, case.tokens)
    batch = {"input_ids": torch.zeros(shape, dtype=torch.int64), "labels": torch.zeros(shape, dtype=torch.int64)}
    if case.masked:
        batch["attention_mask"] = torch.ones(shape, dtype=torch.int64)
    return batch


def _micro_step(case: Case, model: PeftModel, batch: dict[str, torch.Tensor], meter: StorageMeter) -> None:
    with meter.phase("forward"):
        loss = _fused_loss(case, model, batch) if case.stack == "trl" else _plain_loss(case, model, batch)
    with meter.phase("backward"):
        torch.autograd.backward(loss)


def _fused_loss(case: Case, model: PeftModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As in `orchestrator.train.trainer.PlannedTrainer.compute_loss`."""
    with cuda_autocast(DTYPES[case.compute_dtype]):
        outputs: Any = model(**batch, use_cache=False, fused_lm_head=True)
        loss: torch.Tensor = -outputs.log_probs.sum() / outputs.label_mask.sum().clamp(min=1)
        return loss


def _plain_loss(case: Case, model: PeftModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As transformers' Trainer under accelerate: autocast around the model, its outputs widened after that."""
    items = torch.ones((), dtype=torch.int64)

    def forward(**inputs: torch.Tensor) -> Any:  # noqa: ANN401 - the model's own output class
        with cuda_autocast(DTYPES[case.compute_dtype]):
            return model(**inputs, use_cache=False, num_items_in_batch=items)

    outputs = convert_outputs_to_fp32(forward)(**batch)
    loss: torch.Tensor = outputs["loss"]
    return loss
