"""Where so many devices can be had: on one host or several, of one kind or mixed.

Equally many on each host where that is possible: groups of ranks, and what hosts do at once, are alike then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.groups import Near
from orchestrator.planner.picks import nearest
from orchestrator.planner.ranks import counts_label, is_even
from orchestrator.planner.spreads import spreads
from topology.model import Device, Host

# A cluster of many kinds is not worth a look at each, nor are all ways to spread ranks over like hosts.
_MOST_KINDS = 4
_MOST_SPREADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Devices of each of these hosts (by number), and what to call them."""

    hosts: tuple[int, ...]
    devices: tuple[tuple[Device, ...], ...]
    label: str


def kinds_of_hosts(gpus: Sequence[Sequence[Device]]) -> Mapping[object, list[int]]:
    """Numbers of the hosts with the same devices, the kinds with many hosts first."""
    kinds: dict[object, list[int]] = {}
    for at, devices in enumerate(gpus):
        kinds.setdefault(tuple(device.name for device in devices), []).append(at)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1]))[:_MOST_KINDS])


def selections(near: Near, hosts: Sequence[Host], gpus: Sequence[Sequence[Device]], count: int) -> Iterator[Selection]:
    """Yield the ways to take `count` devices: few hosts of a kind first, then all hosts.

    Hosts take unequal numbers only where no equal ones make up the count.
    """
    if count > sum(map(len, gpus)):
        return
    equal = tuple(_equal(near, hosts, gpus, count))
    yield from equal or _unequal(near, hosts, gpus, count)


def _equal(near: Near, hosts: Sequence[Host], gpus: Sequence[Sequence[Device]], count: int) -> Iterator[Selection]:
    kinds = kinds_of_hosts(gpus)
    for same in kinds.values():
        own = min(len(gpus[at]) for at in same)
        spreads = [k for k in range(1, len(same) + 1) if count % k == 0 and count // k <= own]
        for k in spreads[:_MOST_SPREADS]:
            yield from _on(near, hosts, gpus, tuple(same[:k]), count // k)
    if len(kinds) > 1 and count % len(hosts) == 0 and count // len(hosts) <= min(map(len, gpus)):
        yield from _on(near, hosts, gpus, tuple(range(len(hosts))), count // len(hosts))


def _unequal(near: Near, hosts: Sequence[Host], gpus: Sequence[Sequence[Device]], count: int) -> Iterator[Selection]:
    firsts = [same[0] for same in kinds_of_hosts(gpus).values()]
    for counts in spreads([len(devices) for devices in gpus], firsts, count):
        chosen = tuple(at for at, each in enumerate(counts) if each)
        yield taken(near, hosts, gpus, {at: counts[at] for at in chosen})


def taken(near: Near, hosts: Sequence[Host], gpus: Sequence[Sequence[Device]], counts: Mapping[int, int]) -> Selection:
    """Take so many devices of each of these hosts, those that gather fastest."""
    some = tuple(nearest(near, hosts[at].name, gpus[at], each) for at, each in counts.items())
    each = tuple(counts.values())
    where = f"{len(each)} hosts{counts_label(each)}"
    if is_even(each):
        where = f"each of {len(each)} hosts" if len(each) > 1 else hosts[next(iter(counts))].name
    total = each[0] if is_even(each) else sum(each)
    return Selection(hosts=tuple(counts), devices=some, label=f"{total} GPU{'s' if total > 1 else ''} of {where}")


def _on(
    near: Near, hosts: Sequence[Host], gpus: Sequence[Sequence[Device]], chosen: tuple[int, ...], each: int
) -> Iterator[Selection]:
    """Yield the devices that gather fastest, and on a host of several kinds those of each kind."""
    pools: list[tuple[Sequence[Device], ...]] = [tuple(gpus[at] for at in chosen)]
    names = list(dict.fromkeys(device.name for at in chosen for device in gpus[at]))
    if len(names) > 1:
        pools += [tuple([d for d in gpus[at] if d.name == name] for at in chosen) for name in names]
    for pool in pools:
        if min(map(len, pool)) >= each:
            some = tuple(
                _nearest(near, hosts[at].name, own, gpus[at], each) for at, own in zip(chosen, pool, strict=True)
            )
            yield Selection(hosts=chosen, devices=some, label=_label(hosts, gpus, chosen, each, some))


def _nearest(near: Near, host: str, pool: Sequence[Device], all_: Sequence[Device], count: int) -> tuple[Device, ...]:
    if len(pool) == len(all_):
        return nearest(near, host, pool, count)
    found = nearest(near, host, pool, count)  # groups are ranked over the whole host, which may take others
    return found if len(found) == count else tuple(pool[:count])


def _label(
    hosts: Sequence[Host],
    gpus: Sequence[Sequence[Device]],
    chosen: Sequence[int],
    each: int,
    some: Sequence[Sequence[Device]],
) -> str:
    """Name what is taken: `4 GPUs of four-h100`, `2 GPUs of each of 2 hosts`."""
    names = list(dict.fromkeys(device.name for devices in some for device in devices))
    # A host of several kinds is not told by its name alone.
    of_kinds = len({device.name for at in chosen for device in gpus[at]}) > 1
    what = names[0] if len(names) == 1 and of_kinds else "GPU"
    plural = "s" if each > 1 and what == "GPU" else ""
    where = hosts[chosen[0]].name if len(chosen) == 1 else f"each of {len(chosen)} hosts"
    if len(chosen) > 1 and len({tuple(d.name for d in gpus[at]) for at in range(len(hosts))}) > 1 and len(names) == 1:
        where += f" with {names[0]}"
    return f"{each} {what}{plural} of {where}"
