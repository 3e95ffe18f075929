"""A Topology from the text of `nvidia-smi topo -m` or `-mp`, read offline from whatever it was pasted into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import PAIR_KIND, Device, DeviceKind, Host, Nic, Pair, Topology
from topology.probe.smi_check import check
from topology.probe.smi_lines import ASKED, failure
from topology.probe.smi_text import read_matrices, recognises

if TYPE_CHECKING:
    from topology.probe.smi_check import Checked
    from topology.probe.smi_text import SmiMatrix

__all__ = ["parse_smi", "parse_smi_matrices", "recognises"]

SOURCE: Final = "nvidia-smi topo text"
_UNKNOWN: Final = "the text tells no names, memory, CPUs or PCI addresses; they stay unknown"


def parse_smi(text: str, *, host: str) -> Topology:
    """Read the one matrix of the text as the topology of `host`.

    Raises:
        TopologyError: as `parse_smi_matrices`, and if there are several matrices.

    """
    found = parse_smi_matrices(text, host=host)
    if len(found) > 1:
        lines = ", ".join(str(matrix.line) for matrix in read_matrices(text))
        raise TopologyError(
            asked=ASKED,
            found=f"{len(found)} matrices, with headers at lines {lines}",
            remedy="keep the one that holds",
        )
    return found[0]


def parse_smi_matrices(text: str, *, host: str) -> tuple[Topology, ...]:
    """Read every matrix of the text, each as a topology of `host`, such as one before and one after a change.

    GPUs get the ids `HOST/gpuN`, NICs `HOST/NAME`. The labels between GPUs and NICs are checked but have no place
    in a Topology; `smi_text.read_matrices` gives them.

    Raises:
        TopologyError: if there is no matrix, or one is cut, damaged, contradictory or not NVIDIA's.

    """
    matrices = read_matrices(text)
    checked = [check(matrix) for matrix in matrices]
    problems = [problem for result in checked for problem in result.problems]
    problems += [problem for matrix in matrices for problem in _same_nics(matrix)]
    if problems:
        raise failure(problems)
    return tuple(_topology(matrix, result, host) for matrix, result in zip(matrices, checked, strict=True))


def _same_nics(matrix: SmiMatrix) -> list[str]:
    names = list(_nic_names(matrix).values())
    doubles = sorted({name for name in names if names.count(name) > 1})
    return [f"line {matrix.line}: two NICs of this matrix have the name {name}" for name in doubles]


def _nic_names(matrix: SmiMatrix) -> dict[int, str]:
    legend, gpus = dict(matrix.nic_names), set(matrix.gpus)
    return {at: legend.get(name, name) for at, name in enumerate(matrix.names) if at not in gpus}


def _topology(matrix: SmiMatrix, checked: Checked, host: str) -> Topology:
    ids = {at: f"{host}/{matrix.names[at].lower()}" for at in matrix.gpus}
    labels = {pair: label for pair, label in checked.labels.items() if pair[0] in ids and pair[1] in ids}
    unheld = [
        f"{matrix.names[a]} - {matrix.names[b]}: {label} has no place in a topology; the pair is left out"
        for (a, b), label in labels.items()
        if not PAIR_KIND.fullmatch(label)
    ]
    pairs = [Pair(a=ids[a], b=ids[b], kind=kind) for (a, b), kind in labels.items() if PAIR_KIND.fullmatch(kind)]
    nics = [Nic(id=f"{host}/{name}", name=name, kind="unknown") for name in _nic_names(matrix).values()]
    devices = tuple(_device(matrix, at, name, host) for at, name in ids.items())
    return Topology(
        hosts=(Host(name=host, memory_bytes=None, cores=None, devices=devices, nics=tuple(nics)),),
        pairs=tuple(pairs),
        warnings=(_UNKNOWN, *matrix.notes, *checked.warnings, *unheld),
        source=SOURCE,
    )


def _device(matrix: SmiMatrix, at: int, name: str, host: str) -> Device:
    return Device(
        id=name,
        host=host,
        kind=DeviceKind.gpu,
        name="unknown GPU",
        memory_bytes=None,
        numa=matrix.numa[at],
        index=int(matrix.names[at].removeprefix("GPU")),
    )
