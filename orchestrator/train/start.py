"""Adapters of a run with what they start from, the same on every rank; collective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from peft.peft_model import PeftModel
from transformers import PreTrainedModel

from orchestrator.config import AdapterInit
from orchestrator.errors import UserError
from orchestrator.train import adapter_init, eva
from orchestrator.train.adapters import add_adapters
from orchestrator.train.streamed import local_folder

if TYPE_CHECKING:
    from orchestrator.train.loop import Run


def adapters_of(run: Run, base: PreTrainedModel) -> PeftModel:
    """Put the run's adapters on its base; all ranks call this.

    Raises:
        UserError: on all ranks, where the weights that the adapters start from cannot be read.
    """
    adapter, seed, steps = run.config.adapter, run.config.seed, run.sampler.num_steps
    if adapter.init is AdapterInit.eva:
        found = eva.found_ranks(run, base)
        plain = replace(
            adapter,
            init=AdapterInit.default,
            rank_pattern=tuple((name, float(rank)) for name, rank in found.ranks.items()),
            alpha_pattern=tuple((name, eva.alpha_of(adapter, rank)) for name, rank in found.ranks.items()),
            targets=tuple(found.targets),
        )
        model = add_adapters(base, plain, seed, steps)
        eva.put(model, found.directions)
        return model
    model = add_adapters(base, adapter, seed, steps)
    if run.stream is not None:
        run.stream.measure_adapters(model)
    if adapter.init in (AdapterInit.pissa, AdapterInit.loftq):
        _start_from_weights(run, model)
    return model


def _start_from_weights(run: Run, model: PeftModel) -> None:
    init, folder = run.config.adapter.init, run.settings.run_dir
    run.say(f"adapters start from the weights of the files ({init.value})")
    weights = adapter_init.FullWeights(local_folder(run.config), model.get_base_model().base_model_prefix)
    key = adapter_init.start_key(run.config)
    initial = run.group.from_main(adapter_init.kept_or_none(folder, key) if run.settings.is_main else None)
    if initial is None:
        initial = _computed(run, model, weights)
        if run.settings.is_main:
            adapter_init.keep(folder, initial, key)
    adapter_init.put(model, initial)
    if init is AdapterInit.pissa:
        adapter_init.leave_rest(model, initial, weights)


def _computed(run: Run, model: PeftModel, weights: adapter_init.FullWeights) -> dict[str, torch.Tensor]:
    """Of the main rank, on all ranks; where layers stream, all of them look, since a layer is brought by all."""
    init, seed = run.config.adapter.init, run.config.seed
    visit = None if run.stream is None else run.stream.visit
    found: dict[str, torch.Tensor] = {}
    failure: UserError | None = None
    if run.settings.is_main or visit is not None:
        try:
            found = adapter_init.start_matrices(model, init, weights, seed, visit)
        except UserError as error:
            failure = error
    problems = run.group.from_main(failure.problems if failure else ())
    if problems:
        raise UserError(*problems)
    shared: dict[str, torch.Tensor] = run.group.from_main(found)
    return shared
