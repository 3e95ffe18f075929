"""The levers of a launch: what it sets by itself, what it leaves alone, and the evidence for each.

A lever that the user has set is not pulled, and says so. What only an argument of the launch or of the plan can do
(order, islands, CPUs) is told beside the variables, with what keeps it from being done where something does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from orchestrator.environment.given import UserEnvironment
from orchestrator.environment.interfaces import Pick, gloo_pick, nccl_pick
from orchestrator.environment.policy import RULES
from orchestrator.environment.pulled import Kind, Lever, variables
from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Topology
from topology.routing.placement import Placement, placement
from topology.routing.ports import fabric_ports

__all__ = ["Kind", "Lever", "levers", "variables"]

_UUID: Final = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]+")
_PLUGIN_SIGNS: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
_OWN_NETS: Final = frozenset({"", "ib", "socket", "none"})  # of NCCL itself


def levers(topology: Topology, devices: Sequence[str], environment: UserEnvironment) -> tuple[Lever, ...]:
    """Decide each lever for ranks on these devices.

    Args:
        topology: the machine.
        devices: ids in rank order; empty: all, in the best order.
        environment: what ranks inherit from the user.

    Raises:
        TopologyError: an unknown device.
    """
    known = {device.id: device for device in topology.devices}
    given = tuple(dict.fromkeys(devices))  # CPU slots may repeat
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TopologyError(
            asked="levers", found=f"no device {', '.join(unknown)}", remedy="name devices of the machine"
        )
    everything = tuple(device.id for device in topology.gpus or topology.devices)
    placed, fault = _place(topology, given)
    order = given or (everything if placed is None else placed.order)
    chosen = [known[name] for name in order]
    hosts = tuple(dict.fromkeys(device.host for device in chosen))
    is_gpu = all(device.kind is DeviceKind.gpu for device in chosen)
    return (
        *(_devices(chosen, hosts, environment) if is_gpu else ()),
        *(_placed_levers(topology, order, placed, hosts) if placed else (_placed("order of ranks", fault),)),
        *((_nccl_interface(hosts, environment), _ib_hca(topology, hosts, environment)) if is_gpu else ()),
        _gloo_interface(hosts, environment),
        *((_debug(environment),) if is_gpu else ()),
    )


def _place(topology: Topology, devices: Sequence[str]) -> tuple[Placement | None, str]:
    """The placement, or why there is none: devices that nothing is known to join can be trained on all the same."""
    try:
        return placement(topology, devices), ""
    except TopologyError as error:
        return None, f"as given: {error}"


def _variable(name: str, value: str, environment: UserEnvironment, evidence: str, *, applies: bool = True) -> Lever:
    users = environment.get(name)
    return Lever(
        name=name,
        value=value,
        applies=applies,
        evidence=evidence,
        source=RULES[name].source,
        overridden_by="" if users is None else str(users),
    )


def _devices(chosen: Sequence[Device], hosts: Sequence[str], environment: UserEnvironment) -> tuple[Lever, ...]:
    """Of GPUs only. A user's own list has already narrowed what was probed; these two stay the plan's."""
    uuids = [device.uuid or device.id for device in chosen]
    named = all(_UUID.fullmatch(uuid) for uuid in uuids)
    one_host = len(hosts) == 1
    why = RULES["CUDA_VISIBLE_DEVICES"].reason
    if not named:
        why = "the UUIDs are not known: the first devices that the user's environment shows are taken"
    elif not one_host:
        why += "; each host gets its own"
    found = []
    for name, value, applies, evidence in (
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID", True, RULES["CUDA_DEVICE_ORDER"].reason),
        ("CUDA_VISIBLE_DEVICES", ",".join(uuids) if one_host and named else "", named, why),
    ):
        users = environment.get(name)
        note = "" if users is None or users.value == value else f"; replaces {users}, among whose devices these are"
        found.append(
            Lever(name=name, value=value, applies=applies, evidence=evidence + note, source=RULES[name].source)
        )
    if one_host or not named:
        return tuple(found)
    own = tuple((device.id, uuid) for device, uuid in zip(chosen, uuids, strict=True))
    order, shown = found
    return order, Lever(
        name=shown.name, value="", applies=True, evidence=shown.evidence, source=shown.source, by_device=own
    )


def _placed_levers(
    topology: Topology, order: tuple[str, ...], placed: Placement, hosts: Sequence[str]
) -> tuple[Lever, ...]:
    return _order(order, placed), _islands(placed), _nics(topology, placed, hosts), _cpus(placed)


def _order(order: tuple[str, ...], placed: Placement) -> Lever:
    is_best = order == placed.order
    evidence = placed.reasons[0]
    if not is_best:
        evidence += (
            "; the ranks stay as planned, for their rows belong to them: it matters to groups of consecutive ranks "
            "and between hosts, within one host NCCL finds its own rings"
        )
    return _placed("order of ranks", evidence, value=",".join(placed.order), applies=is_best)


def _islands(placed: Placement) -> Lever:
    size, total = placed.shard_size, len(placed.order)
    use = "; for hpZ, MiCS and HSDP, where a copy in each island fits" if size < total else ""
    return _placed("island size", placed.reasons[1] + use, value=str(size), applies=size < total)


def _nics(topology: Topology, placed: Placement, hosts: Sequence[str]) -> Lever:
    names = {nic.id: nic.name for nic in topology.nics}
    own = tuple((device, ",".join(names[nic] for nic in nics)) for device, nics in placed.nics_of.items() if nics)
    why = "; ".join(placed.reasons[2:]) or "no adapter known"
    why += "; one host needs none" if len(hosts) == 1 else "; NCCL takes the nearest by itself, nothing is set"
    return _placed("adapter of each device", why, by_device=own)


def _cpus(placed: Placement) -> Lever:
    own = tuple((device, cpus) for device, cpus in placed.cpus_of.items() if cpus)
    if not own:
        return _placed("CPUs of each rank", "the CPUs near the devices are not known")
    if len({cpus for _, cpus in own}) == 1 and len(own) == len(placed.cpus_of):
        return _placed("CPUs of each rank", "the same for all ranks: there is nothing to bind", value=own[0][1])
    why = "not applied yet: needs a launch that binds each rank; NCCL binds its own threads"
    return _placed("CPUs of each rank", why, by_device=own)


def _placed(
    name: str,
    evidence: str,
    *,
    value: str = "",
    applies: bool = False,
    by_device: tuple[tuple[str, str], ...] = (),
) -> Lever:
    return Lever(
        name=name,
        value=value,
        applies=applies,
        evidence=evidence,
        source="the topology",
        kind=Kind.placement,
        by_device=by_device,
    )


def _nccl_interface(hosts: Sequence[str], environment: UserEnvironment) -> Lever:
    value, why = _interface(hosts, environment, nccl_pick(environment))
    return _variable("NCCL_SOCKET_IFNAME", f"={value}" if value else "", environment, why, applies=bool(value))


def _gloo_interface(hosts: Sequence[str], environment: UserEnvironment) -> Lever:
    value, why = _interface(hosts, environment, gloo_pick(environment))
    return _variable("GLOO_SOCKET_IFNAME", value, environment, why, applies=bool(value))


def _interface(hosts: Sequence[str], environment: UserEnvironment, pick: Pick) -> tuple[str, str]:
    if len(hosts) == 1:
        return "", "one host: every interface of it reaches itself"
    if environment.host not in hosts:
        return "", "the interfaces of these hosts were not read: the default stays"
    if not pick.better:
        return "", pick.reason
    return pick.better, f"{pick.reason} (read on {environment.host}; other hosts must have it too)"


def _ib_hca(topology: Topology, hosts: Sequence[str], environment: UserEnvironment) -> Lever:
    name = "NCCL_IB_HCA"
    if len(hosts) == 1:
        return _variable(name, "", environment, "one host: no adapter is used", applies=False)
    plugin = next((found for sign in _PLUGIN_SIGNS if (found := environment.get(sign)) is not None), None)
    if plugin is not None and plugin.value.lower() not in _OWN_NETS:
        why = f"{plugin}: that plugin owns the fabric"
        return _variable(name, "", environment, why, applies=False)
    ports = fabric_ports(topology, hosts)
    if not ports.is_mixed:
        return _variable(name, "", environment, ports.reason, applies=False)
    why = f"{ports.reason}: storage or management"
    return _variable(name, "=" + ",".join(ports.compute), environment, why)


def _debug(environment: UserEnvironment) -> Lever:
    return _variable("NCCL_DEBUG", "WARN", environment, RULES["NCCL_DEBUG"].reason)
