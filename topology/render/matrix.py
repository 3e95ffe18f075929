"""The matrix of labels as nvidia-smi's, and the islands at each level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.checks import printable
from topology.judge import NVLINK, islands_at
from topology.pcie_tree import LEVELS, pcie_labels
from topology.render.tables import UNKNOWN, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.model import Topology

_MAX_WIDTH: Final = 120  # of a matrix with columns for NICs: wider ones have NICs as rows only
_MAX_NAME: Final = 8


def matrix_block(one: Topology, names: Mapping[str, str]) -> str:
    """Draw the labels between the GPUs of one host, and to its NICs where they are known."""
    labels = {frozenset((pair.a, pair.b)): pair.kind for pair in one.pairs}
    tree = pcie_labels(one)
    gpus = [gpu.id for gpu in one.gpus]
    placed = {name for ends in tree for name in ends}
    nics = [nic.id for nic in one.nics if nic.id in placed]
    short = _nic_names(one, nics)
    labels = {**tree, **labels}
    full = _rows(gpus + nics, gpus + nics, labels, {**names, **short})
    text = table(full)
    if len(text.split("\n", 1)[0]) > _MAX_WIDTH:
        text = table(_rows(gpus + nics, gpus, labels, {**names, **short}))
    renamed = [f"{short[nic.id]}: {printable(nic.name)}" for nic in one.nics if short.get(nic.id, nic.name) != nic.name]
    return "\n".join([text, *([f"({', '.join(renamed)})"] if renamed else [])])


def _nic_names(one: Topology, nics: Sequence[str]) -> dict[str, str]:
    # As nvidia-smi: NIC0, with a legend, where the names are too long for columns.
    names = {nic.id: nic.name for nic in one.nics if nic.id in nics}
    if all(len(name) <= _MAX_NAME for name in names.values()):
        return names
    return {name: f"NIC{at}" for at, name in enumerate(names)}


def _rows(
    rows: Sequence[str],
    columns: Sequence[str],
    labels: Mapping[frozenset[str], str],
    names: Mapping[str, str],
) -> list[list[str]]:
    body = [
        [names[one], *("X" if one == other else labels.get(frozenset((one, other)), UNKNOWN) for other in columns)]
        for one in rows
    ]
    return [["", *(names[column] for column in columns)], *body]


def island_block(one: Topology, names: Mapping[str, str]) -> str:
    """Tell which GPUs are joined by NVLink, and by what at each farther level; levels that add nothing are left out."""
    before: tuple[tuple[str, ...], ...] = tuple((gpu.id,) for gpu in one.gpus)
    rows = []
    for level in (NVLINK, *LEVELS):
        groups = islands_at(one, level)
        if groups == before:
            continue
        before = groups
        text = " | ".join(" ".join(names[name] for name in group) for group in groups)
        rows.append(["  " + ("NVLink" if level == NVLINK else level), text])
    if not any(pair.is_nvlink for pair in one.pairs):
        rows.insert(0, ["  NVLink", "none, no two devices are joined by it"])
    return "islands\n" + table(rows)
