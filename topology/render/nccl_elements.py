"""The elements of an NCCL topology file, each from the part of the host it stands for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from topology.checks import printable
from topology.link_rates import pcie_rate
from topology.model import Pcie, SwitchKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from topology.model import Device, Link, Nic

_MEGABIT_BYTES: Final = 125_000
_MEGABYTE: Final = 1e6
_MASK_WORD_BITS: Final = 32
_MAX_MEMORY: Final = 10**15
_UUID: Final = re.compile(r"[\w./:-]{1,120}", re.ASCII)
BRIDGE: Final = "trainmaster_bridge"
_MAX_CPUS: Final = 896  # what a mask of 253 characters can tell
_SPEEDS: Final[Mapping[int, str]] = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0", 7: "128.0"}
_WIDTHS: Final = (16, 8, 4, 2, 1, 32, 12)
# NCCL's own words for a GPU and for a network function of which it knows no more.
_GPU_CLASS, _ANY_NIC_CLASS = "0x03", "0x02"
_SWITCH_CLASS, _NVSWITCH_CLASS, _CPU_CLASS = "0x060400", "0x068000", "0x068001"
_NIC_CLASSES: Final[Mapping[str, str]] = {"infiniband": "0x020700", "roce": "0x020000", "ethernet": "0x020000"}
_NAMED_SLOT: Final = re.compile(r"\bGen([1-7]) x(1|2|4|8|12|16|32)\b")
_HIDDEN: Final = "fffffff:ff:ff.0"  # what NCCL writes for NVSwitches that show no address
_BUNDLE: Final = re.compile(r"(NV|XGMI)([1-9]\d*)")
_RUN: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_CPU_NAME: Final = re.compile(r"(\S+) (\d+)/(\d+)")
_VENDORS: Final[Mapping[str, str]] = {"intel": "GenuineIntel", "amd": "AuthenticAMD"}
_ARCHITECTURES: Final = frozenset({"x86_64", "arm64", "ppc64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """An element with its attributes in the order they are written."""

    tag: str
    attributes: tuple[tuple[str, str], ...] = ()
    children: tuple[Element, ...] = ()

    def get(self, name: str) -> str:
        """Return the value of an attribute, or nothing."""
        return dict(self.attributes).get(name, "")


def cpu_element(node: int, cpu_name: str | None, cpus: str | None, below: Iterable[Element]) -> Element:
    """A NUMA node; `cpus` are its logical CPUs as the kernel lists them, `below` its functions and loose ports."""
    mask = None if cpus is None else _mask(cpus)
    attributes = [("numaid", str(node)), *([("affinity", mask)] if mask else []), *_processor(cpu_name)]
    return Element(tag="cpu", attributes=tuple(attributes), children=_ordered(below))


def switch_element(address: str, uplink: Link | None, below: Iterable[Element], peers: Iterable[str]) -> Element:
    """A PCIe switch; `peers` are the bus ids of switches of the same chip."""
    links = (Element(tag="pcilink", attributes=(("target", peer),)) for peer in sorted(peers))
    return Element(
        tag="pci",
        attributes=(("busid", address), ("class", _SWITCH_CLASS), *_speed(_slot(uplink))),
        children=(*_ordered(below), *links),
    )


def gpu_element(device: Device, address: str, uplink: Link | None, bundles: Iterable[Element]) -> Element:
    """A GPU. `rank` is its index: NCCL puts the real one in its place, other readers skip a GPU without.

    GPUDirect (`gdr`) depends on drivers, not on the machine: NCCL fills it in. Name, memory and UUID are attributes
    that NCCL and RCCL do not ask for.
    """
    dev = [] if device.index is None else [("dev", str(device.index))]
    capability = device.compute_capability
    sm = [] if capability is None else [("sm", str(capability[0] * 10 + capability[1]))]
    rank = [] if device.index is None else [("rank", str(device.index))]
    gpu = Element(tag="gpu", attributes=(*dev, *sm, *rank, *_own(device)), children=tuple(bundles))
    pcie = device.pcie
    if pcie is None or (pcie.max_generation is None and pcie.max_width is None):
        pcie = _slot(uplink)
    return Element(tag="pci", attributes=(("busid", address), ("class", _GPU_CLASS), *_speed(pcie)), children=(gpu,))


def _own(device: Device) -> list[tuple[str, str]]:
    # What a terminal would obey is written as an escape, so that the file and its readers stay whole.
    own = [("trainmaster_name", printable(device.name))] if printable(device.name).strip() else []
    if device.memory_bytes is not None and device.memory_bytes < _MAX_MEMORY:
        own.append(("trainmaster_memory_bytes", str(device.memory_bytes)))
    if device.uuid is not None and _UUID.fullmatch(device.uuid):
        own.append(("trainmaster_uuid", device.uuid))
    return own


def with_bridge(element: Element, name: str | None) -> Element:
    """The function with the name of the host bridge above it, for the reader of this package; None: not needed."""
    return element if name is None else replace(element, attributes=(*element.attributes, (BRIDGE, name)))


def adapter_element(address: str, kind: str, uplink: Link | None, ports: tuple[Element, ...]) -> Element:
    """A network function with its ports; without any, NCCL looks for them on the machine."""
    pci_class = _NIC_CLASSES.get(kind, _ANY_NIC_CLASS)
    return Element(
        tag="pci",
        attributes=(("busid", address), ("class", pci_class), *_speed(_slot(uplink))),
        children=(Element(tag="nic", children=ports),) if ports else (),
    )


def net_element(nic: Nic, dev: int) -> Element:
    """A port, with its number where its id ends in one (`HOST/mlx5_0:2`); `dev` counts the ports of the host."""
    number = nic.id.rsplit("/", 1)[-1].removeprefix(f"{nic.name}:")
    port = [("port", number)] if number.isascii() and number.isdigit() else []
    rate = nic.bytes_per_second
    speed = [] if rate is None else [("speed", str(round(rate / _MEGABIT_BYTES)))]
    return Element(tag="net", attributes=(("name", nic.name), ("dev", str(dev)), *speed, *port))


def bundle_elements(
    device: str,
    links: Iterable[Link],
    address: Mapping[str, str],
    kinds: Mapping[str, SwitchKind],
) -> tuple[Element, ...]:
    """The NVLinks, XGMI links and C2C links of one GPU."""
    counts: dict[tuple[str, str, str], int] = {}
    c2c = []
    for link in links:
        other = link.b if link.a == device else link.a
        found = _BUNDLE.fullmatch(link.kind)
        if found is not None:
            kind = kinds.get(other)
            target = address[other] if kind is None else _HIDDEN
            target_class = {None: _GPU_CLASS, SwitchKind.socket: _CPU_CLASS}.get(kind, _NVSWITCH_CLASS)
            key = ({"NV": "nvlink", "XGMI": "xgmi"}[found[1]], target, target_class)
            counts[key] = counts.get(key, 0) + int(found[2])
        elif link.kind == "C2C" and link.bytes_per_second:
            rate = str(round(link.bytes_per_second / _MEGABYTE))
            c2c.append(Element(tag="c2c", attributes=(("bw", rate), ("count", "1"))))
    bundles = (
        Element(tag=tag, attributes=(("target", target), ("count", str(count)), ("tclass", target_class)))
        for (tag, target, target_class), count in sorted(counts.items())
    )
    return (*bundles, *c2c)


def _ordered(below: Iterable[Element]) -> tuple[Element, ...]:
    # NCCL keeps functions by bus id, so that files of one machine are equal; what has none comes last.
    return tuple(sorted(below, key=lambda element: (not element.get("busid"), element.get("busid"))))


def _speed(pcie: Pcie | None) -> list[tuple[str, str]]:
    if pcie is None:
        return []
    generation, width = pcie.max_generation, pcie.max_width
    speed = [] if generation is None else [("link_speed", f"{_SPEEDS[generation]} GT/s PCIe")]
    return speed + ([] if width is None else [("link_width", str(width))])


def _slot(uplink: Link | None) -> Pcie | None:
    # A generation and width of the link's rate. Several have one rate (Gen3 x16, Gen4 x8): what the source names, or
    # the widest; Gen1 comes last, since a reader takes it for the mark of a virtual machine.
    if uplink is None or uplink.bytes_per_second is None:
        return None
    named = _NAMED_SLOT.search(uplink.source)
    slots = [] if named is None else [(int(named[1]), int(named[2]))]
    for generation, width in (*slots, *((g, w) for w in _WIDTHS for g in _SPEEDS if g > 1), *((1, w) for w in _WIDTHS)):
        rate = pcie_rate(generation, width)
        if rate is not None and math.isclose(rate.bytes_per_second, uplink.bytes_per_second):
            return Pcie(max_generation=generation, max_width=width)
    return None


def _processor(cpu_name: str | None) -> list[tuple[str, str]]:
    # `AuthenticAMD 175/17` is how this package calls what a topology file tells of a processor.
    if cpu_name is None:
        return []
    if cpu_name in _ARCHITECTURES:
        return [("arch", cpu_name)]
    known = _CPU_NAME.fullmatch(cpu_name)
    words = set(re.findall(r"[a-z]+", cpu_name.lower()))
    vendor = next((name for word, name in _VENDORS.items() if word in words or name == cpu_name), None)
    if known is not None:
        vendor = known[1]
    if vendor is None:
        return []
    arch = [("arch", "x86_64")] if vendor in _VENDORS.values() else []
    numbers = [("familyid", known[2]), ("modelid", known[3])] if known is not None else []
    return [*arch, ("vendor", vendor), *numbers]


def _mask(cpus: str) -> str | None:
    bits = 0
    for part in cpus.split(","):
        found = _RUN.fullmatch(part)
        if found is None:
            return None
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < _MAX_CPUS:
            return None
        bits |= (1 << last + 1) - (1 << first)
    words: list[str] = []
    while bits or not words:
        words.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= _MASK_WORD_BITS
    return ",".join(reversed(words))
