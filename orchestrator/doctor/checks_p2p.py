"""Peer-to-peer between GPUs: what the driver allows, and what on the way turns it aside (ACS, IOMMU).

No remedy here forces P2P: where it is advertised but broken it hangs or corrupts data, so a test with
verification always comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

from orchestrator.doctor.evidence import GpuEvidence, MachineEvidence, PairEvidence, PciEvidence
from orchestrator.doctor.finding import Finding, note, passed, unread, warning
from topology.reading import Reading

# NVML's nvmlGpuP2PStatus_t.
_STATUS: Final = {
    0: "OK",
    1: "CHIPSET_NOT_SUPPORTED",
    2: "GPU_NOT_SUPPORTED",
    3: "IOH_TOPOLOGY_NOT_SUPPORTED",
    4: "DISABLED_BY_REGKEY",
    5: "NOT_SUPPORTED",
    6: "UNKNOWN",
}
_REGKEY, _UNKNOWN = 4, 6
# What the driver says of cards, boards and virtual machines that offer none: no fault (GeForce 30 and 40, L4, L40S).
_UNSUPPORTED: Final = frozenset({1, 2, 5})
_NEAR: Final = 20  # NVML_TOPOLOGY_MULTIPLE: the highest level that crosses no host bridge
_REDIRECT: Final = 0b1100  # ACS control: request and completion redirect (PCI Express base specification 7.7.11)
_SHOWN: Final = 4
_TEST: Final = (
    "Before any change and after it, test with verification: `all_reduce_perf -c 1` of nccl-tests and simpleP2P of "
    "cuda-samples. P2P that is allowed but broken hangs or corrupts data."
)


def check_p2p(machine: MachineEvidence, pci: PciEvidence) -> tuple[Finding, ...]:
    """Judge P2P status, ACS redirection and IOMMU translation; one GPU alone has no peer."""
    gpus = tuple(gpu for gpu in machine.gpus if gpu.is_visible and gpu.lost is None)
    if len(gpus) < 2:  # noqa: PLR2004 - a peer takes two
        return ()
    return (*_status(machine), *_acs(gpus, pci), *_iommu(gpus, pci, is_virtual=machine.is_virtual.value))


def _status(machine: MachineEvidence) -> Iterator[Finding]:
    check, gpus = "p2p", {gpu.id: gpu for gpu in machine.gpus}
    labels = {key: gpu.label for key, gpu in gpus.items()}
    # A status of its own says that the driver does not know.
    known = [pair for pair in machine.pairs if pair.p2p.value not in {None, _UNKNOWN}]
    blind = [pair for pair in machine.pairs if pair not in known]
    if blind or not machine.pairs:
        codes: list[Reading[int]] = [
            Reading(source=pair.p2p.source, error=pair.p2p.error or "STATUS_UNKNOWN") for pair in blind
        ]
        yield unread(check, f"P2P status of {len(blind) or 'all'} pair(s) of GPUs", codes)
    placed = [pair for pair in known if pair.is_linked is not None and pair.level.value is not None]
    working = {_kind(pair, gpus) for pair in placed if pair.p2p.value == 0}
    off = [pair for pair in known if pair.p2p.value]
    switched_off = [pair for pair in off if pair.p2p.value == _REGKEY]
    odd = [pair for pair in off if pair not in switched_off and _kind(pair, gpus) in working]
    broken = [pair for pair in off if pair not in [*switched_off, *odd] and _is_fault(pair)]
    plain = [pair for pair in off if pair not in [*switched_off, *odd, *broken]]
    if switched_off:
        title = "P2P is switched off by a setting of the driver"
        remedy = f"Look for a registry key in `/proc/driver/nvidia/params` and /etc/modprobe.d. {_TEST}"
        yield warning(check, title, _pairs(switched_off, labels), remedy)
    if odd:
        title = "P2P is off for some pairs of GPUs and works for others of the same kind"
        remedy = (
            f"Compare their slots, ports (`lspci -tv`) and links, and reset the GPUs that all of them share. {_TEST}"
        )
        yield warning(check, title, _pairs(odd, labels), remedy)
    if broken:
        title = "P2P is off between GPUs that share a PCIe switch or have NVLink"
        remedy = f"In a virtual machine look at how the GPUs are passed through; `nvidia-smi nvlink -s`. {_TEST}"
        yield warning(check, title, _pairs(broken, labels), remedy)
    if plain:
        title = f"P2P is not supported here for {len(plain)} pair(s): NCCL goes through host memory"
        yield note(check, title, _pairs(plain, labels), "Nothing to repair: plans count with the slower way.")
    if known and not off:
        yield passed(check, f"P2P works for the driver in all {len(known)} pair(s)")


def _kind(pair: PairEvidence, gpus: Mapping[str, GpuEvidence]) -> tuple[object, ...]:
    """Pairs of one kind are of the same cards, as near to each other, and joined by NVLink or not."""
    names = sorted(gpus[end].name if end in gpus else end for end in (pair.a, pair.b))
    return (*names, pair.level.value, pair.is_linked)


def _is_fault(pair: PairEvidence) -> bool:
    """NVLink promises P2P, whatever the status; between near GPUs the I/O hub is no excuse."""
    near = pair.level.value is not None and pair.level.value <= _NEAR
    return pair.is_linked is True or (near and pair.p2p.value not in _UNSUPPORTED)


def _pairs(pairs: list[PairEvidence], labels: dict[str, str]) -> str:
    shown = [
        f"{labels.get(pair.a, pair.a)} - {labels.get(pair.b, pair.b)}: "
        f"{_STATUS.get(pair.p2p.value or 0, str(pair.p2p.value))}"
        for pair in pairs[:_SHOWN]
    ]
    more = f"; and {len(pairs) - _SHOWN} more pair(s)" if len(pairs) > _SHOWN else ""
    return "; ".join(shown) + more


def _acs(gpus: tuple[GpuEvidence, ...], pci: PciEvidence) -> Iterator[Finding]:
    check = "acs"
    between = _ports_between(gpus)
    ports = [bridge for bridge in pci.bridges if bridge.address in between]
    unplaced = [gpu.bridges for gpu in gpus if gpu.bridges.value is None]
    if unplaced:
        yield unread(check, f"the PCIe ports above {len(unplaced)} GPU(s)", unplaced)
    if not between and unplaced:
        return
    if not between:
        yield passed(check, "no two GPUs share a PCIe switch, so ACS turns nothing aside")
        return
    suspects = [
        bridge.address
        for bridge in ports
        if bridge.acs_control.value is not None and bridge.acs_control.value & _REDIRECT
    ]
    unknown = [bridge.acs_control for bridge in ports if bridge.acs_control.error not in {None, "NO_ACS"}]
    if suspects:
        remedy = (
            "On bare metal without virtual machines switch ACS off (BIOS, or setpci on these ports at every boot); "
            f"keep it where GPUs are passed to virtual machines. {_TEST}"
        )
        title = "ACS sends P2P between GPUs of one PCIe switch up to the CPU"
        yield warning(check, title, f"request or completion redirect on {', '.join(suspects)}", remedy)
    if unknown:
        remedy = "Run it as root: others may read only the first 64 bytes of a port's configuration."
        yield unread(check, f"ACS of {len(unknown)} PCIe port(s) between GPUs", unknown, remedy)
    elif not suspects:
        yield passed(check, f"ACS redirects nothing on {len(ports)} PCIe port(s) between GPUs")


def _ports_between(gpus: tuple[GpuEvidence, ...]) -> frozenset[str]:
    """The ports that traffic between two GPUs under one switch passes: below what they share, host port excluded."""
    found: set[str] = set()
    for a, b in combinations(gpus, 2):
        ports_a, ports_b = set(a.bridges.value or ()), set(b.bridges.value or ())
        if ports_a & ports_b:
            found |= ports_a ^ ports_b
    return frozenset(found)


def _iommu(gpus: tuple[GpuEvidence, ...], pci: PciEvidence, *, is_virtual: bool | None) -> Iterator[Finding]:
    check, here = "iommu", {gpu.pci for gpu in gpus}
    types = [(address, kind) for address, kind in pci.iommu_types if address in here]
    translated = [(address, kind.value) for address, kind in types if kind.value and kind.value != "identity"]
    if pci.has_iommu.value is False:
        yield passed(check, "no IOMMU is active")
    elif translated and not is_virtual:
        evidence = "; ".join(f"{address}: {kind}" for address, kind in translated[:_SHOWN])
        remedy = f"Boot with `iommu=pt` (or switch VT-d / AMD-Vi off where no virtual machine needs it). {_TEST}"
        yield warning(check, "the IOMMU translates the GPUs' addresses: P2P may go through the CPU", evidence, remedy)
    elif types and all(kind.value is not None for _, kind in types):
        kinds = ", ".join(sorted({str(kind.value) for _, kind in types}))
        yield passed(check, f"the GPUs' IOMMU groups are of type {kinds}")
    else:
        yield unread(check, "whether the IOMMU translates", [pci.has_iommu, *(kind for _, kind in types)])
