"""One host as `nvidia-smi topo -m` or `-mp` writes it: for tools that read that text, and to compare machines."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import DeviceKind
from topology.pcie_tree import pcie_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
_LEFT_OUT: Final = "NICs left out, as their places are not known: "
# What a reader of such text takes for a name, a list of CPUs and a number; names of hardware may hold anything.
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_PLAIN_START: Final = re.compile(r"(?!GPU\d)[A-Za-z?]")
_CPU_LIST: Final = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")
_MAX_NAME: Final = 56
_MAX_INDEX: Final = 9_999
_MAX_NUMA: Final = 999_999
_MAX_COLUMNS: Final = 256
_MAX_NVLINKS: Final = 36  # of one GPU


def smi_text(topology: Topology, host_name: str | None = None, *, is_pcie_only: bool = False) -> str:
    """Write the matrix of a host: its GPUs by index, its NICs, affinities, and a legend; ends in a newline.

    With `is_pcie_only`, NVLinks are passed over, as by `-mp`. Affinities that are not known read N/A. NICs whose
    labels are not known have no column; a line below the legend names them. Characters of a name that no such text
    has become question marks.

    Args:
        topology: what holds the host, with the PCIe tree of its devices.
        host_name: which host; may be left out if there is one.
        is_pcie_only: whether to write PCIe labels only.

    Raises:
        TopologyError: if there is no such host, it has no GPU or more devices than such a text has columns, or the
            label of two GPUs is not known.

    """
    host = _host(topology, host_name)
    gpus = _in_order(host)
    if not gpus:
        raise TopologyError(asked=_asked(host), found="no GPU", remedy="give a host with GPUs")
    if any(device.parent is not None for device, _ in gpus):
        found = "MIG slices, for which nvidia-smi's matrix has no rows"
        raise TopologyError(asked=_asked(host), found=found, remedy="save the topology as JSON, which carries them")
    names = {device.id: f"GPU{number}" for device, number in gpus}
    labels = _labels(_alone(topology, host), {*names, *(nic.id for nic in host.nics)}, is_pcie_only=is_pcie_only)
    nic_names = _nic_names(host)
    placed = _placed(host, list(names), labels)
    names |= {nic: f"NIC{at}" for at, nic in enumerate(placed)}
    _check_complete(host, names, labels)
    values = {device.id: (_cpus(device), _numa(device)) for device, _ in gpus}
    lines = ["\t".join(["", *names.values(), *_COLUMNS])]
    for one, name in names.items():
        cells = [" X " if one == other else labels[frozenset((one, other))] for other in names]
        tail = [_UNKNOWN if value is None else str(value) for value in values[one]] if one in values else ["", ""]
        lines.append("\t".join([name, *cells, *tail]))
    legend = (*_LEGEND, *(() if is_pcie_only else (_NVLINK,)))
    lines += ["", "Legend:", "", *(f"  {label:<4} = {meaning}" for label, meaning in legend)]
    if placed:
        lines += ["", "NIC Legend:", "", *(f"  {names[nic]}: {nic_names[nic]}" for nic in placed)]
    left_out = [name for nic, name in nic_names.items() if nic not in placed]
    if left_out:
        lines += ["", _LEFT_OUT + ", ".join(left_out)]
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
    if None in indices or len(indices) < len(gpus) or any((index or 0) > _MAX_INDEX for index in indices):
        return [(device, at) for at, device in enumerate(gpus)]
    return sorted(((device, device.index or 0) for device in gpus), key=lambda item: item[1])


def _nic_names(host: Host) -> dict[str, str]:
    names: dict[str, str] = {}
    taken: set[str] = set()
    for nic in host.nics:
        plain = _ODD.sub("?", nic.name)[:_MAX_NAME]
        plain = plain if _PLAIN_START.match(plain) else f"?{plain}"
        # Different names may look alike once they are plain.
        name = next(text for at in range(len(host.nics)) if (text := f"{plain}.{at}" if at else plain) not in taken)
        taken.add(name)
        names[nic.id] = name
    return names


def _placed(host: Host, gpus: Sequence[str], labels: Mapping[frozenset[str], str]) -> list[str]:
    placed: list[str] = []
    for nic in host.nics:
        if all(frozenset((nic.id, other)) in labels for other in (*gpus, *placed)):
            placed.append(nic.id)
    return placed


def _cpus(device: Device) -> str | None:
    return device.cpus if device.cpus is not None and _CPU_LIST.fullmatch(device.cpus) else None


def _numa(device: Device) -> int | None:
    return device.numa if device.numa is not None and device.numa <= _MAX_NUMA else None


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


def _labels(topology: Topology, ids: Collection[str], *, is_pcie_only: bool) -> dict[frozenset[str], str]:
    pairs = {frozenset((pair.a, pair.b)): pair for pair in topology.pairs if pair.a in ids and pair.b in ids}
    told = {ends: pair.kind for ends, pair in pairs.items() if not (is_pcie_only and pair.is_nvlink)}
    return {**pcie_labels(topology), **told}


def _check_complete(host: Host, names: Mapping[str, str], labels: Mapping[frozenset[str], str]) -> None:
    if len(names) > _MAX_COLUMNS:
        found = f"{len(names)} GPUs and NICs, more than {_MAX_COLUMNS}"
        raise TopologyError(asked=_asked(host), found=found, remedy="save it as JSON")
    for ends, label in labels.items():
        if label[2:].isdecimal() and int(label[2:]) > _MAX_NVLINKS:
            pair = " - ".join(sorted(names.get(end, end) for end in ends))
            found = f"{pair}: {label}, but no GPU has more than {_MAX_NVLINKS} NVLinks"
            raise TopologyError(asked=_asked(host), found=found, remedy="correct the description, or save it as JSON")
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
