"""What is worth telling of the GPUs of a host as a whole: one line for each cause. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.pcie_tree import violations
from topology.probe.gpu_devices import address_of, is_open
from topology.probe.host_parts import kernel_list
from topology.probe.p2p import name_pairs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from topology.probe.readings import GpuReadings, NvmlReadings


def left_out(nvml: NvmlReadings) -> list[str]:
    """Tell the GPUs that are not looked at: beyond the most there can be, or not to be opened."""
    count = nvml.count.value or 0
    notes = [f"the driver counts {count} GPUs: {len(nvml.gpus)} are read"] if count > len(nvml.gpus) else []
    closed: dict[str | None, list[int]] = {}
    for gpu in nvml.gpus:
        if not is_open(gpu):
            closed.setdefault(gpu.uuid.error, []).append(gpu.index)
    for code, indices in closed.items():
        if len(indices) == 1:
            notes.append(f"GPU {indices[0]}: left out, it cannot be opened ({code})")
        else:
            notes.append(f"GPUs {kernel_list(indices)}: left out, they cannot be opened ({code})")
    return notes


def level_notes(
    gpus: Iterable[GpuReadings], levels: Mapping[frozenset[str], str], hidden: Collection[frozenset[str]]
) -> list[str]:
    """Tell levels that no tree has.

    `levels` are the labels of GPU addresses, as `fabric.level_labels` gives them; `hidden` are those that no pair
    shows, since NVLink stands there. The others are judged as pairs.
    """
    index = {address: gpu.index for gpu in gpus if (address := address_of(gpu)) is not None}
    own = (sorted(ends) for ends in levels if index.keys() >= ends)
    labels = {(a, b): levels[frozenset((a, b))] for a, b in own}
    wrong = [(a, b) for a, b in violations(list(index), labels) if frozenset((a, b)) in hidden]
    if not wrong:
        return []
    named = [f"GPU {index[a]} - GPU {index[b]} ({labels[a, b]})" for a, b in wrong]
    told = "farther apart than a way round over other GPUs; no PCIe tree has these levels"
    return [f"{name_pairs(named, len(labels))}: {told}"]
