"""An adapter in PEFT's format from a checkpoint, or in another type: the base's weights are not needed for that."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from peft.peft_model import PeftModel
from safetensors.torch import load_file, save_file

from orchestrator.config import RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.export.adapter_files import WEIGHTS
from orchestrator.merge.finite import checked
from orchestrator.merge.layers import empty_out
from orchestrator.run_dir import read_json
from orchestrator.train.adapter_ranks import ranks_of, saved_ranks, set_ranks
from orchestrator.train.adapters import add_adapters
from orchestrator.train.checkpoint_files import Checkpoint, DamagedError, check_whole, read_files
from orchestrator.train.export import save_adapter
from orchestrator.train.model import trainable
from orchestrator.train.rows import load_tokenizer
from orchestrator.weights.checkpoint import open_checkpoint
from orchestrator.weights.skeleton import BaseSource, empty_model


def newest_whole(folders: list[Path]) -> tuple[Checkpoint, list[str]]:
    """Return the first checkpoint that matches its checksums, and what was skipped before it.

    Raises:
        UserError: none does.
    """
    skipped: list[str] = []
    for folder in folders:
        try:
            check_whole(folder)
            return read_files(folder), skipped
        except DamagedError as error:
            skipped.append(f"{folder.name} was skipped: {error}")
    remedy = "Name another with export.checkpoint=STEP."
    raise UserError(Problem(where="export.checkpoint", found="; ".join(skipped), remedy=remedy))


def write_from_checkpoint(
    config: RunConfig, source: BaseSource, checkpoint: Checkpoint, folder: Path, run_dir: Path
) -> None:
    """Write adapter and tokenizer of a checkpoint.

    Raises:
        UserError: its adapters are not those of the configuration, need the base that they were made with, or hold
            values that are no finite numbers.
    """
    if config.adapter.init.value in {"pissa", "loftq"}:
        found = f"adapter.init={config.adapter.init.value} changed the base, which a checkpoint does not hold"
        remedy = "Let the run finish: its adapter is written relative to the base as it is stored."
        raise UserError(Problem(where="export.checkpoint", found=found, remedy=remedy))
    for name, value in checkpoint.parameters.items():
        _check(name, value, value.dtype)
    base, _, _ = empty_model(source, open_checkpoint(source.folder))
    empty_out(base)
    model = add_adapters(base, config.adapter, config.seed, 1)
    _fit_ranks(model, checkpoint)
    ours = {name: tuple(parameter.shape) for name, parameter in trainable(model)}
    theirs = {name: tuple(value.shape) for name, value in checkpoint.parameters.items()}
    if ours != theirs:
        odd = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))[:2]
        remedy = "Name the base that the run was trained on: model=FOLDER."
        found = f"the checkpoint does not fit the model, for example at {' and '.join(odd)}"
        raise UserError(Problem(where="export.checkpoint", found=found, remedy=remedy))
    tokenizer = load_tokenizer(config)
    template = (read_json(run_dir / "data" / "manifest.json") or {}).get("chat_template")
    if isinstance(template, str):
        tokenizer.chat_template = template
    save_adapter(model, tokenizer, checkpoint.parameters, folder)


def _fit_ranks(model: PeftModel, checkpoint: Checkpoint) -> None:
    """Give adapters the ranks that they have grown or shrunk to."""
    ranks = saved_ranks(checkpoint.parameters)
    own = ranks_of(model)
    if any(ranks.get(name, rank) != rank for name, rank in own.items()):
        set_ranks(model, ranks)


def _check(name: str, value: torch.Tensor, dtype: torch.dtype) -> None:
    for _ in checked(name, (value,), dtype):
        pass


def cast(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Write an adapter's folder again with its tensors in another type.

    Raises:
        OSError: the disk refuses.
        UserError: values that are no finite numbers, or that the type cannot hold.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.name != WEIGHTS and source != target:
            shutil.copyfile(path, target / path.name)
    tensors: dict[str, Any] = load_file(source / WEIGHTS)
    for name, value in tensors.items():
        _check(name, value, dtype)
    made = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    save_file(made, target / WEIGHTS, metadata={"format": "pt"})
