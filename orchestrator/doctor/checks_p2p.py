"""Peer-to-peer between GPUs: what the driver allows, and what on the way turns it aside (ACS, IOMMU).

No remedy here forces P2P: where it is advertised but broken it hangs or corrupts data, so a test with
verification always comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from orchestrator.doctor.evidence import GpuEvidence, MachineEvidence, PairEvidence, PciEvidence
from orchestrator.doctor.finding import Finding, note, passed, unread, warning

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
_GPU_NOT_SUPPORTED: Final = 2
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
    check, labels = "p2p", {gpu.id: gpu.label for gpu in machine.gpus}
    known = [pair for pair in machine.pairs if pair.p2p.value is not None]
    failed = [pair.p2p for pair in machine.pairs if pair.p2p.value is None]
    if failed or not machine.pairs:
        yield unread(check, f"P2P status of {len(failed) or 'all'} pair(s) of GPUs", failed)
    linked = {gpu.id for gpu in machine.gpus if any(port.value == 1 for port in gpu.nvlink.ports)}
    near = [pair for pair in known if pair.p2p.value and _is_near(pair, linked)]
    far = [pair for pair in known if pair.p2p.value and pair not in near]
    limited = [pair for pair in near if pair.p2p.value == _GPU_NOT_SUPPORTED and not {pair.a, pair.b} <= linked]
    broken = [pair for pair in near if pair not in limited]
    if broken:
        title = "P2P is off between GPUs that share a PCIe switch or have NVLink"
        remedy = (
            "Look at the driver's settings (`/proc/driver/nvidia/params`), the BIOS (above 4G decoding, resizable "
            f"BAR) and, in a virtual machine, how the GPUs are passed through. {_TEST}"
        )
        yield warning(check, title, _pairs(broken, labels), remedy)
    if limited:
        title = "these cards offer no P2P over PCIe: transfers go through host memory"
        yield note(check, title, _pairs(limited, labels), "Nothing to repair: plans count with the slower way.")
    if far:
        yield note(check, "no P2P between GPUs under different host bridges", _pairs(far, labels))
    if known and not (near or far):
        yield passed(check, f"P2P works for the driver in all {len(known)} pair(s)")


def _is_near(pair: PairEvidence, linked: set[str]) -> bool:
    """Whether P2P is to be expected: no host bridge in between, or NVLink at both ends."""
    return {pair.a, pair.b} <= linked or (pair.level.value is not None and pair.level.value <= _NEAR)


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
