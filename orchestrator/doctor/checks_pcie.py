"""The PCIe link of each GPU, judged only by what was seen while data was copied over it.

An idle GPU lets its link fall back to 2.5 GT/s, so an idle reading says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.doctor.evidence import GpuEvidence, LoadEvidence, MachineEvidence, NoLoad
from orchestrator.doctor.finding import Finding, error, note, passed, unread, warning
from topology.link_rates import pcie_rate
from topology.reading import Reading
from topology.units import format_rate

_SAMPLES: Final = 3  # fewer could all fall into a moment without traffic
# Packet headers leave 80-90% of the link to the data. A copy below this share waits for something else.
_SLOW: Final = 0.6
# Measured above the rate of the link it should be running on, beyond what a clock can err.
_IMPOSSIBLE: Final = 1.05
_THIRD: Final = 1 / 3  # below it, no tuning elsewhere makes up for the link
_CHECK: Final = "pcie-link"


def check_pcie(machine: MachineEvidence, loads: tuple[LoadEvidence, ...]) -> tuple[Finding, ...]:
    """Compare each link under load with what card and slot can do, and the measured rate with the link's."""
    by_gpu = {load.gpu: load for load in loads}
    found = [item for gpu in machine.gpus for item in _gpu(gpu, by_gpu.get(gpu.id), machine.is_virtual)]
    return tuple(found)


def _gpu(gpu: GpuEvidence, load: LoadEvidence | None, is_virtual: Reading[bool]) -> Iterator[Finding]:
    if not is_virtual.value:  # a hypervisor makes up what its bridges can do
        yield from _slot(gpu)
    if load is None or load.failure is not None:
        why = load.failure if load is not None and load.failure else "no load was put on it"
        remedy = _HELP.get(load.kind, "") if load is not None and load.kind is not None else ""
        yield note(_CHECK, f"{gpu.label}: the PCIe link was not measured", why, remedy)
    elif min(len(load.generations), len(load.widths)) < _SAMPLES:
        yield note(
            _CHECK,
            f"{gpu.label}: too few samples of the PCIe link under load to judge it",
            f"{len(load.generations)} of the generation, {len(load.widths)} of the width; {_measured(load)}",
        )
    else:
        yield from _under_load(gpu, load, is_virtual)


def _slot(gpu: GpuEvidence) -> Iterator[Finding]:
    """What the slot takes from the card: nothing to repair, but a reason for a slow machine."""
    card = _link(gpu.pcie.card_generation, gpu.pcie.card_width)
    slot = _link(gpu.pcie.slot_generation, gpu.pcie.slot_width)
    both = pcie_rate(*card), pcie_rate(*slot)
    if both[0] and both[1] and both[1].bytes_per_second < both[0].bytes_per_second:
        yield note(
            "pcie-slot",
            f"{gpu.label}: the slot is slower than the card",
            f"card {_text(card)}, slot {_text(slot)} at most",
            "Move the card to a wider or faster slot if the board has one (see its manual for shared lanes).",
        )


