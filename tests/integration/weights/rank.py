"""Groups of ranks, one after the other: `python rank.py FOLDER SIZE=PART,PART...`.

Ranks are forked from one process that has imported everything, which takes longer than most of what they do. What a
rank says of its parts is in FOLDER/SIZE/RANK.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bitsandbytes.autograd._functions import logger
from cases import CASES, LOADED, Case, Work, device
from models import CPU, Group, adapt, batch, held_as, load, models, save, streamed_engine, train
from torch import nn
from transformers import logging

from launch.parent_death import die_with_parent
from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.live import storage_bytes
from orchestrator.engines.streamed import StreamedEngine
from orchestrator.errors import RunFailed, UserError
from orchestrator.weights.cut import Tier
from orchestrator.weights.exchange import Team
from orchestrator.weights.layers import decoder_layers
from orchestrator.weights.skeleton import BaseSource


def bitwise(rank: int, size: int, folder: Path, group: Group) -> list[str]:
    """Every case against plain DDP; what differs."""
    plain: dict[Work, list[Any]] = {}
    told = []
    for case in CASES[size]:
        work = case.work
        if work not in plain:
            plain[work] = train(adapt(load(work, folder), work), DdpEngine(), work, rank, size)
        engine = streamed_engine(case, group, folder)
        model = adapt(load(work, folder), work)
        found = train(model, engine, work, rank, size)
        told += [f"{case}: {fault}" for fault in faults_of_memory(case, engine, model, rank)]
        engine.close()
        if found != plain[work]:
            told.append(f"{case}: {found[:6]} instead of {plain[work][:6]}")
        if len(set(map(str, found))) < len(found) // 2:
            told.append(f"{case}: nothing changes")
    return told


def faults_of_memory(case: Case, engine: StreamedEngine, model: Any, rank: int) -> list[str]:
    """What does not add up: each rank has its share and the window, and nothing of the layers besides."""
    streamed, rank = engine.attached, rank % len(case.shares)
    streamed.check()
    layout, cut = streamed.store.layout, streamed.store.cut
    live = engine.live_bytes(model, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1))
    residents = sum(layout.layer_bytes[layer] for layer in cut.residents)
    wanted = {
        "window": sum(sorted(layout.layer_bytes)[-case.window :]) if len(cut.residents) < layout.num_layers else 0,
        "base_shard": cut.held_bytes(rank, Tier.device) + residents,
    }
    faults = [f"{name}: {live[name]} bytes, {wanted[name]} wanted" for name in wanted if live[name] != wanted[name]]
    frozen = [p.data for layer in streamed.layers for p in layer.parameters() if not p.requires_grad]
    biases = sum(p.nbytes for p in frozen if p.dim() == 1)
    most = live["window"] + residents + biases
    if storage_bytes(frozen) > most:
        faults.append(f"the layers' frozen tensors hold {storage_bytes(frozen)} bytes, {most} at most")
    return faults


def bumps(rank: int, size: int, folder: Path, group: Group) -> list[str]:
    """Adapters added late, passes that fail or stand alone, other windows between steps: all without a trace."""
    told = []
    for adapter in ("lora", "dora"):
        work = Work(adapter=adapter)
        case = Case(work=work, shares=device(*range(1, size + 1)), window=2)
        engine = streamed_engine(case, group, folder)
        base = load(work, folder)
        engine.attach(base)
        found = rough_ride(adapt(base, work, engine), rank, engine)
        if engine.exposed_seconds() <= 0 or engine.exposed_seconds() != 0:
            told.append("waiting is not counted once")
        engine.close()
        wanted = rough_ride(adapt(load(work, folder), work), rank, None)
        if found != wanted:
            told.append(f"{adapter}: {found[:5]} instead of {wanted[:5]}")
    return told


def loaded(rank: int, size: int, folder: Path, group: Group) -> list[str]:
    """Bases that no rank ever held whole."""
    told = []
    team = Team(members=tuple(range(size)), me=rank, group=dist.new_group() if size > 1 else None)
    for work in LOADED:
        engine = streamed_engine(Case(work=work, shares=device(*range(1, size + 1))), group, folder)
        quantization, dtype = held_as(work)
        source = BaseSource(folder=models(folder) / work.model, dtype=dtype, quantization=quantization, device=CPU)
        base, _ = engine.load(source, team, lambda _: None)
        found = train(adapt(base, work, engine), engine, work, rank, size)
        engine.attached.check()
        engine.close()
        wanted = train(adapt(load(work, folder), work), DdpEngine(), work, rank, size)
        if found != wanted:
            told.append(f"{work}: {found[:5]} instead of {wanted[:5]}")
    return told


def rough_ride(model: Any, rank: int, engine: StreamedEngine | None) -> list[float]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    layers = decoder_layers(model)
    told: list[float] = []

    def loss_of(step: int) -> torch.Tensor:
        tokens = batch(step, rank)
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return loss

    def step(at: int) -> None:
        loss = loss_of(at)
        loss.backward()
        told.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()

    step(0)
    with failing(layers[2].register_forward_pre_hook):
        loss_of(1)
    step(2)
    with failing(layers[1].register_full_backward_hook):
        loss_of(3).backward()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        told.append(loss_of(4).item())
    model.train()
    loss_of(5)  # without a backward pass
    for at, window in enumerate((3, 1, 2)):
        if engine is not None:
            engine.set_window(window)
        step(6 + at)
    return [*told, *(parameter.detach().double().square().sum().item() for parameter in trained)]


@contextlib.contextmanager
def failing(register: Callable[[Any], Any]) -> Any:
    class Expected(Exception):
        pass

    def fail(*_: Any) -> None:
        raise Expected

    handle = register(fail)
    try:
        yield
    except Expected:
        handle.remove()
    else:
        raise AssertionError("nothing failed")


def refusals(rank: int, size: int, folder: Path, group: Group) -> list[str]:
    """What users and ranks are told."""
    told = []

    def refused(act: Callable[[], Any], kind: type[UserError] = UserError) -> None:
        try:
            act()
        except kind as error:
            told.append(str(error))
        else:
            told.append("not refused")

    def engine_of(*weights: int, **more: Any) -> StreamedEngine:
        case = Case(work=Work(), shares=device(*weights), **more)
        return streamed_engine(case, group, folder)

    refused(lambda: engine_of(1 + rank, 1).attach(load(Work(), folder)))
    refused(lambda: engine_of(1, 1, 1).attach(load(Work(), folder)))
    refused(lambda: engine_of(1, 1, window=1 + rank).attach(load(Work(), folder)))
    dropping = load(Work(), folder)
    dropping.config.layerdrop = 0.1
    refused(lambda: engine_of(1, 1).attach(dropping))
    cast = load(Work(), folder)
    engine = engine_of(1, 1)
    engine.attach(cast)
    model = adapt(cast, Work())
    tokens = batch(0, rank)
    model(input_ids=tokens)
    for parameter in model.parameters():  # as PEFT's preparation for k-bit training does
        if parameter.dim() == 1 and not parameter.requires_grad:
            parameter.data = parameter.data.float()
    refused(lambda: model(input_ids=tokens), RunFailed)
    return told


def lost_peer(rank: int, size: int, folder: Path, group: Group) -> list[Any]:
    """The last rank goes without a word."""
    own = dist.new_group(backend="gloo", timeout=timedelta(seconds=5))
    engine = streamed_engine(Case(work=Work(), shares=device(*[1] * size)), own, folder)
    model = load(Work(), folder)
    engine.attach(model)
    model.eval()
    tokens = batch(0, rank)
    with torch.no_grad():
        model(input_ids=tokens)
        if rank == size - 1:
            os._exit(0)
        told: list[Any] = []
        begin = time.monotonic()
        for _ in range(2):  # a store that failed once says so at once
            try:
                for _ in range(3):
                    model(input_ids=tokens)
            except RunFailed as error:
                told.append((time.monotonic() - begin, str(error)))
    engine.close()
    return told


PARTS = {"bitwise": bitwise, "bumps": bumps, "loaded": loaded, "refusals": refusals, "lost_peer": lost_peer}


def be_rank(rank: int, size: int, folder: Path, parts: list[str]) -> None:
    own = folder / f"rank{rank}"
    own.mkdir(parents=True)
    group = None
    if size > 1:
        store = dist.FileStore(str(folder / "meet"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    said = {}
    for part in parts:
        said[part] = PARTS[part](rank, size, own, group)
        (folder / f"{rank}.json").write_text(json.dumps(said))
    if size > 1 and "lost_peer" not in parts:
        dist.destroy_process_group()


def forked(work: Callable[[], Any]) -> int:
    """Start a process that does the work; the one that forks must not have computed, or torch's threads are broken."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        die_with_parent()
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, it ends here and not in what the parent was doing
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended_badly(processes: list[int]) -> int:
    return sum(os.waitpid(process, 0)[1] != 0 for process in processes)


def main() -> int:
    die_with_parent()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    logger.disabled = True  # of bitsandbytes: it tells of each cast
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    faults = ended_badly([forked(partial(save, folder / "models"))])
    for words in sys.argv[2:]:
        size, parts = words.split("=")
        works = [partial(be_rank, rank, int(size), folder / size, parts.split(",")) for rank in range(int(size))]
        faults += ended_badly([forked(work) for work in works])
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
