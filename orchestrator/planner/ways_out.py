"""What to change when nothing fits: each change is planned for, and the cheapest three are told.

Ordered by the time per token they allow, where each step away from what the user asked for weighs as 10% of it:
leaving a setting open weighs nothing, other quantisation or optimizer one step, a smaller adapter two, shorter rows
three, other hardware thirty (it costs money). Where fewer than three changes are enough by themselves, two at once are
tried; a smaller base comes last, since it is not what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from orchestrator.config import AdapterConfig, Checkpointing, Engine, EngineConfig, Offload, Optimizer, Quant, RunConfig
from orchestrator.errors import Problem
from orchestrator.planner.changes import Change, WayOut, first_that_fits, single, with_config
from orchestrator.planner.solve import Asked
from orchestrator.planner.variants import sequence_length
from orchestrator.planner.ways_hardware import HARDWARE_STEPS, WHOLE_COPY, hardware
from topology.model import Topology
from topology.units import format_bytes, format_seconds

# What the order means, for the user.
TOLD = 3
ORDER = (
    "cheapest first: by time per token, to which a changed setting adds 10%, a smaller adapter 20%, shorter rows 30%, "
    "other hardware 300%"
)
_SHORTEST_ROWS = 128
_SMALLEST_RANK = 4
_FEWER_TARGETS = ("q_proj", "v_proj")
_MOST_HOSTS = 2
_SMALLER_BASES = (0.75, 0.5, 0.25, 0.125)


def ways_out(asked: Asked) -> tuple[Problem, ...]:
    """Tell the cheapest changes with which something fits: three, where there are as many."""
    small = replace(asked, topology=_trimmed(asked.topology), config=_fewer_hosts(asked.config))
    found = _distinct([], map(first_that_fits, _changes(small)))
    if len(found) < TOLD:
        found = _distinct(found, map(first_that_fits, _pairs(small)))
    if len(found) < TOLD:
        found = _distinct(found, map(first_that_fits, _pairs_with_hardware(small)), enough=TOLD)
    found.sort(key=lambda out: out.weight)
    if len(found) < TOLD:
        found = _distinct(found, map(first_that_fits, _smaller_base(small)))
    return tuple(_told(number, out) for number, out in enumerate(found[:TOLD], 1))


def _distinct(found: Sequence[WayOut], more: Iterable[WayOut | None], enough: int = 0) -> list[WayOut]:
    """Join what fits; the same strategy on the same devices is told once. Stops early at `enough` of them."""
    kept = {(out.choice.strategy.label, out.limit_bytes, _kind(out)): out for out in found}
    for out in more:
        # What is enough by itself needs nothing more.
        if out is not None and not any(out.text.startswith(f"{other.text} with ") for other in kept.values()):
            kept.setdefault((out.choice.strategy.label, out.limit_bytes, _kind(out)), out)
        if 0 < enough <= len(kept):
            break
    return list(kept.values())


def _kind(out: WayOut) -> str:
    """What is changed: larger cards, some or one, for whatever reason, are one kind."""
    return "cards" if out.text.startswith(("cards of", "one card of")) else out.text


def _told(number: int, out: WayOut) -> Problem:
    estimate = out.choice.estimate
    device, host = format_bytes(estimate.memory.device_bytes), format_bytes(estimate.memory.host_bytes)
    step, rate = format_seconds(estimate.step_seconds), f"{estimate.tokens_per_second:,.0f}"
    limit = format_bytes(out.limit_bytes)
    memory = f"{device} of {limit} a device and {host} of host memory a rank"
    if not out.is_gpu:
        memory = f"{host} of the {limit} of host memory a rank has then"
    return Problem(
        where=f"way out {number}",
        found=f"{out.text} would do: {out.choice.strategy.label}, {memory}",
        remedy=f"A step takes about {step}, {rate} tokens/s.",
    )


def _changes(asked: Asked) -> Iterator[Change]:
    yield from _opened(asked)
    yield from _cheaper(asked)
    yield from _smaller(asked)
    yield from hardware(asked)


def small_changes(asked: Asked) -> Iterator[Change]:
    """Changes of settings that leave rows and targets as they are: other optimizer, smaller adapter."""
    yield from _cheaper(asked)
    yield _smaller_rank(asked)


def _opened(asked: Asked) -> Iterator[Change]:
    """Settings that the user fixed, left to the planner."""
    config = asked.config
    engine = config.engine
    if config.batch.micro is not None:
        yield single("batch.micro=auto", 0, partial(with_config, asked, batch=replace(config.batch, micro=None)))
    keys = [("checkpointing", config.checkpointing is not Checkpointing.auto)]
    keys.append(("checkpointing_layers", config.checkpointing_layers is not None))
    text = " ".join(f"{key}=auto" for key, is_fixed in keys if is_fixed)
    if text:
        build = partial(with_config, asked, checkpointing=Checkpointing.auto, checkpointing_layers=None)
        yield single(text, 0, build)
    if engine.name is not Engine.auto:
        yield single("engine=auto", 0, partial(with_config, asked, engine=replace(engine, name=Engine.auto)))
    fixed = {Offload.auto} != {engine.offload_param, engine.offload_optimizer}
    if fixed and engine.name is not Engine.ddp:
        opened: EngineConfig = replace(engine, offload_param=Offload.auto, offload_optimizer=Offload.auto)
        text = "engine.offload_param=auto engine.offload_optimizer=auto"
        yield single(text, 0, partial(with_config, asked, engine=opened))
    cut = {"window": None, "shards": (), "host_share": None, "island": None}
    told = [key for key, default in cut.items() if getattr(engine, key) != default]
    if told and engine.name in {Engine.auto, Engine.streamed}:
        text = " ".join(f"engine.{key}=auto" for key in told)
        free: EngineConfig = replace(engine, **cut)  # type: ignore[arg-type]
        yield single(text, 0, partial(with_config, asked, engine=free))
    if config.devices:
        yield single("devices=0", 0, partial(with_config, asked, devices=0))


def _cheaper(asked: Asked) -> Iterator[Change]:
    """Other storage for the same training."""
    config, engine = asked.config, asked.config.engine
    if config.base.quant in {Quant.int8, Quant.none}:
        base = replace(config.base, quant=Quant.nf4, double_quant=True)
        yield single("base.quant=nf4", 1, partial(with_config, asked, base=base))
    elif not config.base.double_quant:
        double = replace(config.base, double_quant=True)
        yield single("base.double_quant=true", 1, partial(with_config, asked, base=double))
    if config.optimizer.name is Optimizer.adamw:
        named = replace(config.optimizer, name=Optimizer.paged_adamw_8bit)
        yield single("optimizer=paged_adamw_8bit", 1, partial(with_config, asked, optimizer=named))
    if not engine.nvme_path and engine.name is not Engine.ddp:
        fast = replace(engine, nvme_path="FOLDER")
        text = "engine.nvme_path=FOLDER on a fast disk"
        yield single(text, 1, partial(with_config, asked, engine=fast))
    if config.data.packing:
        apart = replace(config.data, packing=False)
        yield single("data.packing=false", 1, partial(with_config, asked, data=apart))


def _smaller(asked: Asked) -> Iterator[Change]:
    """Less of what was asked for: rank, targets, length of the rows."""
    yield _smaller_rank(asked)
    if asked.config.adapter.targets != _FEWER_TARGETS:
        yield _fewer_targets(asked)
    yield _shorter_rows(asked)


def _smaller_rank(asked: Asked) -> Change:
    ranks = _halves(asked.config.adapter.settled_rank, _SMALLEST_RANK)
    tries = tuple((str(rank), partial(_ranked, asked, rank)) for rank in ranks)
    return Change(text="adapter.rank={}", steps=2, tries=tries)


def _fewer_targets(asked: Asked) -> Change:
    fewer: AdapterConfig = replace(asked.config.adapter, targets=_FEWER_TARGETS)
    return single(f"adapter.targets={','.join(_FEWER_TARGETS)}", 2, partial(with_config, asked, adapter=fewer))


def _shorter_rows(asked: Asked) -> Change:
    tries = tuple((str(length), partial(_cut, asked, length)) for length in _lengths(asked))
    return Change(text="data.seq_len={}", steps=3, tries=tries)


def _firsts(asked: Asked) -> Iterator[Change]:
    """Settings that are tried together with another change, each at its smallest."""
    yield from _opened(asked)
    yield from _cheaper(asked)
    for change in (_smaller_rank(asked), _fewer_targets(asked)):
        if change.tries:
            yield replace(change, tries=change.tries[-1:])


def _pairs(asked: Asked) -> Iterator[Change]:
    """Two settings at once: one at its smallest, and then shorter rows or a smaller adapter."""
    for first in _firsts(asked):
        value, build = first.tries[0]
        small = build()
        for second in (_smaller_rank(small), _shorter_rows(small)):
            # The smallest adapter is a first one already.
            if not (second.text.startswith("adapter") and first.text.startswith("adapter")):
                yield _both(first, value, second)


def _pairs_with_hardware(asked: Asked) -> Iterator[Change]:
    """Other hardware, and a setting at its smallest."""
    for first in chain(_firsts(asked), [_last(_shorter_rows(asked))]):
        if first.tries:
            value, build = first.tries[0]
            for second in hardware(build()):
                if not second.text.endswith(WHOLE_COPY):  # the same cards under another heading
                    yield _both(first, value, second)


def _last(change: Change) -> Change:
    return replace(change, tries=change.tries[-1:])


def _both(first: Change, value: str, second: Change) -> Change:
    text = f"{second.text} with {first.text.format(value)}"
    return Change(text=text, steps=first.steps + second.steps, tries=second.tries)


def _smaller_base(asked: Asked) -> Iterator[Change]:
    """A base of the same width with fewer layers, where all layers are alike."""
    model = asked.model
    if not model.is_uniform:
        return
    tries = []
    for share in _SMALLER_BASES:
        layers = max(1, round(model.layers * share))
        smaller = replace(
            model,
            layers=layers,
            norm_params=round(model.norm_params * share),
            bias_params=round(model.bias_params * share),
            expert_params=round(model.expert_params * share),
            expert_linear_params=round(model.expert_linear_params * share),
            other_params=round(model.other_params * share),
            windowed_layers=min(layers, model.windowed_layers),
            groups=(),
            outside=(),
        )
        tries.append((f"{smaller.total_params / 1e9:.3g} billion", partial(replace, asked, model=smaller)))
    yield Change(text="a base of {} parameters (this one with fewer layers)", steps=HARDWARE_STEPS, tries=tuple(tries))


def _ranked(asked: Asked, rank: int) -> Asked:
    return with_config(asked, adapter=replace(asked.config.adapter, rank=rank))


def _cut(asked: Asked, length: int) -> Asked:
    return with_config(asked, data=replace(asked.config.data, seq_len=length))


def _lengths(asked: Asked) -> tuple[int, ...]:
    longest = min(sequence_length(asked.config, asked.model), max(_SHORTEST_ROWS, asked.data.max_tokens))
    return tuple(length // 8 * 8 for length in _halves(longest, _SHORTEST_ROWS))


def _halves(value: int, least: int) -> tuple[int, ...]:
    found = []
    while (value := value // 2) >= least:
        found.append(value)
    return tuple(found)


def _trimmed(topology: Topology) -> Topology:
    """The first hosts alone: a thousand more of them change nothing about what a rank needs."""
    if len(topology.hosts) <= _MOST_HOSTS:
        return topology
    hosts = topology.hosts[:_MOST_HOSTS]
    names, own = {host.name for host in hosts}, {device.id for host in hosts for device in host.devices}
    switches = tuple(switch for switch in topology.switches if switch.host is None or switch.host in names)
    ends = own | {nic.id for host in hosts for nic in host.nics} | {switch.id for switch in switches}
    return replace(
        topology,
        hosts=hosts,
        links=tuple(link for link in topology.links if {link.a, link.b} <= ends),
        pairs=tuple(pair for pair in topology.pairs if pair.a in own),
        switches=switches,
    )


def _fewer_hosts(config: RunConfig) -> RunConfig:
    return replace(config, nodes=min(config.nodes, _MOST_HOSTS))
