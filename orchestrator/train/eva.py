"""EVA: what the data looks like to each module decides on the ranks, and on what A starts from.

The main rank sends training rows through the base and takes singular vectors of every module's inputs
(`peft/tuners/lora/eva.py`; Paischer et al. 2024, arXiv 2410.07170). Ranks go where these explain most, under the budget
of `adapter.rank` for each module. The ranks are kept beside the run: a run that goes on must have the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from peft import EvaConfig, LoraConfig, get_peft_model, initialize_lora_eva_weights
from peft.peft_model import PeftModel
from peft.tuners.lora.eva import SVDHook
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from orchestrator.config import AdapterInit
from orchestrator.train.adapter_init import INITIAL_FILE, adapted
from orchestrator.train.adapters import adapter_config

if TYPE_CHECKING:
    from orchestrator.train.loop import Run
    from orchestrator.train.rows import RowBatcher

RANKS_FILE: Final = "adapter_ranks.json"
_ROWS: Final = 256  # that are looked at, at most
_MOST_PASSES: Final = 8
_ADAPTER: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the data said.

    Attributes:
        ranks: of the modules, by full name, where they are not `adapter.rank`.
        targets: full names of all modules with an adapter; those that got no rank have none.
        directions: A of each.
    """

    ranks: dict[str, int]
    targets: list[str]
    directions: dict[str, torch.Tensor]


def found_ranks(run: Run, base: PreTrainedModel) -> Found:
    """Ranks and directions, of this attempt or an earlier one; all ranks call this and get the main rank's."""
    found: Found | None = None
    if run.settings.is_main:
        found = _kept(run.settings.run_dir)
        if found is None:
            run.say(f"EVA looks at up to {_ROWS} rows to give each module its rank")
            found = _looked_at(run, base)
            _keep(run.settings.run_dir, found)
    shared: Found = run.group.from_main(found)
    return shared


def _looked_at(run: Run, base: PreTrainedModel) -> Found:
    adapter = run.config.adapter
    plain = adapter_config(base, replace(adapter, init=AdapterInit.default), run.sampler.num_steps)
    body = {**plain.to_dict(), "init_lora_weights": "eva", "eva_config": EvaConfig(rho=adapter.rho)}
    body["runtime_config"] = plain.runtime_config
    config = LoraConfig(**{name: body[name] for name in _FIELDS if name in body})
    model: Any = get_peft_model(base, config)
    rows = list(_batches(run.train_batcher, max(run.settings.micro), base.device))
    with torch.no_grad():
        initialize_lora_eva_weights(
            model, rows, forward_fn=_Passes(), gather_distributed_inputs=False, show_progress_bar=False
        )
    modules = dict(adapted(model))
    found = Found(
        ranks={name: int(module.r[_ADAPTER]) for name, module in modules.items()},
        targets=list(modules),
        directions={name: module.lora_A[_ADAPTER].weight.detach().cpu().clone() for name, module in modules.items()},
    )
    model.unload()
    for parameter in base.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    return found


class _Passes:
    """Forward passes, after which the directions are taken as they are: PEFT goes round the rows until none moves."""

    def __init__(self) -> None:
        self._done = 0

    def __call__(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        self._done += 1
        if self._done >= _MOST_PASSES:
            for module in model.modules():
                for hook in module._forward_hooks.values():  # noqa: SLF001 - PEFT's own are only there
                    if isinstance(hook, SVDHook):
                        hook.sim_thresh = torch.tensor(-1.0)
        model(**inputs)


_FIELDS: Final = (
    *("r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "use_rslora", "use_dora", "bias"),
    *("task_type", "init_lora_weights", "eva_config", "alpha_pattern"),
)


def _batches(batcher: RowBatcher, micro: int, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """The first rows of the data, as many at once as a micro-batch has; the loss is not asked for."""
    count = min(_ROWS, len(batcher.rows))
    micro = min(micro, count)
    for first in range(0, count - micro + 1, micro):
        batch = batcher(list(range(first, first + micro)))
        yield {name: value.to(device) for name, value in batch.items() if name in ("input_ids", "attention_mask")}


def put(model: PeftModel, directions: dict[str, torch.Tensor]) -> None:
    """Let A of every adapter start from the directions; B stays zero."""
    with torch.no_grad():
        for name, module in adapted(model):
            module.lora_A[_ADAPTER].weight.copy_(directions[name])


def _kept(folder: Path) -> Found | None:
    path = folder / RANKS_FILE
    if not path.is_file():
        return None
    ranks = {name: int(rank) for name, rank in json.loads(path.read_text(encoding="utf-8")).items()}
    return Found(ranks=ranks, targets=list(ranks), directions=load_file(folder / INITIAL_FILE))


def _keep(folder: Path, found: Found) -> None:
    """The ranks last: where they are, the directions are whole."""
    save_file(found.directions, folder / INITIAL_FILE)
    part = (folder / RANKS_FILE).with_suffix(".part")
    part.write_text(json.dumps(found.ranks, indent=1), encoding="utf-8")
    part.rename(folder / RANKS_FILE)
