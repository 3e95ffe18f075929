"""Clocks held down, memory waiting for repair, cards that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.doctor.evidence import GpuEvidence, LoadEvidence, MachineEvidence
from orchestrator.doctor.finding import Finding, error, note, passed, unread, warning

# Bits of nvmlDeviceGetCurrentClocksEventReasons (docs.nvidia.com/deploy/nvml-api, nvmlClocksEventReasons, 2026-11).
# Idle, sync boost and display clocks are no fault and are left out.
_FAULTS: Final = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_SETTINGS: Final = {0x02: "a clock setting of an administrator", 0x04: "the power limit"}
_SLOWDOWN: Final = 0x08
_LASTING: Final = 0x20 | 0x40 | 0x80
_STEADY: Final = 2
_HEAT: Final = 0x20 | 0x40
_COOL: Final = "Look at the room, fans, dust and the neighbour's exhaust (`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`)."
_POWER: Final = (
    "Look at the power supplies and cables of the card and at the board's power cap "
    "(`nvidia-smi -q -d POWER,PERFORMANCE`)."
)
# docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, error recovery and response flags (2026-11).
_RESET: Final = "End all work on it, then `nvidia-smi -r -i UUID` as root (or reboot). Runs stay correct until then."
_GARBAGE: Final = (
    "Compare with `nvidia-smi -q -d MEMORY -i UUID`; reset the GPU or reboot, and look for `Xid` in dmesg. In a "
    "virtual machine it is the host's driver that tells this."
)
_RMA: Final = "Take the card out of service, run NVIDIA's field diagnostic, and have it replaced."


def check_health(machine: MachineEvidence, loads: tuple[LoadEvidence, ...]) -> tuple[Finding, ...]:
    """Judge throttle reasons (idle and under load), row remapping, page retirement and ECC of each GPU."""
    by_gpu = {load.gpu: load for load in loads}
    found: list[Finding] = []
    for gpu in machine.gpus:
        if gpu.lost is not None:
            title = f"{gpu.label}: the GPU does not answer any more"
            remedy = "Drain this host, look for `Xid 79` in dmesg, reboot; if it recurs, reseat or replace the card."
            found.append(error("gpu-lost", title, gpu.lost, remedy))
            continue
        if gpu.memory_fault is not None:
            title = f"{gpu.label}: the driver tells an impossible memory; plans cannot count with it"
            found.append(warning("memory", title, gpu.memory_fault, _GARBAGE.replace("UUID", gpu.id)))
        found += [*_throttle(gpu, by_gpu.get(gpu.id)), *_remap(gpu), *_retired(gpu), *_ecc(gpu)]
    return tuple(found)


def _throttle(gpu: GpuEvidence, load: LoadEvidence | None) -> Iterator[Finding]:
    check, reading = "throttle", gpu.health.event_reasons
    sampled = load.event_reasons if load is not None else ()
    if reading.value is None and not sampled:
        yield unread(check, f"{gpu.label}: why its clocks are held down", (reading,))
        return
    mask = reading.value or 0
    for sample in sampled:
        mask |= sample
    faults = [name for bit, name in _FAULTS.items() if mask & bit]
    # NVML reports the bare hardware slowdown for a moment at each change of clocks, too.
    passing = not mask & _LASTING and sum(bool(sample & _SLOWDOWN) for sample in sampled) < _STEADY
    settings = [name for bit, name in _SETTINGS.items() if mask & bit]
    evidence = f"clocks event reasons {mask:#x}: {', '.join(faults + settings) or 'none that matters'}"
    evidence += f" (with {len(sampled)} samples under load)" if sampled else " (idle reading)"
    if faults and passing:
        title = f"{gpu.label}: a hardware slowdown of the clocks was seen once"
        yield note(check, title, evidence, f"If it is seen again: {_POWER}")
    elif faults:
        title = f"{gpu.label}: the clocks are held down by {' and '.join(faults)}"
        yield warning(check, title, evidence, _COOL if mask & _HEAT else _POWER)
    elif settings:
        title = f"{gpu.label}: the clocks are limited by {' and '.join(settings)}"
        yield note(check, title, evidence, "No fault; `nvidia-smi -q -d CLOCK,POWER` shows the settings.")
    else:
        yield passed(check, f"{gpu.label}: nothing holds the clocks down", evidence)


def _remap(gpu: GpuEvidence) -> Iterator[Finding]:
    check, pending, failed = "row-remap", gpu.health.remap_pending, gpu.health.remap_failed
    if failed.value:
        title = f"{gpu.label}: a memory row could not be remapped"
        yield error(check, title, f"{failed.source}: remapping failure occurred", _RMA)
    if pending.value:
        title = f"{gpu.label}: a memory row waits to be remapped"
        yield warning(check, title, f"{pending.source}: remapping pending", _RESET.replace("UUID", gpu.id))
    if pending.value == 0 and failed.value == 0:
        yield passed(check, f"{gpu.label}: no memory row waits to be remapped")
    elif pending.value is None and failed.value is None and gpu.health.retired_pending.value is None:
        readings = (pending, failed, gpu.health.retired_pending)
        yield unread(check, f"{gpu.label}: row remapping and page retirement", readings)


def _retired(gpu: GpuEvidence) -> Iterator[Finding]:
    """Cards before Ampere retire pages instead of remapping rows."""
    check, pending = "retired-pages", gpu.health.retired_pending
    if pending.value:
        title = f"{gpu.label}: memory pages wait to be retired"
        yield warning(check, title, f"{pending.source}: retirement pending", _RESET.replace("UUID", gpu.id))


def _ecc(gpu: GpuEvidence) -> Iterator[Finding]:
    check, now, later = "ecc", gpu.health.ecc_now, gpu.health.ecc_pending
    if now.value is None:
        yield unread(check, f"{gpu.label}: whether ECC is on", (now,), "Consumer cards have none or do not tell.")
    elif later.value is not None and later.value != now.value:
        title = f"{gpu.label}: ECC is {_on(now.value)} and will be {_on(later.value)} after a reset"
        yield note(check, title, f"{now.source}: now {now.value}, pending {later.value}", _RESET)
    elif not now.value:
        title = f"{gpu.label}: ECC is off: memory errors stay unnoticed"
        yield note(check, title, now.source, "`nvidia-smi -e 1 -i UUID` as root and a reset switch it on.")
    else:
        yield passed(check, f"{gpu.label}: ECC is on")


def _on(mode: int) -> str:
    return "on" if mode else "off"
