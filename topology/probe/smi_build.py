"""What a Topology holds of one matrix: devices, NICs, pairs, NVLinks, and the PCIe tree its labels make."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.hardware import peak
from topology.model import PAIR_KIND, Device, DeviceKind, Host, Nic, Pair, Topology
from topology.pcie_tree import LEVELS, Member, PcieTree, tree_from_labels
from topology.probe.smi_check import check
from topology.probe.smi_clean import failure
from topology.probe.smi_links import nvlinks
from topology.probe.smi_names import GpuFact, gpu_facts
from topology.probe.smi_text import read_matrices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from topology.probe.smi_check import Checked
    from topology.probe.smi_several import Chosen
    from topology.probe.smi_text import SmiMatrix

# Ids that devices and switches of a host have; a NIC may have any name.
_TAKEN: Final = re.compile(r"(?:cpu|gpu|bridge)\d+|pcie\d+(?:\.up)?|node[\d?]\S*|nvswitch\d*")
_LEFT_OUT: Final = re.compile(
    r"^\W{0,16}(NICs left out, as their places are not known: \S[^\r\n]{0,400})", re.MULTILINE
)
SOURCE: Final = "nvidia-smi topo text"
UNKNOWN_GPU: Final = "unknown GPU"
_UNKNOWN: Final = "the text tells no names, memory or PCI addresses; they stay unknown"


def checked(text: str, numbers: Sequence[int] | None = None) -> tuple[SmiMatrix, ...]:
    """Read the matrices of a text, all of them true of some machine.

    Raises:
        TopologyError: if one is not; each problem names its line.

    """
    matrices = read_matrices(text, numbers)
    problems = [problem for matrix in matrices for problem in check(matrix).problems]
    problems += [problem for matrix in matrices for problem in _same_nics(matrix)]
    if problems:
        raise failure(problems)
    return matrices


def _same_nics(matrix: SmiMatrix) -> list[str]:
    names = list(_nic_names(matrix).values())
    doubles = sorted({name for name in names if names.count(name) > 1})
    return [f"line {matrix.line}: two NICs of this matrix have the name {name}" for name in doubles]


def _nic_names(matrix: SmiMatrix) -> dict[int, str]:
    legend, gpus = dict(matrix.nic_names), set(matrix.gpus)
    return {at: legend.get(name, name) for at, name in enumerate(matrix.names) if at not in gpus}


def _nic_id(host: str, name: str) -> str:
    return f"{host}/{name} (NIC)" if _TAKEN.fullmatch(name) else f"{host}/{name}"


def _index(matrix: SmiMatrix, at: int) -> int:
    return int(matrix.names[at].removeprefix("GPU"))


def built(chosen: Chosen, text: str, host: str) -> Topology:
    """Make the topology of a matrix, with what the text beside it says of the GPUs."""
    matrix, seen = chosen.matrix, check(chosen.matrix)
    facts, unclear = gpu_facts(text, [_index(matrix, at) for at in matrix.gpus])
    devices = tuple(_device(matrix, at, facts.get(_index(matrix, at), GpuFact()), host) for at in matrix.gpus)
    nics = {
        at: Nic(id=_nic_id(host, name), name=name, kind="unknown", numa=matrix.numa[at])
        for at, name in _nic_names(matrix).items()
    }
    ids = {at: device.id for at, device in zip(matrix.gpus, devices, strict=True)}
    between = {(ids[a], ids[b]): label for (a, b), label in seen.labels.items() if a in ids and b in ids}
    counts = {pair: int(label[2:]) for pair, label in between.items() if label[2:].isdecimal()}
    names = {device.id: device.name for device in devices if device.name != UNKNOWN_GPU}
    switches, links, odd = nvlinks(host, counts, names)
    places = seen.labels if chosen.places is None else check(chosen.places).labels
    tree = _tree(host, devices, nics, ids, places)
    told = (
        *_of_names(devices, facts),
        *unclear,
        *chosen.warnings,
        *matrix.notes,
        *seen.warnings,
        *_unheld(matrix, seen),
        *odd,
        *(found[1].strip() for found in _LEFT_OUT.finditer(text)),
        *tree.warnings,
    )
    return Topology(
        hosts=(Host(name=host, memory_bytes=None, cores=None, devices=devices, nics=tuple(nics.values())),),
        links=(*tree.links, *links),
        pairs=tuple(Pair(a=a, b=b, kind=kind) for (a, b), kind in between.items() if PAIR_KIND.fullmatch(kind)),
        switches=(*tree.switches, *switches),
        warnings=tuple(dict.fromkeys(told)),
        source=SOURCE,
    )


def _tree(
    host: str,
    devices: Sequence[Device],
    nics: Mapping[int, Nic],
    gpu_ids: Mapping[int, str],
    labels: Mapping[tuple[int, int], str],
) -> PcieTree:
    ids = {**gpu_ids, **{at: nic.id for at, nic in nics.items()}}
    members = [
        *(Member(id=device.id, numa=device.numa) for device in devices),
        *(Member(id=nic.id, numa=nic.numa) for nic in nics.values()),
    ]
    told = {(ids[a], ids[b]): label for (a, b), label in labels.items() if label in LEVELS}
    return tree_from_labels(host, members, told)


def _unheld(matrix: SmiMatrix, seen: Checked) -> Iterable[str]:
    gpus = set(matrix.gpus)
    for (a, b), label in seen.labels.items():
        if a in gpus and b in gpus and not PAIR_KIND.fullmatch(label):
            yield f"{matrix.names[a]} - {matrix.names[b]}: {label} has no place in a topology; the pair is left out"


def _device(matrix: SmiMatrix, at: int, fact: GpuFact, host: str) -> Device:
    known = peak(fact.name) if fact.name is not None and fact.memory_bytes is None else None
    return Device(
        id=fact.uuid or f"{host}/{matrix.names[at].lower()}",
        host=host,
        kind=DeviceKind.gpu,
        name=fact.name or UNKNOWN_GPU,
        memory_bytes=known.memory_bytes if known is not None else fact.memory_bytes,
        numa=matrix.numa[at],
        pci=fact.pci,
        uuid=fact.uuid,
        index=_index(matrix, at),
        mig=fact.mig,
        cpus=matrix.cpus[at],
    )


def _of_names(devices: Sequence[Device], facts: Mapping[int, GpuFact]) -> Iterable[str]:
    if all(device.name == UNKNOWN_GPU for device in devices):
        yield _UNKNOWN
        return
    yield "names of the GPUs are those the text lists beside the matrix"
    tabled = {device.name for device in devices if facts[device.index or 0].memory_bytes is None}
    for name in sorted(tabled - {UNKNOWN_GPU}):
        if peak(name) is not None:
            yield f"{name}: the text tells no memory; its nominal size is taken from a table"
