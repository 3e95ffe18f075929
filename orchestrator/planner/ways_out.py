"""What to change when nothing fits: each change is planned for, and the cheapest three are told.

Ordered by the time per token they allow, where each step away from what the user asked for weighs as 10% of it:
leaving a setting open weighs nothing, other quantisation or optimizer one step, a smaller adapter two, shorter rows
three, other hardware twelve (it costs money).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.config import (
    AdapterConfig,
    Checkpointing,
    Engine,
    EngineConfig,
    Offload,
    Optimizer,
    Quant,
    RunConfig,
)
from orchestrator.errors import Problem, UserError
from orchestrator.planner.plan import Choice
from orchestrator.planner.solve import Asked, sequence_length, solve
from topology.model import Device, DeviceKind, Host, Pair, Topology
from topology.units import GIB, format_bytes, format_seconds

_TOLD = 3
_STEP_WEIGHT = 0.1
_HARDWARE_STEPS = 12
_SHORTEST_ROWS = 128
_SMALLEST_RANK = 4
_FEWER_TARGETS = ("q_proj", "v_proj")
_CARD_SIZES_GIB = (12, 16, 24, 32, 40, 48, 80, 96, 141, 192, 288)
_MORE_CARDS = (1, 3, 7)
_MOST_HOSTS = 2
_HOST_GROWTH = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of what was asked for.

    Attributes:
        text: what to change, as the user would type it where it is a setting.
        steps: how far it is from what was asked for.
        tries: from the mildest on; the first one that fits counts, with what is to be put into `text`.
    """

    text: str
    steps: int
    tries: tuple[tuple[str, Callable[[], Asked]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """A change that fits: what it is called, and the best strategy with it."""

    text: str
    weight: float
    choice: Choice
    limit_bytes: int


def ways_out(asked: Asked) -> tuple[Problem, ...]:
    """Tell the cheapest changes with which something fits."""
    small = replace(asked, topology=_trimmed(asked.topology), config=_fewer_hosts(asked.config))
    found = [out for out in map(first_that_fits, _changes(small)) if out is not None]
    if not found:
        found = [out for out in map(first_that_fits, _pairs(small)) if out is not None]
    found.sort(key=lambda out: out.weight)
    return tuple(_told(number, out) for number, out in enumerate(found[:_TOLD], 1))


def _told(number: int, out: WayOut) -> Problem:
    estimate = out.choice.estimate
    device, host = format_bytes(estimate.memory.device_bytes), format_bytes(estimate.memory.host_bytes)
    step, rate = format_seconds(estimate.step_seconds), f"{estimate.tokens_per_second:,.0f}"
    return Problem(
        where=f"way out {number}",
        found=f"{out.text} would do: {out.choice.strategy.label}, {device} of {format_bytes(out.limit_bytes)} a device "
        f"and {host} of host memory a rank",
        remedy=f"A step takes about {step}, {rate} tokens/s.",
    )


def first_that_fits(change: Change) -> WayOut | None:
    """Plan for each try of a change, from the mildest on; None where none fits."""
    for value, build in change.tries:
        asked = build()
        try:
            found = solve(asked).found
        except UserError:
            continue  # no such modules, or not for this machine: not a way out
        if found.best is not None:
            choice = found.ranked[0]
            return WayOut(
                text=change.text.format(value),
                weight=(1 + _STEP_WEIGHT * change.steps) / choice.estimate.tokens_per_second,
                choice=choice,
                limit_bytes=min(ranks.machine.memory_bytes for ranks in found.best.place.classes),
            )
    return None


def _changes(asked: Asked) -> Iterator[Change]:
    yield from _opened(asked)
    yield from _cheaper(asked)
    yield from _smaller(asked)
    yield from _hardware(asked)


def small_changes(asked: Asked) -> Iterator[Change]:
    """Changes of settings that leave rows and targets as they are: other optimizer, smaller adapter."""
    yield from _cheaper(asked)
    yield _smaller_rank(asked)


def _with(asked: Asked, **changes: object) -> Asked:
    return replace(asked, config=replace(asked.config, **changes))  # type: ignore[arg-type]


def _opened(asked: Asked) -> Iterator[Change]:
    """Settings that the user fixed, left to the planner."""
    config = asked.config
    engine = config.engine
    if config.batch.micro is not None:
        yield _single("batch.micro=auto", 0, partial(_with, asked, batch=replace(config.batch, micro=None)))
    if config.checkpointing is not Checkpointing.auto:
        yield _single("checkpointing=auto", 0, partial(_with, asked, checkpointing=Checkpointing.auto))
    if engine.name is not Engine.auto:
        yield _single("engine=auto", 0, partial(_with, asked, engine=replace(engine, name=Engine.auto)))
    fixed = {Offload.auto} != {engine.offload_param, engine.offload_optimizer}
    if fixed and engine.name is not Engine.ddp:
        opened: EngineConfig = replace(engine, offload_param=Offload.auto, offload_optimizer=Offload.auto)
        yield _single(
            "engine.offload_param=auto engine.offload_optimizer=auto", 0, partial(_with, asked, engine=opened)
        )
    if config.devices:
        yield _single("devices=0", 0, partial(_with, asked, devices=0))


def _cheaper(asked: Asked) -> Iterator[Change]:
    config = asked.config
    if config.base.quant in {Quant.int8, Quant.none}:
        base = replace(config.base, quant=Quant.nf4, double_quant=True)
        yield _single("base.quant=nf4", 1, partial(_with, asked, base=base))
    elif not config.base.double_quant:
        yield _single("base.double_quant=true", 1, partial(_with, asked, base=replace(config.base, double_quant=True)))
    if config.optimizer.name is Optimizer.adamw:
        named = replace(config.optimizer, name=Optimizer.paged_adamw_8bit)
        yield _single("optimizer=paged_adamw_8bit", 1, partial(_with, asked, optimizer=named))


def _smaller(asked: Asked) -> Iterator[Change]:
    """Less of what was asked for: rank, targets, length of the rows."""
    yield _smaller_rank(asked)
    fewer: AdapterConfig = replace(asked.config.adapter, targets=_FEWER_TARGETS)
    if asked.config.adapter.targets != _FEWER_TARGETS:
        yield _single(f"adapter.targets={','.join(_FEWER_TARGETS)}", 2, partial(_with, asked, adapter=fewer))
    yield Change(
        text="data.seq_len={}",
        steps=3,
        tries=tuple((str(length), partial(_cut, asked, length)) for length in _lengths(asked)),
    )


def _smaller_rank(asked: Asked) -> Change:
    ranks = _halves(asked.config.adapter.rank, _SMALLEST_RANK)
    tries = tuple((str(rank), partial(_ranked, asked, rank)) for rank in ranks)
    return Change(text="adapter.rank={}", steps=2, tries=tries)


def _pairs(asked: Asked) -> Iterator[Change]:
    """Two changes at once, where none alone is enough."""
    small = _ranked(asked, min(_SMALLEST_RANK, asked.config.adapter.rank))
    cheap = small
    for change in _cheaper(small):
        cheap = change.tries[0][1]()
        break
    yield Change(
        text=f"adapter.rank={small.config.adapter.rank} with data.seq_len={{}}",
        steps=5,
        tries=tuple((str(length), partial(_cut, cheap, length)) for length in _lengths(asked)),
    )


def _ranked(asked: Asked, rank: int) -> Asked:
    return _with(asked, adapter=replace(asked.config.adapter, rank=rank))


def _cut(asked: Asked, length: int) -> Asked:
    return _with(asked, data=replace(asked.config.data, seq_len=length))


def _lengths(asked: Asked) -> tuple[int, ...]:
    longest = min(sequence_length(asked.config, asked.model), max(_SHORTEST_ROWS, asked.data.max_tokens))
    return tuple(length // 8 * 8 for length in _halves(longest, _SHORTEST_ROWS))


def _halves(value: int, least: int) -> tuple[int, ...]:
    found = []
    while (value := value // 2) >= least:
        found.append(value)
    return tuple(found)


def _single(text: str, steps: int, build: Callable[[], Asked]) -> Change:
    return Change(text=text, steps=steps, tries=(("", build),))


def _hardware(asked: Asked) -> Iterator[Change]:
    """More cards of the same kind, larger cards, more host memory: on the first host."""
    first = asked.topology.hosts[0]
    gpus = [device for device in first.devices if device.kind is DeviceKind.gpu]
    if gpus and len(asked.topology.hosts) == 1:
        yield Change(
            text=f"{{}} more {gpus[-1].name}",
            steps=_HARDWARE_STEPS,
            tries=tuple((str(more), partial(_more_cards, asked, gpus[-1], more)) for more in _MORE_CARDS),
        )
    if gpus:
        now = max(device.memory_bytes or 0 for device in gpus)
        sizes = [size for size in _CARD_SIZES_GIB if size * GIB > now]
        yield Change(
            text="cards of {} GiB (if as fast)",
            steps=_HARDWARE_STEPS,
            tries=tuple((str(size), partial(_larger_cards, asked, size * GIB)) for size in sizes),
        )
        whole = _with(asked, engine=replace(asked.config.engine, name=Engine.ddp))
        yield Change(
            text="cards of {} GiB (if as fast) that hold a whole copy each",
            steps=_HARDWARE_STEPS,
            tries=tuple((str(size), partial(_larger_cards, whole, size * GIB)) for size in sizes),
        )
    memory = first.available_memory_bytes or first.memory_bytes or 0
    yield Change(
        text="{} of free host memory",
        steps=_HARDWARE_STEPS,
        tries=tuple((format_bytes(memory * by), partial(_more_memory, asked, by)) for by in _HOST_GROWTH),
    )


def _more_cards(asked: Asked, card: Device, more: int) -> Asked:
    (host,) = asked.topology.hosts
    added = tuple(
        replace(card, id=f"{card.id}+{number}", uuid=None, pci=None, index=None) for number in range(1, more + 1)
    )
    # As the last two cards see each other, or through the host bridge.
    kind = next((pair.kind for pair in asked.topology.pairs if card.id in {pair.a, pair.b}), "PHB")
    old = [device for device in host.devices if device.kind is DeviceKind.gpu]
    pairs = [Pair(a=one.id, b=new.id, kind=kind) for new in added for one in old]
    pairs += [Pair(a=a.id, b=b.id, kind=kind) for at, a in enumerate(added) for b in added[at + 1 :]]
    topology = Topology(hosts=(replace(host, devices=(*host.devices, *added)),), pairs=(*asked.topology.pairs, *pairs))
    return replace(_with(asked, devices=0), topology=topology)


def _larger_cards(asked: Asked, size_bytes: int) -> Asked:
    def grown(device: Device) -> Device:
        return replace(device, memory_bytes=size_bytes) if device.kind is DeviceKind.gpu else device

    return _hosts(asked, lambda host: replace(host, devices=tuple(map(grown, host.devices))))


def _more_memory(asked: Asked, by: int) -> Asked:
    def grown(host: Host) -> Host:
        memory = None if host.memory_bytes is None else host.memory_bytes * by
        free = None if host.available_memory_bytes is None else host.available_memory_bytes * by
        return replace(host, memory_bytes=memory, available_memory_bytes=free, memory_limit_bytes=None)

    return _hosts(asked, grown)


def _hosts(asked: Asked, change: Callable[[Host], Host]) -> Asked:
    return replace(asked, topology=replace(asked.topology, hosts=tuple(map(change, asked.topology.hosts))))


def _trimmed(topology: Topology) -> Topology:
    """The first hosts alone: a thousand more of them change nothing about what a rank needs."""
    hosts = topology.hosts[:_MOST_HOSTS]
    own = {device.id for host in hosts for device in host.devices}
    return Topology(hosts=hosts, pairs=tuple(pair for pair in topology.pairs if pair.a in own))


def _fewer_hosts(config: RunConfig) -> RunConfig:
    return replace(config, nodes=min(config.nodes, _MOST_HOSTS))
