"""The adapter in PEFT's own format, from gathered tensors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from peft.peft_model import PeftModel
from transformers import PreTrainedTokenizerBase

from orchestrator.errors import Problem, UserError
from orchestrator.train.adapter_init import Initial
from orchestrator.train.as_lora import store_as_lora
from orchestrator.train.checkpoint_files import sync
from orchestrator.train.difference import store_difference


def save_adapter(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    parameters: Mapping[str, torch.Tensor],
    folder: Path,
    initial: Initial | None = None,
) -> None:
    """Write adapter and tokenizer under a temporary name, bring them to the disk, and rename the folder.

    An adapter that was there is moved away first, and removed once the new one is in its place.

    Args:
        model: for the adapter's configuration.
        tokenizer: saved beside the adapter, chat template included.
        parameters: whole tensors by parameter name; no partitioned storage is read.
        folder: where the adapter goes.
        initial: what the adapter's matrices began with, where the base has lost their product (PiSSA).

    Raises:
        UserError: when the disk refuses.
    """
    temporary = folder.with_name(f".{folder.name}.incomplete")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(str(temporary), state_dict=dict(parameters))
        store_as_lora(temporary)
        if initial is not None:
            store_difference(temporary, initial)
        tokenizer.save_pretrained(str(temporary))
        _sync_all(temporary)
        _replace(folder, temporary)
    except Exception as error:
        # safetensors has an error type of its own for a full disk, hence no narrower clause
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            Problem(
                where=str(folder),
                found=f"could not write the adapter: {error}",
                remedy="Free space, then run again with resume=true: the last checkpoint is whole.",
            )
        ) from error


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def _replace(folder: Path, made: Path) -> None:
    """Give `made` the name of a folder, which is back in its place where that fails."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        made.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
