"""EVA: what the data looks like to each module decides on the ranks, and on what A starts from.

The main rank sends training rows through the base and takes the principal directions of every module's inputs
(Paischer et al. 2024, arXiv 2410.07170, by PEFT's incremental PCA). Ranks go where these explain most, under the budget
of `adapter.rank` for each module; alpha follows a module's rank, so that the scale of its product stays. The ranks are
kept beside the run: a run that goes on must have the same ones.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from peft import get_peft_model
from peft.peft_model import PeftModel
from peft.utils.incremental_pca import IncrementalPCA
from torch import nn
from transformers import PreTrainedModel

from orchestrator.config import AdapterConfig, AdapterInit
from orchestrator.errors import Problem, UserError
from orchestrator.train.adapter_init import adapted, keep, kept_or_none, start_key
from orchestrator.train.adapters import adapter_config

if TYPE_CHECKING:
    from orchestrator.train.loop import Run
    from orchestrator.train.rows import RowBatcher

RANKS_FILE: Final = "adapter_ranks.json"
_ROWS: Final = 256  # that are looked at, at most
_WHOLE_SVD: Final = 1024  # features up to which the whole SVD is quick
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
    """Ranks and directions, of this attempt or an earlier one; all ranks call this and get the main rank's.

    Raises:
        UserError: on all ranks, where the rows are too few.
    """
    found: Found | None = None
    problems: tuple[Problem, ...] = ()
    if run.settings.is_main:
        try:
            found = _of_main(run, base)
        except UserError as error:
            problems = error.problems
    problems, found = run.group.from_main((problems, found))
    if found is None:
        raise UserError(*problems)
    return found


def _of_main(run: Run, base: PreTrainedModel) -> Found:
    key = start_key(run.config)
    found = _kept(run.settings.run_dir, key)
    if found is None:
        run.say(f"EVA looks at up to {_ROWS} rows to give each module its rank")
        found = _looked_at(run, base)
        _keep(run.settings.run_dir, found, key)
    return found


def _looked_at(run: Run, base: PreTrainedModel) -> Found:
    adapter = run.config.adapter
    plain = replace(adapter, init=AdapterInit.default, rank_pattern=(), alpha_pattern=())
    model: Any = get_peft_model(base, adapter_config(base, plain, run.sampler.num_steps))
    modules = dict(adapted(model))
    look = Look(modules, round(adapter.rho * adapter.settled_rank))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in _batches(run.train_batcher, max(run.settings.micro), base.device):
                run.heart.beat("loading")
                look.mask = batch.get("attention_mask")
                model(**batch, use_cache=False)
    finally:
        look.close()
        model.train(was_training)
    ranks = look.ranks(adapter.settled_rank * len(modules))
    found = Found(ranks=ranks, targets=list(ranks), directions={name: look.directions(name, ranks) for name in ranks})
    model.unload()
    for parameter in base.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    return found


class Look:
    """Principal directions of what every module is given, by one pass over some rows.

    PEFT's own search goes round the rows until no direction moves, which it need not do: of a small model some always
    turn into each other.
    """

    def __init__(self, modules: Mapping[str, nn.Module], most: int) -> None:
        """Look at modules, which are called with tensors (..., features).

        Args:
            modules: by name.
            most: directions of a module, at most.
        """
        self.mask: torch.Tensor | None = None
        """Of the tokens (rows, tokens) of this pass that count; None for all."""
        self._most = most
        self._leaders: dict[str, str] = {}
        self._found: dict[str, IncrementalPCA] = {}
        self._waiting: dict[str, list[torch.Tensor]] = {}
        self._last: tuple[torch.Tensor, str] | None = None
        self._handles = [
            module.register_forward_pre_hook(partial(self._seen, name)) for name, module in modules.items()
        ]

    def close(self) -> None:
        """Look no longer."""
        for handle in self._handles:
            handle.remove()
        self._last = None

    def _seen(self, name: str, _module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        given = args[0]
        if self._last is not None and given is self._last[0]:  # queries, keys and values are given the same
            self._leaders[name] = self._last[1]
            return
        self._last = (given, name)
        self._leaders[name] = name
        tokens = given.reshape(-1, given.shape[-1])
        if self.mask is not None and self.mask.numel() == len(tokens):
            tokens = tokens[self.mask.reshape(-1).bool()]
        waiting = self._waiting.setdefault(name, [])
        waiting.append(tokens.float())
        if sum(map(len, waiting)) >= self._width(given):
            self._fit(name, torch.cat(waiting))
            waiting.clear()

    def _width(self, given: torch.Tensor) -> int:
        return min(self._most, given.shape[-1])

    def _fit(self, name: str, tokens: torch.Tensor) -> None:
        if name not in self._found:
            width = self._width(tokens)
            is_wide = tokens.shape[-1] > _WHOLE_SVD
            self._found[name] = IncrementalPCA(n_components=width, lowrank=is_wide, lowrank_seed=0 if is_wide else None)
        self._found[name].partial_fit(tokens)

    def ranks(self, budget: int) -> dict[str, int]:
        """Share ranks out to where a direction explains most of its module's variance; those without one are left out.

        Raises:
            UserError: too few tokens were seen.
        """
        if not self._leaders or any(leader not in self._found for leader in self._leaders.values()):
            found = f"the first {_ROWS} rows have fewer than {self._most} tokens, as many as a module may get ranks"
            remedy = "Lower adapter.rank or adapter.rho, or use more rows or another adapter.init."
            raise UserError(Problem(where="adapter.init=eva", found=found, remedy=remedy))
        shares = [
            (-float(share), at, name)
            for name, leader in self._leaders.items()
            for at, share in enumerate(self._found[leader].explained_variance_ratio_)
        ]
        counts = Counter(name for _, _, name in sorted(shares)[:budget])
        return {name: counts[name] for name in self._leaders if counts[name]}

    def directions(self, name: str, ranks: Mapping[str, int]) -> torch.Tensor:
        """Return A of a module: (rank, in), in fp32 on the CPU."""
        components: torch.Tensor = self._found[self._leaders[name]].components_
        return components[: ranks[name]].float().cpu().contiguous().clone()


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


def alpha_of(adapter: AdapterConfig, rank: int) -> float:
    """The alpha with which a module of this rank has the scale that `adapter.rank` would have."""
    share = rank / adapter.settled_rank
    return adapter.alpha * (math.sqrt(share) if adapter.rslora else share)


def _kept(folder: Path, key: str) -> Found | None:
    path, directions = folder / RANKS_FILE, kept_or_none(folder, key)
    if directions is None or not path.is_file():
        return None
    ranks = {name: int(rank) for name, rank in json.loads(path.read_text(encoding="utf-8")).items()}
    return Found(ranks=ranks, targets=list(ranks), directions=directions)


def _keep(folder: Path, found: Found, key: str) -> None:
    """Both or none: ranks that lie about without directions of the same key do not count."""
    (folder / RANKS_FILE).unlink(missing_ok=True)
    keep(folder, found.directions, key)
    part = (folder / RANKS_FILE).with_suffix(".part")
    part.write_text(json.dumps(found.ranks, indent=1), encoding="utf-8")
    part.rename(folder / RANKS_FILE)
