"""What every engine under measurement does, and the two that are ours: `ddp` and `streamed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from engines_job import Job
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.live import Named, replicated_base
from orchestrator.engines.streamed import MakeCut, StreamedEngine, cut_of_shares
from orchestrator.train.checkpointing import enable_checkpointing
from orchestrator.train.model import keep_packing
from orchestrator.weights.cut import Tier
from orchestrator.weights.exchange import Team
from orchestrator.weights.layers import decoder_layers
from orchestrator.weights.skeleton import BaseSource

RANK: Final = 16  # of the adapters
RATE: Final = 1e-3
MAX_NORM: Final = 1.0


class Contender(ABC):
    """A model that one of the engines trains on this rank."""

    model: Any  # with adapters, not wrapped
    optimizer: torch.optim.Optimizer
    wrapped: Any  # what a forward pass calls

    def step(self, tokens: torch.Tensor) -> float:
        """Do one optimizer step on rows of shape [rows, tokens]; returns this rank's loss."""
        loss = self.wrapped(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained(self.model), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers."""
        return decoder_layers(self.model)

    @abstractmethod
    def live(self) -> Named:
        """Return the base's tensors that live on this rank now, by term."""

    def told(self) -> dict[str, float]:
        """Return what else the engine has counted."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End threads."""


def ranks() -> tuple[int, int]:
    """How many ranks there are, and which one this is; one alone needs no process group."""
    return (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)


def rows_of(job: Job, vocab: int, step: int) -> torch.Tensor:
    """This rank's rows of a step, [rows, tokens]; the same for every engine."""
    generator = torch.Generator().manual_seed((job.seed * 1000 + step) * 64 + ranks()[1])
    return torch.randint(3, vocab, (job.rows, job.seq_len), generator=generator).to(place_of(job))


def place_of(job: Job) -> torch.device:
    """Where is computed."""
    return torch.device(job.device)


def dtype_of(job: Job) -> torch.dtype:
    """In which type is computed."""
    found: torch.dtype = getattr(torch, job.dtype)
    return found


def source_of(job: Job) -> BaseSource:
    """The base as our loader wants it told."""
    nf4 = quantization(torch.uint8, dtype_of(job))
    return BaseSource(folder=Path(job.base), dtype=dtype_of(job), quantization=nf4, device=place_of(job))


def quantization(storage: torch.dtype, compute: torch.dtype) -> BitsAndBytesConfig:
    """NF4 with double quantisation."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_storage=storage,
    )


def load_whole(job: Job, storage: torch.dtype) -> Any:  # noqa: ANN401 - a transformers model
    """Load the whole base on this rank, packed tensor by tensor, as transformers does it."""
    config = quantization(storage, dtype_of(job))
    extra = {"device_map": {"": 0}} if place_of(job).type == "cuda" else {}
    model = AutoModelForCausalLM.from_pretrained(job.base, dtype=dtype_of(job), quantization_config=config, **extra)
    keep_packing(model)
    return model.requires_grad_(False)  # noqa: FBT003 - torch's own signature


def adapt(base: Any, job: Job, *, reentrant: bool = False) -> Any:  # noqa: ANN401
    """Put the same fp32 adapters on a base, and recompute every layer in the backward pass."""
    torch.manual_seed(job.seed)
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    for parameter in trained(model):
        parameter.data = parameter.data.float()
    settings: Any = SimpleNamespace(checkpointing="full", is_zero3=reentrant, recomputed_layers=None)
    enable_checkpointing(model, settings, rank=RANK)
    return model.train()


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The adapters' parameters."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return the AdamW that all engines use."""
    return torch.optim.AdamW(trained(model), lr=RATE)


def in_ddp(model: nn.Module) -> nn.Module:
    """Average the gradients of what is trained; one rank has nothing to average."""
    if ranks()[0] == 1:
        return model
    return DistributedDataParallel(model, find_unused_parameters=False, broadcast_buffers=False)


class Replicated(Contender):
    """`ddp`: every rank has the whole base."""

    def __init__(self, job: Job) -> None:
        """Load, adapt and wrap."""
        self.model = adapt(load_whole(job, torch.uint8), job)
        DdpEngine().prepare(self.model)
        self.wrapped, self.optimizer = in_ddp(self.model), optimizer_of(self.model)

    def live(self) -> Named:
        """All of the base."""
        named = replicated_base(self.model)
        return {"layers": named["base_packed"] + named["absmax"], "head": named["base_unquantised"]}


class Streamed(Contender):
    """`streamed`: a share and a window, loaded straight into them."""

    def __init__(self, job: Job, make_cut: MakeCut | None = None) -> None:
        """Load, adapt and wrap; without a cut every rank takes its share of each layer."""
        size, rank = ranks()
        cut = make_cut or cut_of_shares([{Tier.device: weight} for weight in job.shares or (1,) * size])
        group, together = (dist.new_group(), dist.new_group()) if size > 1 else (None, None)
        self.engine = StreamedEngine(cut, job.window, device=place_of(job), group=group)
        team = Team(members=tuple(range(size)), me=rank, group=together)
        base, self.loaded = self.engine.load(source_of(job), team, _silent, Path(job.cache) if job.cache else None)
        self.model = adapt(base, job)
        self.engine.prepare(self.model)
        self.wrapped, self.optimizer = in_ddp(self.model), optimizer_of(self.model)

    def live(self) -> Named:
        """Share, window, and what of the base every rank holds."""
        found = self.engine.live_tensors(self.model, self.optimizer)
        return {"share": found["base_shard"], "window": found["window"], "head": found["base_unquantised"]}

    def told(self) -> dict[str, float]:
        """What the store and the loader have counted."""
        stats = self.engine.attached.store.read_stats()
        return {
            "exposed_seconds": stats.wait_seconds,
            "gathered_bytes": stats.gathered_bytes,
            "cached_bytes": self.loaded.cached_bytes,
            "read_bytes": self.loaded.read_bytes,
        }

    def close(self) -> None:
        """End the store's threads."""
        self.engine.close()


def _silent(_: str) -> None:
    pass
