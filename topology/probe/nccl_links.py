"""Links of a topology file: PCIe rates, and the pairs, NVLink and XGMI bundles of its GPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.model import Link
from topology.probe.fabric import Fabric, join
from topology.probe.nccl_places import Place, Places, Role
from topology.probe.nccl_tree import refusal
from topology.probe.readings import AncestorReadings, GpuReadings, NvlinkReadings
from topology.reading import Reading
from topology.units import GB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.probe.nccl_tree import Element

NO_RATE: Final = "none: the file tells no rate"
_SOURCE: Final = "nccl-xml"
_NVLINK_SOURCE: Final = "nccl-xml: NVLink count; table: advertised rate of one link by chip generation"
# GB/s of one lane in one direction after line coding: 8b/10b, 128b/130b, from 64 GT/s 236 of 256 bytes of a flit
# (PCI Express base specifications 1.1 to 6.0). Packet headers take some 10-20% more. 2.5 GT/s is absent on purpose:
# no GPU or network adapter of a training machine has it, while bridges of virtual machines and idle links report it.
_LANE_GB: Final[Mapping[float, float]] = {
    5.0: 0.5,
    8.0: 8 * 128 / 130 / 8,
    16.0: 16 * 128 / 130 / 8,
    32.0: 32 * 128 / 130 / 8,
    64.0: 64 * 236 / 256 / 8,
}
_WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
_GEN1: Final = 2.5
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?GT/s")
# Links of one GPU at most, by the lowest compute capability of the generation (nccl src/graph/xml.cc).
_MAX_LINKS: Final = ((90, 18), (80, 12), (70, 6), (60, 4), (0, 0))
_ANY_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS
_TO_GPU, _TO_SWITCH = 0, 2
_PIX, _PXB, _PHB, _NODE, _SYS = 10, 20, 30, 40, 50


def pci_bytes_per_second(pci: Element) -> float | None:
    """Return the capacity of the link above a function, per direction; None where speed or width is no fact."""
    width = int(pci.get("link_width") or 0)
    lane = _LANE_GB.get(_gigatransfers(pci) or 0)
    return None if lane is None or width not in _WIDTHS else lane * width * GB


def _gigatransfers(pci: Element) -> float | None:
    # "8 GT/s" of kernels up to 5.6, "16.0 GT/s PCIe" of later ones, "" or "Unknown" where there is no reading.
    found = _SPEED.match(pci.get("link_speed") or "")
    return float(found[1]) if found else None


def pci_warnings(places: Places) -> list[str]:
    """Tell of links whose capacity stays unknown."""
    linked = [place for place in places.all if place.role in {Role.gpu, Role.nic, Role.switch}]
    slow = [place.address for place in linked if _gigatransfers(place.element) == _GEN1]
    unknown = [place.address for place in linked if pci_bytes_per_second(place.element) is None]
    rest = [address for address in unknown if address not in set(slow)]
    warnings = []
    if slow:
        text = "PCIe link(s) report 2.5 GT/s, as virtual machines and idle links do; their capacity is unknown"
        warnings.append(f"{len(slow)} {text}: {', '.join(slow[:16])}")
    if rest:
        warnings.append(f"the capacity of {len(rest)} PCIe link(s) is unknown: {', '.join(rest[:16])}")
    return warnings


def join_gpus(gpus: Sequence[Place], places: Places, host: str) -> Fabric:
    """Label the pairs of the GPUs and bundle their links, by the rules NVML readings are joined by.

    Raises:
        TopologyError: if a GPU has more NVLinks than its generation can have.

    """
    _check_counts(gpus)
    addresses = frozenset(gpu.address for gpu in gpus)
    readings = {gpu.id: _readings(gpu, at) for at, gpu in enumerate(gpus)}
    ancestors = [
        AncestorReadings(a_index=a, b_index=b, level=_read(_level(gpus[a], gpus[b])))
        for a, b in combinations(range(len(gpus)), 2)
    ]
    nvlink = join(readings, ancestors, host, addresses)
    xgmi, warnings = _xgmi(gpus)
    peers, notes = _switch_peers(places)
    return Fabric(
        links=(*(replace(link, source=_NVLINK_SOURCE) for link in nvlink.links), *xgmi, *_c2c(gpus), *peers),
        pairs=nvlink.pairs,
        switches=nvlink.switches,
        warnings=(*nvlink.warnings, *_absent_ends(gpus, addresses), *warnings, *notes),
    )


def _level(a: Place, b: Place) -> int:
    # nvidia-smi's words. The file has no host bridges: two functions on one bus certainly share theirs (PHB); for
    # other roots of one NUMA node the longer way (NODE) holds.
    if a.cpu != b.cpu:
        return _SYS
    shared = sum(1 for x, y in zip(a.path, b.path, strict=False) if x == y)
    if shared:
        return _PIX if len(a.path) == len(b.path) == shared else _PXB
    buses = {place.top.rsplit(":", 1)[0] for place in (a, b)}
    # Written files give switches that have no address one of domain ffff: that is no bus.
    return _PHB if len(buses) == 1 and not a.top.startswith("ffff:") else _NODE


def _links(gpu: Place, tag: str) -> list[Element]:
    return [] if gpu.gpu is None else list(gpu.gpu.inside(tag))


def _check_counts(gpus: Sequence[Place]) -> None:
    problems = []
    for gpu in gpus:
        capability = gpu.compute_capability
        sm = None if capability is None else capability[0] * 10 + capability[1]
        limit = _ANY_LINKS if sm is None else next(most for least, most in _MAX_LINKS if sm >= least)
        total = sum(int(link.attributes["count"]) for link in _links(gpu, "nvlink"))
        if total > limit:
            chip = "a GPU" if sm is None else f"a GPU of sm {sm}"
            problems.append(f"line {gpu.element.line}: {total} NVLinks on {gpu.address}; {chip} has at most {limit}")
        if sum(int(link.attributes["count"]) for link in _links(gpu, "xgmi")) > _ANY_LINKS:
            problems.append(f"line {gpu.element.line}: more than {_ANY_LINKS} XGMI links on {gpu.address}")
    if problems:
        raise refusal(*problems)


def _read(value: int) -> Reading[int]:
    return Reading(source=_SOURCE, value=value)


def _absent(code: str = "NOT_IN_FILE") -> Reading[int]:
    return Reading(source=_SOURCE, error=code)


def _readings(gpu: Place, index: int) -> GpuReadings:
    text: Reading[str] = Reading(source=_SOURCE, error="NOT_IN_FILE")
    capability = gpu.compute_capability
    return GpuReadings(
        index=index,
        uuid=text,
        name=text,
        pci=Reading(source=_SOURCE, value=gpu.address),
        memory_total_bytes=_absent(),
        memory_free_bytes=_absent(),
        compute_capability=Reading(
            source=_SOURCE,
            value=capability,
            error="NOT_IN_FILE" if capability is None else None,
        ),
        numa=_absent(),
        cpus=Reading(source=_SOURCE, error="NOT_IN_FILE"),
        nvlinks=tuple(
            _nvlink(gpu, link) for link in _links(gpu, "nvlink") for _ in range(int(link.attributes["count"]))
        ),
    )


def _nvlink(gpu: Place, link: Element) -> NvlinkReadings:
    # Some virtual machines show each link ending at its own GPU: its far end is unknown.
    target = normal_pci(link.attributes["target"])
    towards, kind = target if target != gpu.address else None, _absent()
    tclass = (link.get("tclass") or "").lower()
    if tclass == "0x068000" or link.attributes["target"].lower().startswith("ffff"):
        kind = _read(_TO_SWITCH)
    elif tclass.startswith("0x03") and towards is not None:
        kind = _read(_TO_GPU)
    remote = Reading(source=_SOURCE, value=towards, error=None if towards is not None else "UNKNOWN_END")
    return NvlinkReadings(link=0, state=_read(1), version=_absent(), remote_pci=remote, remote_type=kind)


def _absent_ends(gpus: Sequence[Place], addresses: frozenset[str]) -> list[str]:
    silent = [gpu.address for gpu in gpus if gpu.gpu is None]
    text = "GPU(s) are given by their PCI class alone; NVLinks, if any, are not in the file"
    warnings = [f"{len(silent)} {text}: {', '.join(silent[:16])}"] if silent else []
    for gpu in gpus:
        links = [link for link in _links(gpu, "nvlink") if (link.get("tclass") or "").startswith("0x03")]
        ends = {link.attributes["target"] for link in links} - {gpu.element.attributes["busid"]}
        gone = sorted(end for end in ends if normal_pci(end) not in addresses)
        if gone:
            warnings.append(f"GPU {gpu.address}: NVLinks to GPUs that are not in the file: {', '.join(gone)}")
    return warnings


def _xgmi(gpus: Sequence[Place]) -> tuple[list[Link], list[str]]:
    counts: dict[tuple[str, str], int] = {}
    for gpu in gpus:
        for link in _links(gpu, "xgmi"):
            key = (gpu.address, normal_pci(link.attributes["target"]) or link.attributes["target"])
            counts[key] = counts.get(key, 0) + int(link.attributes["count"])
    links, warnings, used = [], [], set()
    for a, b in combinations(gpus, 2):
        both = ((a.address, b.address), (b.address, a.address))
        there, back = (counts.get(key, 0) for key in both)
        used |= set(both)
        if min(there, back):
            links.append(Link(a=a.id, b=b.id, kind=f"XGMI{min(there, back)}", source=NO_RATE))
        if there != back:
            warnings.append(f"GPU {a.address} and GPU {b.address}: {there} and {back} XGMI links towards each other")
    lost = [f"{a} to {b}" for a, b in counts if (a, b) not in used]
    if lost:
        warnings.append(f"XGMI links with an unknown far end are not counted: {', '.join(lost[:16])}")
    if links:
        warnings.append(f"{len(links)} GPU pairs have XGMI links; their pair kinds name the PCIe way all the same")
    return links, warnings


def _c2c(gpus: Sequence[Place]) -> list[Link]:
    # The coherent link of a GPU to its CPU (Grace): the file has MB/s of one link and their count.
    links = []
    for gpu in gpus:
        for link in _links(gpu, "c2c"):
            rate = int(link.get("bw") or 0) * int(link.get("count") or 0) * 1e6
            known = rate if rate > 0 else None
            links.append(Link(a=gpu.id, b=gpu.cpu.id, kind="C2C", bytes_per_second=known, source="nccl-xml: driver"))
    return links


def _switch_peers(places: Places) -> tuple[list[Link], list[str]]:
    # `pcilink`: two PCI switches of one physical chip, joined beside the tree.
    switches = {place.address: place for place in places.of(Role.switch)}
    links: dict[frozenset[str], Link] = {}
    lost = []
    for place in switches.values():
        for link in place.element.inside("pcilink"):
            other = switches.get(normal_pci(link.attributes["target"]) or "")
            if other is None or other is place:
                lost.append(f"{place.address} to {link.attributes['target']}")
                continue
            ends = frozenset((place.id, other.id))
            links.setdefault(ends, Link(a=place.id, b=other.id, kind="PCIe peer", source=NO_RATE))
    return list(links.values()), [f"pcilink without its other switch: {', '.join(lost[:16])}"] if lost else []
