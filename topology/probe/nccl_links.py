"""GPU links of a topology file: the pairs of its GPUs, and their NVLink, XGMI and C2C bundles."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.link_rates import Rate, assumed_pcie_rate, nvlink_rate
from topology.model import Link
from topology.pcie_tree import told_link
from topology.probe.fabric import Fabric, join
from topology.probe.nccl_pcie import level
from topology.probe.nccl_tree import refusal
from topology.probe.readings import AncestorReadings, GpuReadings, NvlinkReadings
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.probe.nccl_places import Place
    from topology.probe.nccl_tree import Element

_SOURCE: Final = "nccl-xml"
_COUNT_SOURCE: Final = "nccl-xml: NVLink count"
_C2C_SOURCE: Final = "nccl-xml: driver"
# Links of one GPU at most, by the lowest compute capability of the generation (nccl src/graph/xml.cc and its notes on
# the partitions of Rubin, which is 10.7).
_MAX_LINKS: Final = ((107, 36), (90, 18), (80, 12), (70, 6), (60, 4), (0, 0))
_ANY_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS
_SLOWEST_NVLINK: Final = (8, 6)
_TO_GPU, _TO_SWITCH = 0, 2
_SWITCH_CLASS, _CPU_CLASS = "0x068000", "0x068001"  # the latter: POWER9


def join_gpus(gpus: Sequence[Place], names: Sequence[str], host: str) -> Fabric:
    """Label the pairs of the GPUs of one host and bundle their links, by the rules NVML readings are joined by.

    Raises:
        TopologyError: if a GPU has more NVLinks than its generation can have.

    """
    _check_counts(gpus)
    addresses = frozenset(gpu.address for gpu in gpus)
    readings = {gpu.id: _readings(gpu, at, name) for at, (gpu, name) in enumerate(zip(gpus, names, strict=True))}
    ancestors = [
        AncestorReadings(a_index=a, b_index=b, level=_read(level(gpus[a], gpus[b])))
        for a, b in combinations(range(len(gpus)), 2)
    ]
    nvlink = join(readings, ancestors, host, addresses)
    xgmi, warnings = _xgmi(gpus)
    return Fabric(
        links=(*(_told_nvlink(link) for link in nvlink.links), *_cpu_nvlinks(gpus), *xgmi, *_c2c(gpus)),
        pairs=nvlink.pairs,
        switches=nvlink.switches,
        warnings=(*nvlink.warnings, *_absent_ends(gpus, addresses), *warnings),
    )


def _told_nvlink(link: Link) -> Link:
    # What comes after the count is where the rate of one link is from.
    if link.bytes_per_second is not None:
        return replace(link, source=f"{_COUNT_SOURCE};{link.source.partition(';')[2]}")
    if link.assumed_bytes_per_second is not None:
        return link
    slowest = nvlink_rate(compute_capability=_SLOWEST_NVLINK)
    if slowest is None:
        return link
    text = "the slowest NVLink since 2020 (GA102), for each of its links"
    return told_link(link.a, link.b, link.kind, None, _times(slowest, int(link.kind.removeprefix("NV")), text))


def _cpu_nvlinks(gpus: Sequence[Place]) -> list[Link]:
    links = []
    for gpu in gpus:
        count = sum(int(link.attributes["count"]) for link in _links(gpu, "nvlink") if _is_to_cpu(link))
        rate = nvlink_rate(compute_capability=gpu.compute_capability)
        if count:
            known = None if rate is None else rate.bytes_per_second * count
            source = f"{_COUNT_SOURCE}; {'unknown rate' if rate is None else f'table: {rate.source}'}"
            bundle = Link(a=gpu.id, b=gpu.cpu.id, kind=f"NV{count}", bytes_per_second=known, source=source)
            links.append(_told_nvlink(bundle))
    return links


def _times(rate: Rate, count: int, text: str) -> Rate:
    return Rate(bytes_per_second=rate.bytes_per_second * count, source=text, date=rate.date)


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


def _readings(gpu: Place, index: int, name: str) -> GpuReadings:
    text: Reading[str] = Reading(source=_SOURCE, error="NOT_IN_FILE")
    capability = gpu.compute_capability
    return GpuReadings(
        index=index,
        uuid=text,
        name=Reading(source=_SOURCE, value=name),
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
            _nvlink(gpu, link)
            for link in _links(gpu, "nvlink")
            if not _is_to_cpu(link)
            for _ in range(int(link.attributes["count"]))
        ),
    )


def _is_to_cpu(link: Element) -> bool:
    return (link.get("tclass") or "") == _CPU_CLASS


def _nvlink(gpu: Place, link: Element) -> NvlinkReadings:
    # Some virtual machines show each link ending at its own GPU: its far end is unknown.
    target = normal_pci(link.attributes["target"])
    towards, kind = target if target != gpu.address else None, _absent()
    tclass = (link.get("tclass") or "").lower()
    if tclass == _SWITCH_CLASS or link.attributes["target"].lower().startswith("ffff"):
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
            links.append(_xgmi_link(a.id, b.id, min(there, back)))
        if there != back:
            warnings.append(f"GPU {a.address} and GPU {b.address}: {there} and {back} XGMI links towards each other")
    lost = [f"{a} to {b}" for a, b in counts if (a, b) not in used]
    if lost:
        warnings.append(f"XGMI links with an unknown far end are not counted: {', '.join(lost[:16])}")
    if links:
        warnings.append(f"{len(links)} GPU pairs have XGMI links; their pair kinds name the PCIe way all the same")
    return links, warnings


def _xgmi_link(a: str, b: str, count: int) -> Link:
    text = "no less than PCIe Gen3 x16, for each of its links"
    return told_link(a, b, f"XGMI{count}", None, _times(assumed_pcie_rate(), count, text))


def _c2c(gpus: Sequence[Place]) -> list[Link]:
    # The coherent link of a GPU to its CPU (Grace): the file has MB/s of one link and their count.
    links = []
    for gpu in gpus:
        for link in _links(gpu, "c2c"):
            rate = int(link.get("bw") or 0) * int(link.get("count") or 0) * 1e6
            if rate > 0:
                links.append(Link(a=gpu.id, b=gpu.cpu.id, kind="C2C", bytes_per_second=rate, source=_C2C_SOURCE))
            else:
                assumed = _times(assumed_pcie_rate(), 1, "no less than PCIe Gen3 x16")
                links.append(told_link(gpu.id, gpu.cpu.id, "C2C", None, assumed))
    return links
