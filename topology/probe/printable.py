"""Readings whose names can be printed anywhere, and told apart: they come from firmware, drivers and files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from topology.checks import printable
from topology.reading import Reading

if TYPE_CHECKING:
    from topology.probe.readings import GpuReadings, HostReadings, MachineReadings, MigReadings, NicReadings

# Names that other parts of a host have as ids; the kernel lets an interface have any.
_TAKEN: Final = re.compile(r"(cpu|gpu|node|bridge|pcie)[\d?].*|nvswitch.*|(pci)?[0-9a-f]{4,8}:.*")


def printable_readings(readings: MachineReadings) -> MachineReadings:
    """Return the readings with the names of their parts made printable; nothing else changes."""
    nvml = readings.nvml
    why = None if nvml.unavailable is None else printable(nvml.unavailable)
    gpus = tuple(_gpu(gpu) for gpu in nvml.gpus)
    return replace(readings, host=_host(readings.host), nvml=replace(nvml, gpus=gpus, unavailable=why))


def _gpu(gpu: GpuReadings) -> GpuReadings:
    slices = tuple(_mig(mig) for mig in gpu.mig_devices)
    cluster = _text(gpu.fabric_cluster)
    return replace(gpu, uuid=_text(gpu.uuid), name=_text(gpu.name), mig_devices=slices, fabric_cluster=cluster)


def _mig(mig: MigReadings) -> MigReadings:
    return replace(mig, uuid=_text(mig.uuid), name=_text(mig.name))


def _host(host: HostReadings) -> HostReadings:
    return replace(host, name=_text(host.name), cpu_name=_text(host.cpu_name), nics=_nics(host.nics))


def _nics(nics: tuple[NicReadings, ...]) -> tuple[NicReadings, ...]:
    names: dict[str, None] = {}
    for nic in nics:
        name = printable(nic.name)
        name = f"{name} (NIC)" if _TAKEN.fullmatch(name) else name
        # A recording may have one name twice, and escapes may make two names alike.
        names[
            next(one for one in (name, *(f"{name} ({at})" for at in range(2, len(nics) + 2))) if one not in names)
        ] = None
    return tuple(replace(nic, name=name, kind=printable(nic.kind)) for nic, name in zip(nics, names, strict=True))


def _text(reading: Reading[str]) -> Reading[str]:
    if reading.value is None or reading.value.isprintable():
        return reading
    return Reading(source=reading.source, value=printable(reading.value))
