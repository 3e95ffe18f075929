"""What a topology file leaves unknown, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.probe.nccl_places import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from topology.model import Device, Nic
    from topology.probe.nccl_places import Places, Port


def no_gpus(places: Places) -> list[str]:
    """Tell that there is no GPU, since a machine without is seldom what the file is of."""
    if places.of(Role.gpu):
        return []
    unclassed = sum(place.pci_class is None for place in places.of(Role.unknown))
    if unclassed:
        text = "function(s) without a class, of which NCCL finds the kind on the machine"
        return [f"no GPU is classed in this file: {unclassed} {text}"]
    return ["no GPU is in this file"]


def memory_warnings(devices: Sequence[Device], told: Collection[str]) -> list[str]:
    """Tell whose memory is unknown or a table's; `told` are the GPUs whose memory the file has."""
    unknown = [device.id for device in devices if device.memory_bytes is None]
    guessed = [device.id for device in devices if device.memory_bytes is not None and device.id not in told]
    warnings = ["the file tells no host memory, and the CPUs of no other NUMA nodes than it lists"]
    if guessed:
        warnings.append(f"the file tells no GPU memory: {len(guessed)} GPU(s) have the table's, by PCI id")
    if unknown:
        warnings.append(f"the memory of {len(unknown)} GPU(s) is unknown: {_listed(unknown)}")
    return warnings


def left_out(places: Places, skipped: tuple[str, ...]) -> list[str]:
    """Tell what the file has and the topology has not."""
    warnings = []
    unclassed = [place.address for place in places.of(Role.unknown) if place.pci_class is None]
    other = [f"{place.address} ({place.pci_class})" for place in places.of(Role.unknown) if place.pci_class is not None]
    parts = [place.address for place in places.of(Role.gpu) if len(place.element.inside("gpu")) > 1]
    if places.repeated:
        warnings.append(f"PCI addresses that more than one function has: {_listed(places.repeated)}")
    if unclassed:
        text = "PCI function(s) without a class, which NCCL looks up on the machine"
        warnings.append(f"{len(unclassed)} {text}; they are left out: {_listed(unclassed)}")
    if other:
        warnings.append(f"{len(other)} PCI function(s) of other classes left out: {_listed(other)}")
    if parts:
        warnings.append(f"GPU(s) with several ranks or parts, taken as one each: {_listed(parts)}")
    if places.merged:
        warnings.append(f"adapters merged of others in the file, left out: {_listed(places.merged)}")
    if skipped:
        warnings.append(f"unknown elements skipped: {_listed(skipped)}")
    return warnings


def port_warnings(ports: Sequence[Port], nics: Sequence[Nic]) -> list[str]:
    """Tell of ports without a rate that can be."""
    warnings, silent = [], []
    rates = {nic.id: nic.bytes_per_second for nic in nics}
    for port in ports:
        speed = port.net.get("speed") if port.net is not None else None
        if speed is None:
            silent.append(port.id)
        elif rates[port.id] is None:
            warnings.append(f"NIC {port.id}: {speed} Mb/s is no rate of a port; its rate is unknown")
    return warnings + ([f"the rate of {len(silent)} NIC(s) is unknown: {_listed(silent)}"] if silent else [])


def _listed(names: Sequence[str], limit: int = 16) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
