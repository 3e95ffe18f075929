"""A topology as plain text: hosts, devices, the matrix of pairs, NVLink islands, warnings."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from topology.model import Device, DeviceKind, Host, Topology
from topology.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH: Final = 100
_UNKNOWN: Final = "?"
_UUID_CHARS: Final = len("GPU-00000000")  # a prefix is what CUDA_VISIBLE_DEVICES takes, and a row stays short


def render(topology: Topology) -> str:
    """Draw the topology, in at most 100 columns unless names or a wide matrix need more; no trailing newline."""
    blocks = [block for host in topology.hosts for block in _host_blocks(topology, host)]
    if topology.warnings:
        blocks.append("\n".join(["warnings", *(line for text in topology.warnings for line in _wrapped(text))]))
    return "\n\n".join(blocks)


def _host_blocks(topology: Topology, host: Host) -> list[str]:
    labels = _labels(host)
    blocks = [_header(host), _device_table(host, labels)]
    if host.nics:
        blocks.append(_nic_table(host))
    gpus = [device for device in host.devices if device.kind is DeviceKind.gpu]
    if len(gpus) > 1:
        blocks += [_matrix(topology, gpus, labels), _islands(topology, gpus, labels)]
    return blocks


def _labels(host: Host) -> dict[str, str]:
    # nvidia-smi's names, by its index where it is known, since that is what people compare with.
    return {
        device.id: f"{device.kind.value.upper()}{at if device.index is None else device.index}"
        for at, device in enumerate(host.devices)
    }


def _header(host: Host) -> str:
    memory = _bytes(host.memory_bytes)
    if host.memory_limit_bytes is not None:
        memory += " (control-group limit)"
    if host.available_memory_bytes is not None:
        memory += f", {format_bytes(host.available_memory_bytes)} available"
    cpu = f", {host.cpu_name}" if host.cpu_name else ""
    cores, sockets = _count(host.cores, "core"), _count(host.sockets, "socket")
    return f"host {host.name}: {cores} on {sockets}, {memory}{cpu}"


def _bytes(size_bytes: int | None) -> str:
    return _UNKNOWN if size_bytes is None else format_bytes(size_bytes)


def _count(number: int | None, noun: str) -> str:
    return f"{_shown(number)} {noun}{'' if number == 1 else 's'}"


def _device_table(host: Host, labels: dict[str, str]) -> str:
    rows = [["device", "name", "memory", "free", "numa", "arch", "pci", "uuid"]]
    for device in host.devices:
        free = device.free_memory_bytes
        rows.append(
            [
                labels[device.id],
                device.name,
                _bytes(device.memory_bytes),
                _UNKNOWN if free is None else format_bytes(free),
                _shown(device.numa),
                _arch(device),
                device.pci or "-",
                device.uuid[:_UUID_CHARS] if device.uuid else "-",
            ],
        )
    return _table(rows)


def _arch(device: Device) -> str:
    if device.kind is DeviceKind.cpu:
        # The flag that decides most: bf16 first, then the vector width.
        order = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")
        return next((flag for flag in order if flag in device.features), "-")
    capability = device.compute_capability
    return _UNKNOWN if capability is None else f"sm_{capability[0]}{capability[1]}"


def _nic_table(host: Host) -> str:
    rows = [["nic", "kind", "rate", "numa", "pci"]]
    for nic in host.nics:
        rate = _UNKNOWN if nic.bytes_per_second is None else format_rate(nic.bytes_per_second)
        rows.append([nic.name, nic.kind, rate, _shown(nic.numa), nic.pci or "-"])
    return _table(rows)


def _matrix(topology: Topology, gpus: Sequence[Device], labels: dict[str, str]) -> str:
    kinds = {frozenset((pair.a, pair.b)): pair.kind for pair in topology.pairs}
    rows = [["", *(labels[device.id] for device in gpus)]]
    for one in gpus:
        cells = ["X" if one is other else kinds.get(frozenset((one.id, other.id)), _UNKNOWN) for other in gpus]
        rows.append([labels[one.id], *cells])
    return _table(rows)


def _islands(topology: Topology, gpus: Sequence[Device], labels: dict[str, str]) -> str:
    here = {device.id for device in gpus}
    islands = [island for island in topology.islands if len(island) > 1 and island[0] in here]
    if not islands:
        return "islands: none, no two devices are joined by NVLink"
    lines = []
    for at, island in enumerate(islands):
        kinds = sorted({p.kind for p in topology.pairs if p.is_nvlink and p.a in island and p.b in island})
        lines.append(f"island {at}: {' '.join(labels[name] for name in island)} ({', '.join(kinds)})")
    alone = [labels[device.id] for device in gpus if not any(device.id in island for island in islands)]
    return "\n".join([*lines, *([f"in no island: {' '.join(alone)}"] if alone else [])])


def _shown(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