def _under_load(gpu: GpuEvidence, load: LoadEvidence, is_virtual: Reading[bool]) -> Iterator[Finding]:
    pcie = gpu.pcie
    able = _least(pcie.card_generation, pcie.slot_generation), _least(pcie.card_width, pcie.slot_width)
    seen = max(load.generations), max(load.widths)
    able_rate, seen_rate = pcie_rate(*able), pcie_rate(*seen)
    evidence = f"under load {_text(seen)}, possible {_text(able)}, {_measured(load)}"
    measured = load.bytes_per_second
    if able_rate is None or seen_rate is None:
        readings = (pcie.card_generation, pcie.card_width, pcie.slot_generation, pcie.slot_width)
        yield unread(_CHECK, f"{gpu.label}: what its PCIe link can do; {evidence}", readings)
    elif measured is not None and measured > _IMPOSSIBLE * seen_rate.bytes_per_second:
        title = f"{gpu.label}: data moved faster than the PCIe link it reports; the report is wrong"
        yield note(_CHECK, title, evidence + _virtual(is_virtual))
    elif seen_rate.bytes_per_second < able_rate.bytes_per_second:
        share = seen_rate.bytes_per_second / able_rate.bytes_per_second
        tell = error if share <= _THIRD else warning
        title = f"{gpu.label}: the PCIe link runs at {_text(seen)} instead of {_text(able)} under load"
        yield tell(_CHECK, title, evidence + _virtual(is_virtual), _RESEAT)
    elif gpu.mig and measured is not None and measured < _SLOW * seen_rate.bytes_per_second:
        title = f"{gpu.label}: its MIG device has a share of the PCIe link, which was not judged"
        yield note(_CHECK, title, evidence)
    elif measured is not None and measured < _SLOW * seen_rate.bytes_per_second:
        title = (
            f"{gpu.label}: copies reach {measured / seen_rate.bytes_per_second:.0%} of its PCIe link "
            f"({format_rate(seen_rate.bytes_per_second)})"
        )
        yield warning(_CHECK, title, evidence + _virtual(is_virtual), _SLOW_COPY)
    else:
        yield passed(_CHECK, f"{gpu.label}: the PCIe link runs at {_text(seen)} under load", evidence)


_AFTER: Final = "Mend what `cuda-start` tells, then run it again."
# Each reason has its own way out; where a finding of another check tells it, none is repeated.
_HELP: Final = {
    NoLoad.SWITCHED_OFF: "Run `trainmaster doctor` without load=false to measure it.",
    NoLoad.HIDDEN: "No fault; to measure it, unset CUDA_VISIBLE_DEVICES or name this GPU in it.",
    NoLoad.UNNAMED: "CUDA can be told to use one GPU by its UUID only; look why the driver does not tell it.",
    NoLoad.UNCUT: "`nvidia-smi mig -cgi PROFILE -C` creates a MIG device; `nvidia-smi -mig 0` switches MIG off.",
    NoLoad.NO_TORCH: "Install a torch built for CUDA: https://pytorch.org/get-started.",
    NoLoad.BUSY: "The GPU is in use: when its jobs have ended (`nvidia-smi` lists them), run it again.",
    NoLoad.NOT_TRIED: f"{_AFTER} If that GPU alone fails, CUDA_VISIBLE_DEVICES can leave it out.",
    NoLoad.TORCH_FAILED: _AFTER,
    NoLoad.CUDA_FAILED: _AFTER,
    NoLoad.COPY_FAILED: _AFTER,
    NoLoad.LATE: _AFTER,
    NoLoad.UNCLEAR: "`python -m orchestrator.doctor.load UUID 1` shows what the load process prints.",
}
_RESEAT: Final = (
    "Reseat the card and its riser or cable, look for another card sharing the slot's lanes and for a fixed link "
    "speed in the BIOS; `lspci -vv` shows LnkSta against LnkCap, dmesg AER messages."
)
_SLOW_COPY: Final = (
    "Look for other jobs on this GPU or its switch, an IOMMU that translates, host memory on another NUMA node "
    "(`numactl --cpunodebind`), and errors on the link (AER messages in dmesg); then measure again."
)


def _link(generation: Reading[int], width: Reading[int]) -> tuple[int | None, int | None]:
    return generation.value, width.value


def _least(card: Reading[int], slot: Reading[int]) -> int | None:
    # A slot that does not tell is taken to be as good as the card: NVML's maximum already knows of most slots.
    values = [reading.value for reading in (card, slot) if reading.value is not None]
    return min(values) if card.value is not None else None


def _text(link: tuple[int | None, int | None]) -> str:
    generation, width = link
    return f"Gen{generation or '?'} x{width or '?'}"


def _measured(load: LoadEvidence) -> str:
    if load.bytes_per_second is None:
        return "rate not measured"
    return f"measured {format_rate(load.bytes_per_second)} host to device"


def _virtual(is_virtual: Reading[bool]) -> str:
    return "; a virtual machine, whose link readings are often made up" if is_virtual.value else ""
