"""One host as `nvidia-smi topo -m` or `-mp` writes it: for tools that read that text, and to compare machines."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import DeviceKind
from topology.pcie_tree import pcie_labels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.model import Device, Host, Topology

_UNKNOWN: Final = "N/A"
_COLUMNS: Final = ("CPU Affinity", "NUMA Affinity")
_MAX_NAMED: Final = 8
_LEGEND: Final = (
    ("X", "the device itself"),
    ("SYS", "between NUMA nodes, over the link of the processors"),
    ("NODE", "between PCIe host bridges of one NUMA node"),
    ("PHB", "through one PCIe host bridge"),
    ("PXB", "through several PCIe switches, no host bridge"),
    ("PIX", "through one PCIe switch"),
)
_NVLINK: Final = ("NV#", "over that many NVLinks")


def smi_text(topology: Topology, host_name: str | None = None, *, is_pcie_only: bool = False) -> str:
    """Write the matrix of a host: its GPUs by index, its NICs, affinities, and a legend; ends in a newline.

    With `is_pcie_only`, NVLinks are passed over, as by `-mp`. Affinities that are not known read N/A.

    Args:
        topology: what holds the host, with the PCIe tree of its devices.
        host_name: which host; may be left out if there is one.
        is_pcie_only: whether to write PCIe labels only.

    Raises:
        TopologyError: if there is no such host, it has no GPU, or the label of a pair is not known.

    """
    host = _host(topology, host_name)
    gpus = _in_order(host)
    if not gpus:
        raise TopologyError(asked=_asked(host), found="no GPU", remedy="give a host with GPUs")
    names = {device.id: f"GPU{number}" for device, number in gpus}
    names |= {nic.id: f"NIC{at}" for at, nic in enumerate(host.nics)}
    labels = _labels(_alone(topology, host), names, is_pcie_only=is_pcie_only)
    _check_complete(host, names, labels)
    values = {device.id: (device.cpus, device.numa) for device, _ in gpus}
    lines = ["\t".join(["", *names.values(), *_COLUMNS])]
    for one, name in names.items():
        cells = [" X " if one == other else labels[frozenset((one, other))] for other in names]
        tail = [_UNKNOWN if value is None else str(value) for value in values[one]] if one in values else ["", ""]
        lines.append("\t".join([name, *cells, *tail]))
    legend = (*_LEGEND, *(() if is_pcie_only else (_NVLINK,)))
    lines += ["", "Legend:", "", *(f"  {label:<4} = {meaning}" for label, meaning in legend)]
    if host.nics:
        lines += ["", "NIC Legend:", "", *(f"  {names[nic.id]}: {nic.name}" for nic in host.nics)]
    return "\n".join(lines) + "\n"


def _asked(host: Host) -> str:
    return f"the matrix of the host {host.name!r}"


def _host(topology: Topology, name: str | None) -> Host:
    found = [host for host in topology.hosts if name in {None, host.name}]
    if len(found) != 1:
        known = ", ".join(host.name for host in topology.hosts[:_MAX_NAMED])
        more = f" and {len(topology.hosts) - _MAX_NAMED} more" if len(topology.hosts) > _MAX_NAMED else ""
        raise TopologyError(
            asked="the matrix of a host" if name is None else f"the matrix of the host {name!r}",
            found=f"the hosts {known}{more}",
            remedy="name one of them",
        )
    return found[0]


def _in_order(host: Host) -> list[tuple[Device, int]]:
    # By index as nvidia-smi's, if every GPU has one of its own; otherwise as they stand.
    gpus = [device for device in host.devices if device.kind is DeviceKind.gpu]
    indices = {device.index for device in gpus}
    if None in indices or len(indices) < len(gpus):
        return [(device, at) for at, device in enumerate(gpus)]
    return sorted(((device, device.index or 0) for device in gpus), key=lambda item: item[1])


def _alone(topology: Topology, host: Host) -> Topology:
    # One host of a thousand is written in no more time than a lone one.
    switches = tuple(switch for switch in topology.switches if switch.host == host.name)
    ids = {*(device.id for device in host.devices), *(nic.id for nic in host.nics), *(switch.id for switch in switches)}
    return replace(
        topology,
        hosts=(host,),
        switches=switches,
        links=tuple(link for link in topology.links if link.a in ids and link.b in ids),
        pairs=tuple(pair for pair in topology.pairs if pair.a in ids),
    )


def _labels(topology: Topology, ids: Mapping[str, str], *, is_pcie_only: bool) -> dict[frozenset[str], str]:
    pairs = {frozenset((pair.a, pair.b)): pair for pair in topology.pairs if pair.a in ids and pair.b in ids}
    told = {ends: pair.kind for ends, pair in pairs.items() if not (is_pcie_only and pair.is_nvlink)}
    return {**pcie_labels(topology), **told}


def _check_complete(host: Host, names: Mapping[str, str], labels: Mapping[frozenset[str], str]) -> None:
    unknown: Sequence[str] = [
        f"{names[a]} - {names[b]}: no label is known"
        for a, b in combinations(names, 2)
        if frozenset((a, b)) not in labels
    ]
    if unknown:
        more = len(unknown) - _MAX_NAMED
        raise TopologyError(
            asked=_asked(host),
            problems=(*unknown[:_MAX_NAMED], *([f"{more} more pairs"] if more > 0 else [])),
            remedy="give a topology with the PCIe places of all devices and NICs, as a probe of the host finds them",
        )
