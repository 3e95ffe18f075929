"""The machine and the configuration that are left of what was asked for, by what a run has met so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.calibration_file import Calibration, Chosen, Section
from orchestrator.config import Precision, RunConfig
from orchestrator.config_codec import parse_config
from orchestrator.errors import NothingFits, Problem
from orchestrator.planner.opened import with_opened
from orchestrator.planner.setbacks import Setbacks, SlowLink, device_of
from orchestrator.planner.smaller_ranks import with_rank
from topology.model import DeviceKind, Host, Link, Topology

_RANK_LISTS = ("shards", "budgets_gib", "speeds")


def machine_left(topology: Topology, setbacks: Setbacks) -> Topology:
    """The machine without lost hosts and GPUs, and with slow links as slow as they are; O(parts of the topology).

    CPU slots are shares of their host, which stays: there are fewer ranks on it.

    Raises:
        NothingFits: nothing is left.
    """
    gpus = {device.id for device in topology.gpus}
    lost = {device_of(slot) for slot in setbacks.lost_slots} & gpus
    hosts = []
    for host in topology.hosts:
        devices = tuple(device for device in host.devices if device.id not in lost)
        had = any(device.kind is DeviceKind.gpu for device in host.devices)
        has = any(device.kind is DeviceKind.gpu for device in devices)
        if host.name not in setbacks.lost_hosts and has == had:
            hosts.append(replace(host, devices=devices))
    if not hosts:
        remedy = "Bring a host or device back, then go on with resume=true."
        raise NothingFits(Problem(where="plan", found="no host or device is left", remedy=remedy))
    kept = _parts_of(topology, tuple(hosts))
    for slow in setbacks.links:
        kept = _slowed(kept, slow)
    return kept


def _parts_of(topology: Topology, hosts: tuple[Host, ...]) -> Topology:
    """Only what belongs to these hosts, and what lies between hosts."""
    if hosts == topology.hosts:
        return topology
    names = {host.name for host in hosts}
    devices = {device.id for host in hosts for device in host.devices}
    switches = tuple(switch for switch in topology.switches if switch.host is None or switch.host in names)
    ends = devices | {nic.id for host in hosts for nic in host.nics} | {switch.id for switch in switches}
    return replace(
        topology,
        hosts=hosts,
        links=tuple(link for link in topology.links if link.a in ends and link.b in ends),
        pairs=tuple(pair for pair in topology.pairs if pair.a in devices and pair.b in devices),
        switches=switches,
    )


def _slowed(topology: Topology, slow: SlowLink) -> Topology:
    """Lower what a link carries, or every port of a host with the links at it; others stay."""
    rate = slow.bytes_per_second
    ports = {nic.id for host in topology.hosts if host.name == slow.a and not slow.b for nic in host.nics}

    def is_meant(link: Link) -> bool:
        return {link.a, link.b} == {slow.a, slow.b} or bool(ports & {link.a, link.b})

    links = tuple(_lowered(link, rate) if is_meant(link) else link for link in topology.links)
    hosts = tuple(
        replace(
            host,
            nics=tuple(
                replace(nic, bytes_per_second=min(rate, nic.bytes_per_second or rate)) if nic.id in ports else nic
                for nic in host.nics
            ),
        )
        for host in topology.hosts
    )
    return replace(topology, hosts=hosts, links=links)


def _lowered(link: Link, rate: float) -> Link:
    before = link.capacity_bytes_per_second
    if before is not None and before <= rate:
        return link
    return replace(link, bytes_per_second=rate, source="measured while the run was slow")


def slowed_ports(topology: Topology, share: float) -> tuple[SlowLink, ...]:
    """Every host's ports at a share of the slowest rate that is known of them; hosts without one are left out."""
    found = []
    for host in topology.hosts:
        ports = {nic.id for nic in host.nics}
        rates = [nic.bytes_per_second for nic in host.nics]
        rates += [
            link.capacity_bytes_per_second
            for link in topology.links
            if ports & {link.a, link.b} and _leaves(link, topology)
        ]
        known = [rate for rate in rates if rate]
        if known:
            found.append(SlowLink(a=host.name, b="", bytes_per_second=min(known) * share))
    return tuple(found)


def _leaves(link: Link, topology: Topology) -> bool:
    """Whether a link goes to a switch of the network, not into its host."""
    network = {switch.id for switch in topology.switches if switch.host is None}
    return bool(network & {link.a, link.b})


