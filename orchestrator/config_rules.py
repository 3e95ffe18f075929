"""Rules between values of the configuration that a type cannot state."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.config import (
    Backend,
    Checkpointing,
    Compress,
    CompressExchange,
    Engine,
    EngineConfig,
    FaultPhase,
    NetworkConfig,
    NetworkKind,
    Offload,
    Optimizer,
    Padding,
    Precision,
    Quant,
    RunConfig,
)
from orchestrator.config_rules_adapter import check_adapter
from orchestrator.config_rules_base import check_base
from orchestrator.config_rules_data import check_data
from orchestrator.config_rules_eval import check_eval
from orchestrator.config_rules_export import check_export
from orchestrator.config_rules_monitor import check_trackers_named
from orchestrator.config_rules_resize import check_resize
from orchestrator.errors import Problem

_LEAST_PERIOD_SECONDS = 0.05
_ALLOCATOR = re.compile(r"\w+:[^,:]+(,\w+:[^,:]+)*")


def check_rules(config: RunConfig) -> Iterator[Problem]:
    """Yield one problem for each rule that the configuration breaks."""
    yield from _check_ranges(config)
    yield from _check_limits(config)
    yield from _check_combinations(config)
    yield from check_eval(config.eval)
    yield from check_export(config.export)
    yield from check_data(config)
    yield from check_adapter(config)
    yield from check_base(config)
    yield from check_trackers_named(config.monitor)


def _check_ranges(config: RunConfig) -> Iterator[Problem]:
    least_one: dict[str, float] = {
        "batch.global": config.batch.global_,
        "checkpointing_layers": 1 if config.checkpointing_layers is None else config.checkpointing_layers,
        "batch.micro": 1 if config.batch.micro is None else config.batch.micro,
        "data.seq_len": 8 if config.data.seq_len is None else config.data.seq_len,
        "nodes": config.nodes,
        "network.oversubscription": config.network.oversubscription,
        "checkpoint.keep": config.checkpoint.keep,
        "faults.factor": config.faults.factor,
        "launch.probe_seconds": config.launch.probe_seconds,
        "recovery.min_ranks": config.recovery.min_ranks,
    }
    not_negative: dict[str, float] = {
        "devices": config.devices,
        "data.max_rows": config.data.max_rows,
        "data.max_eval_rows": config.data.max_eval_rows,
        "batch.max_steps": config.batch.max_steps,
        "checkpoint.every": config.checkpoint.every or 0,
        "compress.max_warmup_steps": config.compress.max_warmup_steps,
        "eval.every": config.eval.every,
        "faults.step": config.faults.step,
        "faults.rank": config.faults.rank or 0,
        "faults.every": config.faults.every,
        "faults.attempt": config.faults.attempt,
        "faults.seconds": config.faults.seconds,
        "optimizer.weight_decay": config.optimizer.weight_decay,
        "optimizer.max_grad_norm": config.optimizer.max_grad_norm,
        "recovery.restarts": config.recovery.restarts,
        "recovery.backoff_seconds": config.recovery.backoff_seconds,
        "seed": config.seed,
        "topology.matrix": config.topology.matrix,
        "network.port_gbit": config.network.port_gbit,
        "network.hosts_per_leaf": config.network.hosts_per_leaf,
        "network.rails": config.network.rails,
    }
    positive = {
        "checkpoint.mtbf_hours": 1.0 if config.checkpoint.mtbf_hours is None else config.checkpoint.mtbf_hours,
        "checkpoint.max_lost_minutes": config.checkpoint.max_lost_minutes,
        "optimizer.lr": config.optimizer.lr,
        "optimizer.eps": config.optimizer.eps,
        "batch.epochs": config.batch.epochs,
        "adapter.alpha": config.adapter.alpha,
        "recovery.hang_factor": config.recovery.hang_factor,
        "monitor.every_seconds": config.monitor.every_seconds,
        "faults.limit_seconds": 1.0 if config.faults.limit_seconds is None else config.faults.limit_seconds,
    }
    fractions = {
        "data.eval_fraction": config.data.eval_fraction,
        "adapter.dropout": config.adapter.dropout,
        "optimizer.warmup_fraction": config.optimizer.warmup_fraction,
        "compress.warmup_fraction": config.compress.warmup_fraction,
        "compress.refresh": config.compress.refresh,
        "optimizer.beta1": config.optimizer.beta1,
        "optimizer.beta2": config.optimizer.beta2,
    }
    for where, count in least_one.items():
        if count < 1:
            yield _out_of_range(where, count, "Give a whole number of at least 1.")
    for where, value in not_negative.items():
        if value < 0:
            yield _out_of_range(where, value, "Give 0 or more.")
    for where, value in positive.items():
        if not value > 0:
            yield _out_of_range(where, value, "Give a number above 0.")
    for where, value in fractions.items():
        if not 0 <= value < 1:
            yield _out_of_range(where, value, "Give a number from 0 up to, not including, 1.")
    if not 2 / 4096 <= config.compress.density <= 1:
        remedy = "Give a number from 2/4096 (0.00049), two elements of each chunk of 4,096, to 1."
        yield _out_of_range("compress.density", config.compress.density, remedy)


def _out_of_range(where: str, value: float, remedy: str) -> Problem:
    return Problem(where=where, found=f"found {value}", remedy=remedy)


def _check_limits(config: RunConfig) -> Iterator[Problem]:
    if 0 < config.monitor.every_seconds < _LEAST_PERIOD_SECONDS:
        yield _out_of_range(
            "monitor.every_seconds", config.monitor.every_seconds, f"Give at least {_LEAST_PERIOD_SECONDS}."
        )
    if config.faults.step == 0 and config.faults.phase is FaultPhase.training:
        yield _out_of_range("faults.step", 0, "Give at least 1: training begins with step 1.")
    at_most = {
        "batch.global": (config.batch.global_, 65_536),
        "seed": (config.seed, 2**32 - 1),
        "launch.master_port": (config.launch.master_port, 65_535),
        "monitor.prometheus_port": (config.monitor.prometheus_port, 65_535),
        "monitor.every_seconds": (config.monitor.every_seconds, 3600),
        "nodes": (config.nodes, 100_000),
        "devices": (config.devices, 100_000),
    }
    for where, (value, limit) in at_most.items():
        if value > limit:
            yield _out_of_range(where, value, f"Give at most {limit}.")
    engine = config.engine
    elements = {
        "engine.param_persistence_threshold": engine.param_persistence_threshold,
        "engine.prefetch_bucket_size": engine.prefetch_bucket_size,
        "engine.max_live_parameters": engine.max_live_parameters,
        "engine.max_reuse_distance": engine.max_reuse_distance,
        "engine.reduce_bucket_size": engine.reduce_bucket_size,
        "launch.master_port": config.launch.master_port,
        "monitor.prometheus_port": config.monitor.prometheus_port,
    }
    for where, number in elements.items():
        if number is not None and number < 0:
            yield _out_of_range(where, number, "Give 0 or more.")
    if config.allocator and not _ALLOCATOR.fullmatch(config.allocator):
        yield Problem(
            where="allocator",
            found=f"found {config.allocator!r}",
            remedy="Give settings of PYTORCH_ALLOC_CONF: name:value, separated by commas.",
        )


def _check_network(config: RunConfig) -> Iterator[Problem]:
    network, default = config.network, NetworkConfig()
    names = ("port_gbit", "hosts_per_leaf", "oversubscription", "rails")
    told = [f"network.{name}" for name in names if getattr(network, name) != getattr(default, name)]
    if network.kind is NetworkKind.auto and told:
        yield Problem(
            where=", ".join(told),
            found="network=auto takes the network as the topology describes it, so this has no effect",
            remedy="Say how hosts are joined as well: network=flat, rail or leaf_spine.",
        )


def _check_combinations(config: RunConfig) -> Iterator[Problem]:
    if config.batch.micro is not None and config.batch.micro > config.batch.global_:
        yield Problem(
            where="batch.micro",
            found=f"found {config.batch.micro} rows, more than batch.global={config.batch.global_}",
            remedy="Lower batch.micro or raise batch.global.",
        )
    if config.launch.backend is Backend.local and config.devices > 1:
        yield Problem(
            where="launch",
            found=f"launch=local starts one rank, devices={config.devices} asks for more",
            remedy="Use launch=torchrun or devices=1.",
        )
    yield from _check_network(config)
    if config.data.packing and config.data.group_by_length:
        yield Problem(
            where="data.group_by_length",
            found="packing already evens out the lengths",
            remedy="Set one of data.packing and data.group_by_length.",
        )
    if config.data.packing and config.data.padding is Padding.static:
        yield Problem(
            where="data.padding",
            found="packed rows already fill the block",
            remedy="Set one of data.packing=true and data.padding=static.",
        )
    if config.checkpointing_layers is not None and config.checkpointing is Checkpointing.none:
        yield Problem(
            where="checkpointing_layers",
            found=f"found {config.checkpointing_layers}, but checkpointing=none recomputes no layer",
            remedy="Use checkpointing=full, selective or auto, or leave checkpointing_layers on auto.",
        )
    yield from _check_compress(config)
    yield from check_resize(config)
    yield from _check_zero3(config)
    yield from _check_streamed(config)


def _check_compress(config: RunConfig) -> Iterator[Problem]:
    if config.compress.name is not Compress.topk:
        return
    if config.devices == 1 or config.launch.backend is Backend.local:
        yield Problem(
            where="compress",
            found="compress=topk with one rank, which sends no gradients",
            remedy="Use compress=none, or more than one rank.",
        )
    if config.compress.exchange is CompressExchange.gather and config.compress.density >= 1:
        yield Problem(
            where="compress.exchange",
            found="compress.exchange=gather with compress.density=1 sends every gradient to every rank",
            remedy="Use compress.exchange=split, or a lower density.",
        )


def _check_zero3(config: RunConfig) -> Iterator[Problem]:
    if config.engine.name is not Engine.zero3:
        return
    nvme = Offload.nvme in (config.engine.offload_param, config.engine.offload_optimizer)
    if nvme and not config.engine.nvme_path:
        yield Problem(
            where="engine.nvme_path",
            found="offload to NVMe asked for, but no folder given",
            remedy="Set engine.nvme_path to a folder on the fast disk.",
        )
    if config.base.quant is Quant.int8:
        yield Problem(
            where="base.quant",
            found="int8 weights lose their scales when ZeRO-3 partitions them",
            remedy="Use base.quant=nf4 with engine=zero3, or engine=ddp.",
        )
    if config.optimizer.name not in {Optimizer.adamw, Optimizer.auto}:
        yield Problem(
            where="optimizer",
            found=f"found {config.optimizer.name.value} with engine=zero3",
            remedy="ZeRO-3 flattens the adapters into one tensor that 8-bit optimizers cannot "
            "save block by block: use optimizer=adamw (its states are small) or engine=ddp.",
        )
    if config.precision is Precision.fp16 and config.engine.offload_optimizer is Offload.nvme:
        yield Problem(
            where="precision",
            found="fp16 with an optimizer on NVMe",
            remedy="Use engine.offload_optimizer=cpu.",
        )


def _check_streamed(config: RunConfig) -> Iterator[Problem]:
    engine, ranks = config.engine, config.devices
    for where, count in (("window", engine.window), ("island", engine.island), ("chunk_mib", engine.chunk_mib)):
        if count is not None and count < 1:
            yield _out_of_range(f"engine.{where}", count, "Give a whole number of at least 1.")
    if engine.host_share is not None and not 0 <= engine.host_share <= 1:
        yield _out_of_range("engine.host_share", engine.host_share, "Give a number from 0 to 1.")
    if any(share < 0 for share in engine.shards) or (engine.shards and not any(engine.shards)):
        found = f"found {list(engine.shards)}"
        yield Problem(where="engine.shards", found=found, remedy="Give weights of 0 or more, not all of them 0.")
    for key, numbers in (("budgets_gib", engine.budgets_gib), ("speeds", engine.speeds)):
        if any(number <= 0 for number in numbers):
            found, remedy = f"found {list(numbers)}", "Give a number above 0 for each rank."
            yield Problem(where=f"engine.{key}", found=found, remedy=remedy)
    if engine.name in {Engine.ddp, Engine.zero3}:
        asked = {"shards": engine.shards, "window": engine.window, "host_share": engine.host_share}
        asked["island"] = engine.island
        for key, value in asked.items():
            if value not in (None, ()):
                found = f"engine={engine.name.value} cuts no layers"
                yield Problem(where=f"engine.{key}", found=found, remedy=f"Use engine=streamed, or engine.{key}=auto.")
    yield from _check_lists(engine, ranks)


def _check_lists(engine: EngineConfig, ranks: int) -> Iterator[Problem]:
    """Numbers for each rank must be as many as there are ranks, where their number is told."""
    lists = {"shards": engine.shards, "budgets_gib": engine.budgets_gib, "speeds": engine.speeds}
    for key, given in lists.items():
        if given and ranks and len(given) != ranks:
            found = f"{len(given)} numbers for devices={ranks}"
            yield Problem(where=f"engine.{key}", found=found, remedy="Give one for each rank.")
    sizes = {key: len(given) for key, given in lists.items() if given}
    if len(set(sizes.values())) > 1:
        where = ", ".join(f"engine.{key}" for key in sizes)
        found = " and ".join(f"{count} numbers in {key}" for key, count in sizes.items())
        yield Problem(where=where, found=found, remedy="Give one for each rank in all of them.")
    yield from _check_island(engine, ranks or max(map(len, lists.values())))


def _check_island(engine: EngineConfig, ranks: int) -> Iterator[Problem]:
    """An island must divide the ranks, where their number is told, and hold something of the layers."""
    size = engine.island
    if size is None or size < 1:
        return
    if ranks and ranks % size:
        yield Problem(
            where="engine.island",
            found=f"{ranks} ranks cannot be cut into islands of {size}",
            remedy="Give a divisor of the number of ranks, or auto.",
        )
        return
    parts = [engine.shards[at : at + size] for at in range(0, len(engine.shards), size)]
    if any(engine.shards) and not all(map(any, parts)):
        found = f"an island of {size} ranks holds nothing in {list(engine.shards)}"
        yield Problem(where="engine.shards", found=found, remedy="Give each island a weight above 0.")
