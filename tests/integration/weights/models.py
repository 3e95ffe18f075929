"""How the tests load, adapt and train a model, replicated or streamed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from cases import ADAPTERS, CONFIGS, LENGTH, QUANTS, STEPS, VOCABULARY, Case, Work
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from orchestrator.collectives.execute import Executor
from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.streamed import StreamedEngine, cut_of_shares
from orchestrator.train.checkpointing import enable_checkpointing
from orchestrator.train.model import keep_packing
from orchestrator.weights.gather import Routed
from orchestrator.weights.slots import Pace
from orchestrator.weights.stream import measure_magnitudes
from topology.collectives import Chunk, Collective
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind
from topology.schedule import Schedule, Send

CPU = torch.device("cpu")
Group = dist.ProcessGroup | None


def save(folder: Path) -> None:
    """Models of all families with random weights, on disk."""
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms of ones and biases of zeros would all look alike
                nn.init.normal_(parameter, mean=1.0, std=0.2)
        model.save_pretrained(folder / name)


def models(folder: Path) -> Path:
    return folder.parents[1] / "models"


def held_as(work: Work) -> tuple[BitsAndBytesConfig | None, torch.dtype]:
    if work.quant == "none":
        return None, torch.float32
    return BitsAndBytesConfig(**QUANTS[work.quant], bnb_4bit_compute_dtype=torch.float32), torch.bfloat16


def load(work: Work, folder: Path) -> Any:
    quantization, dtype = held_as(work)
    extra = {} if quantization is None else {"quantization_config": quantization}
    model = AutoModelForCausalLM.from_pretrained(models(folder) / work.model, dtype=dtype, **extra)
    keep_packing(model)
    return model.requires_grad_(False)


def adapt(base: Any, work: Work, engine: StreamedEngine | None = None) -> Any:
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **ADAPTERS[work.adapter])
    model = get_peft_model(base, config)
    if engine is not None:
        engine.attached.visit(measure_magnitudes)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            if "lora_B" in name:  # not zero, so that A trains from the first step on
                nn.init.normal_(parameter, std=0.05)
    settings: Any = SimpleNamespace(
        checkpointing=work.checkpointing, is_zero3=work.reentrant, recomputed_layers=work.recomputed_layers
    )
    enable_checkpointing(model, settings, rank=4)
    return model


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)


def train(model: Any, engine: DdpEngine, work: Work, rank: int, size: int) -> list[Any]:
    """Losses, what evaluation and generation gave in the middle, and the adapters, all of them exactly."""
    engine.prepare(model)
    wrapped = DistributedDataParallel(model, **engine_arguments()) if size > 1 else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    told: list[Any] = []
    for step in range(STEPS):
        model.train()
        for part in range(work.accumulation):
            tokens = batch(step * work.accumulation + part, rank)
            loss = wrapped(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            told.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if step == 0 and work.in_the_middle:
            told.append(look(model, rank, size))
    told += [parameter.detach().double().sum().item() for parameter in trained]
    told += [parameter.detach().double().square().sum().item() for parameter in trained]
    return told


def engine_arguments() -> dict[str, Any]:
    return {"find_unused_parameters": False, "broadcast_buffers": False}


def look(model: Any, rank: int, size: int) -> list[Any]:
    """Evaluate, then generate different numbers of tokens on the ranks."""
    model.eval()
    tokens = batch(99, rank)
    with torch.no_grad():
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss.item()
        lengths = {"max_new_tokens": 2 + 2 * rank, "min_new_tokens": 1}
        # Every rank decodes until the last one is done, with the replicated base, too: it makes no difference.
        made = model.generate(input_ids=tokens[:, :5], do_sample=False, **lengths)
    model.train()
    return [loss, made.tolist()]


def streamed_engine(case: Case, group: Group, folder: Path) -> StreamedEngine:
    def cut(layout: Any) -> Any:
        return cut_of_shares(case.shares, int(case.residents * layout.total_bytes))(layout)

    if case.island:
        ranks = range(dist.get_world_size())
        islands = [dist.new_group(ranks[at : at + case.island]) for at in ranks[:: case.island]]
        group = islands[dist.get_rank() // case.island]
    pace = Pace(chunk_bytes=case.chunk_bytes)
    gather = Routed(Executor(ring(len(case.shares)), dist.new_group())) if case.is_routed else None
    nvme = folder / "nvme"
    return StreamedEngine(cut, case.window, device=CPU, group=group, gather=gather, pace=pace, nvme_folder=nvme)


def ring(size: int) -> Schedule:
    """Each block goes round."""
    nodes = tuple(Node(id=f"d{rank}", kind=NodeKind.device) for rank in range(size))
    edges = tuple(Edge(tail=a, head=(a + 1) % size, units=1000, link=LinkClass.memory) for a in range(size))
    chunks = tuple(Chunk(origin=a, target=None, share=Fraction(1, size)) for a in range(size))
    sends = tuple(
        Send(step=hop, source=at, target=(at + 1) % size, chunk=chunk, path=(at,), add=False)
        for hop in range(size - 1)
        for chunk in range(size)
        for at in [(chunk + hop) % size]
    )
    graph = Graph(nodes=nodes, edges=edges, size=size)
    return Schedule(algorithm="ring", collective=Collective.all_gather, graph=graph, chunks=chunks, sends=sends)
