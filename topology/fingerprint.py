"""The fingerprint of the hardware: what a stored calibration may be keyed by, and what tells of a changed machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.units import GIB

if TYPE_CHECKING:
    from topology.model import Device, Host, Pcie, Topology


def fingerprint(topology: Topology) -> str:
    """SHA-256 of the hardware shape.

    Left out, since they move while the hardware stays: names of hosts and parts, UUIDs, PCI addresses, the order in
    which a driver lists its GPUs, free memory, clocks, the PCIe speed of the moment, warnings and sources. Memory
    counts by installed size, since drivers and kernels keep a different part of it to themselves.
    """
    # Imported here: the two cost a start-up more than reading the whole host does.
    import hashlib
    import json

    label = {switch.id: f"s{rank}" for rank, switch in enumerate(topology.switches)}
    for rank, host in enumerate(topology.hosts):
        label |= {device.id: f"h{rank}d{at}" for at, device in enumerate(_in_order(host))}
        label |= {nic.id: f"h{rank}n{at}" for at, nic in enumerate(host.nics)}
    shape = {
        "hosts": [_host_shape(host) for host in topology.hosts],
        "switches": [switch.kind.value for switch in topology.switches],
        "links": sorted(
            [*sorted((label[link.a], label[link.b])), link.kind, str(link.bytes_per_second)] for link in topology.links
        ),
        "pairs": sorted([*sorted((label[pair.a], label[pair.b])), pair.kind] for pair in topology.pairs),
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def _in_order(host: Host) -> list[Device]:
    # By slot, since the driver's order may change with a reboot; the sort keeps the order where none has an address.
    return sorted(host.devices, key=lambda device: device.pci or "")


def _host_shape(host: Host) -> list[object]:
    devices = [
        [
            *(device.kind.value, device.name, _installed_gib(device.memory_bytes), device.numa),
            *(device.compute_capability, device.cores, device.features, _pcie_shape(device.pcie)),
            *(device.mig, device.parent is not None, device.fabric is not None),
        ]
        for device in _in_order(host)
    ]
    nics = [[nic.kind, nic.bytes_per_second, nic.numa] for nic in host.nics]
    cpu = [host.cores, host.sockets, host.threads_per_core, host.cpu_name]
    return [_installed_gib(host.memory_bytes), *cpu, devices, nics]


def _pcie_shape(pcie: Pcie | None) -> list[int | None] | None:
    return None if pcie is None else [pcie.max_generation, pcie.max_width, pcie.device_max_generation]


def _installed_gib(size_bytes: int | None) -> int | None:
    """Round up to the next size modules come in: 503.4 is 512, 79.3 is 80, 23.5 is 24."""
    if size_bytes is None:
        return None
    gib = -(-size_bytes // GIB)
    step = max(1, 1 << max(0, gib.bit_length() - 4))
    return -(-gib // step) * step
