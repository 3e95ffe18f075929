"""A topology as plain text: hosts, devices, the matrix of pairs, islands, links with their sources, warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.checks import printable
from topology.fingerprint import fingerprint
from topology.hosts import split_hosts
from topology.judge import machine_classes, short_names
from topology.model import Device, DeviceKind, Host, Topology
from topology.render.matrix import island_block, matrix_block
from topology.render.tables import UNKNOWN, count, listed, shown, table, wrapped
from topology.render.text_links import link_block, network_block
from topology.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.judge import MachineClass

_UUID_CHARS = len("GPU-00000000")  # a prefix is what CUDA_VISIBLE_DEVICES takes, and a row stays short


def render(topology: Topology) -> str:
    """Draw the topology, in at most 100 columns unless names or a wide matrix need more.

    Hosts that are alike are drawn once. No trailing newline.
    """
    kinds = machine_classes(topology)
    alike: dict[str, list[int]] = {}
    ones = split_hosts(topology)
    for at, one in enumerate(ones):
        alike.setdefault(fingerprint(one), []).append(at)
    blocks: list[str] = []
    if len(ones) > 1:
        blocks.append(f"{len(ones)} hosts, {count(len(topology.devices), 'device')}")
    for group in alike.values():
        others = [topology.hosts[at].name for at in group[1:]]
        blocks += _host_blocks(ones[group[0]], kinds[group[0]], others)
    if len(ones) > 1:
        blocks.append(network_block(topology))
    if topology.warnings:
        blocks.append("\n".join(["warnings", *(line for text in topology.warnings for line in wrapped(text))]))
    return "\n\n".join(block for block in blocks if block)


def _host_blocks(one: Topology, kind: MachineClass, others: Sequence[str]) -> list[str]:
    (host,) = one.hosts
    names = short_names(host)
    head = _header(host)
    if one.gpus:
        head += f"\n{count(len(one.gpus), 'GPU')}: {kind.value}"
    if others:
        head += f"\nalike: {listed(others)}"
    blocks = [head, "\n".join([_device_table(host, names), *_near_cpus(host, names)])]
    if host.nics:
        blocks.append(_nic_table(host))
    if len(one.gpus) > 1 or (one.gpus and host.nics):
        blocks.append(matrix_block(one, names))
    if len(one.gpus) > 1:
        blocks.append(island_block(one, names))
    return [*blocks, link_block(one)]


def _header(host: Host) -> str:
    memory = _bytes(host.memory_bytes)
    if host.memory_limit_bytes is not None:
        memory += " (control-group limit)"
    if host.available_memory_bytes is not None:
        memory += f", {format_bytes(host.available_memory_bytes)} available"
    cpu = f", {printable(host.cpu_name)}" if host.cpu_name else ""
    cores, sockets = count(host.cores, "core"), count(host.sockets, "socket")
    virtual = ", virtual machine" if host.is_virtual else ""
    return f"host {printable(host.name)}: {cores} on {sockets}, {memory}{cpu}{virtual}"


def _bytes(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_bytes(size_bytes)


def _device_table(host: Host, names: Mapping[str, str]) -> str:
    rows = [["device", "name", "memory", "free", "numa", "arch", "pcie", "pci", "uuid"]]
    for device in host.devices:
        free = device.free_memory_bytes
        rows.append(
            [
                names[device.id],
                device.name + (" (slice)" if device.parent else ""),
                _bytes(device.memory_bytes),
                UNKNOWN if free is None else format_bytes(free),
                shown(device.numa),
                _arch(device),
                _pcie(device),
                device.pci or "-",
                device.uuid[:_UUID_CHARS] if device.uuid else "-",
            ],
        )
    # A column nobody has anything in says nothing.
    kept = [at for at in range(len(rows[0])) if any(row[at] not in {"-", UNKNOWN} for row in rows[1:])]
    return table([[row[at] for at in kept] for row in rows])


def _near_cpus(host: Host, names: Mapping[str, str]) -> list[str]:
    near: dict[str, list[str]] = {}
    for device in host.devices:
        if device.cpus:
            near.setdefault(device.cpus, []).append(names[device.id])
    return [f"CPUs {printable(cpus)} are near {' '.join(devices)}" for cpus, devices in near.items()]


def _arch(device: Device) -> str:
    if device.kind is DeviceKind.cpu:
        # The flag that decides most: bf16 first, then the vector width.
        order = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")
        return next((flag for flag in order if flag in device.features), "-")
    capability = device.compute_capability
    return UNKNOWN if capability is None else f"sm_{capability[0]}{capability[1]}"


def _pcie(device: Device) -> str:
    if device.pcie is None or (device.pcie.max_generation is None and device.pcie.max_width is None):
        return "-"
    return f"Gen{shown(device.pcie.max_generation)} x{shown(device.pcie.max_width)}"


def _nic_table(host: Host) -> str:
    rows = [["nic", "kind", "rate", "numa", "pci"]]
    for nic in host.nics:
        rate = UNKNOWN if nic.bytes_per_second is None else format_rate(nic.bytes_per_second)
        rows.append([nic.name, nic.kind, rate, shown(nic.numa), nic.pci or "-"])
    return table(rows)
