"""Other hardware to try when nothing fits: more cards of the same kind, larger ones, more host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from orchestrator.config import Engine
from orchestrator.planner.changes import Change, with_config
from orchestrator.planner.solve import Asked
from topology.model import Device, DeviceKind, Host, Pair, Topology
from topology.units import GIB, format_bytes

HARDWARE_STEPS: Final = 30
WHOLE_COPY: Final = "that hold a whole copy each"
_CARD_SIZES_GIB: Final = (12, 16, 24, 32, 40, 48, 80, 96, 141, 192, 288)
_MORE_CARDS: Final = (1, 2, 3, 4, 6, 7)
_MOST_CARDS: Final = 8
_HOST_GROWTH: Final = (2, 4, 8)


def hardware(asked: Asked) -> Iterator[Change]:
    """More cards, larger cards and more host memory, on the hosts that there are."""
    first = asked.topology.hosts[0]
    gpus = [device for device in first.devices if device.kind is DeviceKind.gpu]
    if gpus and len(asked.topology.hosts) == 1:
        more = [count for count in _MORE_CARDS if len(gpus) + count <= _MOST_CARDS]
        yield Change(
            text=f"{{}} more {gpus[-1].name}",
            steps=HARDWARE_STEPS,
            tries=tuple((str(count), partial(_more_cards, asked, gpus[-1], count)) for count in more),
        )
    if gpus:
        yield from _larger(asked, gpus)
    memory = first.available_memory_bytes or first.memory_bytes or 0
    yield Change(
        text="{} of free host memory",
        steps=HARDWARE_STEPS,
        tries=tuple((format_bytes(memory * by), partial(_more_memory, asked, by)) for by in _HOST_GROWTH),
    )


def _larger(asked: Asked, gpus: list[Device]) -> Iterator[Change]:
    now = max(device.memory_bytes or 0 for device in gpus)
    sizes = [size for size in _CARD_SIZES_GIB if size * GIB > now]
    whole = with_config(asked, engine=replace(asked.config.engine, name=Engine.ddp))
    alone = with_config(asked, devices=0)
    for text, build in (
        ("cards of {} GiB (if as fast)", partial(_larger_cards, asked)),
        *((("one card of {} GiB (if as fast)", partial(_one_card, alone)),) if len(gpus) > 1 else ()),
        (f"cards of {{}} GiB (if as fast) {WHOLE_COPY}", partial(_larger_cards, whole)),
    ):
        tries = tuple((str(size), partial(build, size * GIB)) for size in sizes)
        yield Change(text=text, steps=HARDWARE_STEPS, tries=tries)


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
    return replace(with_config(asked, devices=0), topology=topology)


def _larger_cards(asked: Asked, size_bytes: int) -> Asked:
    def grown(device: Device) -> Device:
        return replace(device, memory_bytes=size_bytes) if device.kind is DeviceKind.gpu else device

    return _hosts(asked, lambda host: replace(host, devices=tuple(map(grown, host.devices))))


def _one_card(asked: Asked, size_bytes: int) -> Asked:
    host = asked.topology.hosts[0]
    card = next(device for device in host.devices if device.kind is DeviceKind.gpu)
    one = replace(host, devices=(replace(card, memory_bytes=size_bytes),))
    return replace(with_config(asked, nodes=1), topology=Topology(hosts=(one,), pairs=()))


def _more_memory(asked: Asked, by: int) -> Asked:
    def grown(host: Host) -> Host:
        memory = None if host.memory_bytes is None else host.memory_bytes * by
        free = None if host.available_memory_bytes is None else host.available_memory_bytes * by
        return replace(host, memory_bytes=memory, available_memory_bytes=free, memory_limit_bytes=None)

    return _hosts(asked, grown)


def _hosts(asked: Asked, change: Callable[[Host], Host]) -> Asked:
    return replace(asked, topology=replace(asked.topology, hosts=tuple(map(change, asked.topology.hosts))))