def links_met(topology: Topology, slow: SlowLink) -> bool:
    """Whether the machine has such a link or host."""
    if not slow.b:
        return any(host.name == slow.a and host.nics for host in topology.hosts)
    return any({link.a, link.b} == {slow.a, slow.b} for link in topology.links)


def known_left(known: Chosen, topology: Topology, setbacks: Setbacks) -> Chosen:
    """The calibration without the rates of links that are slow now: they were measured before."""
    if known.calibration is None or not setbacks.links:
        return known
    slow = {frozenset((one.a, one.b)) for one in setbacks.links if one.b}
    hosts = {one.a for one in setbacks.links if not one.b}
    ports = {nic.id for host in topology.hosts if host.name in hosts for nic in host.nics}

    def stands(name: str) -> bool:
        ends = frozenset(name.split("|"))
        return ends not in slow and not ends & ports

    sections: list[Section] = []
    for section in known.calibration.sections:
        if section.name == "links":
            kept = tuple(item for item in section.measured if stands(item.name))
            sections += [replace(section, measured=kept)] if kept else []
        else:
            sections.append(section)
    calibration: Calibration = replace(known.calibration, sections=tuple(sections))
    return replace(known, calibration=calibration)


def config_left(
    setbacks: Setbacks, topology: Topology, left: Topology, named: Sequence[str], precision: str
) -> RunConfig:
    """What the user asked for, as far as the machine that is left allows it.

    Args:
        setbacks: with the first configuration.
        topology: the whole machine.
        left: what is left of it.
        named: the user's names of its hosts, in their order; empty where none are named.
        precision: of the run: it stays as it is, whatever devices are left.
    """
    asked = parse_config(setbacks.config)
    config = with_opened(asked, setbacks.opened)
    engine = config.engine
    lists = {key: _kept(getattr(engine, key), setbacks, topology) for key in _RANK_LISTS}
    config = replace(
        config,
        engine=replace(engine, **lists),  # type: ignore[arg-type] # each is a tuple of numbers
        nodes=min(config.nodes, len(left.hosts)),
        devices=_devices(config, setbacks, topology, left),
        precision=Precision(precision),
    )
    if setbacks.cut_tokens:
        config = replace(config, data=replace(config.data, seq_len=setbacks.cut_tokens))
    if setbacks.rank:
        config = replace(config, adapter=with_rank(config.adapter, setbacks.rank))
    if len(named) == len(topology.hosts) and len(left.hosts) < len(named):
        names = {host.name for host in left.hosts}
        hosts = tuple(name for name, host in zip(named, topology.hosts, strict=True) if host.name in names)
        config = replace(config, launch=replace(config.launch, hosts=hosts, hostfile=""))
    return config


def _kept(given: tuple[float, ...], setbacks: Setbacks, topology: Topology) -> tuple[float, ...]:
    """Of a list with a number for each rank, those of the ranks that are left."""
    if len(given) != len(setbacks.slots):
        return given
    gone = lost_slots(setbacks, topology)
    return tuple(number for number, slot in zip(given, setbacks.slots, strict=True) if slot not in gone)


def lost_slots(setbacks: Setbacks, topology: Topology) -> set[str]:
    """Places of the first plan that are gone: lost themselves, or with their host."""
    home = {device.id: device.host for device in topology.devices}
    gone = set(setbacks.lost_slots)
    return gone | {slot for slot in setbacks.slots if home.get(device_of(slot)) in setbacks.lost_hosts}


def _devices(config: RunConfig, setbacks: Setbacks, topology: Topology, left: Topology) -> int:
    """How many devices are asked for: at most as many as there are left."""
    gone = sum(slot in lost_slots(setbacks, topology) for slot in setbacks.slots)
    per_rank = any(len(getattr(config.engine, key)) == len(setbacks.slots) for key in _RANK_LISTS)
    if gone and (per_rank or not left.gpus):  # the user's numbers belong to ranks: no other device takes their place
        return max(1, len(setbacks.slots) - gone)
    return min(config.devices, len(left.gpus), config.batch.global_) if left.gpus else config.devices


def counts_left(counts: Sequence[int], setbacks: Setbacks, topology: Topology) -> tuple[int, ...]:
    """Ranks of each host that is left, where the user told them."""
    if len(counts) != len(topology.hosts):
        return tuple(counts)
    home = {device.id: device.host for device in topology.devices}
    lost = [home.get(device_of(slot)) for slot in setbacks.lost_slots]
    each = zip(topology.hosts, counts, strict=True)
    found = [(host.name, count - lost.count(host.name)) for host, count in each]
    return tuple(count for name, count in found if count > 0 and name not in setbacks.lost_hosts)
