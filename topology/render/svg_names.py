"""What the parts of a host are called in a picture, and what their tooltips tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from topology.judge import short_names
from topology.model import Device, DeviceKind, Host, Nic, Pcie, Switch, SwitchKind
from topology.render.svg_marks import Marks
from topology.render.svg_style import ISLANDS, NO_ISLAND, gigabytes
from topology.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.render.svg_parts import Part

_BRANDS: Final = ("NVIDIA ", "GeForce ", "Tesla ", "AMD ", "Instinct ")
_KINDS: Final = {"infiniband": "IB", "ethernet": "Eth", "roce": "RoCE"}
_SWITCH_NAMES: Final = {
    SwitchKind.nvswitch: "NVSwitch",
    SwitchKind.pcie: "PCIe switch",
    SwitchKind.bridge: "host bridge",
    SwitchKind.socket: "NUMA node",
    SwitchKind.network: "network switch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Short names and islands of the parts of one host, by id, and what is stressed."""

    label: Mapping[str, str]
    island: Mapping[str, int]
    marks: Marks = field(default_factory=Marks)

    def of(self, name: str) -> str:
        """The short name of an id, else the id."""
        return self.label.get(name, name)

    def fill(self, device: Device) -> str:
        """The tint of the island a device is in."""
        island = self.island.get(device.id)
        return NO_ISLAND if island is None else ISLANDS[island % len(ISLANDS)]


def names_of(part: Part, islands: Sequence[tuple[str, ...]]) -> Names:
    """Name the parts as nvidia-smi does, by its index where that is known; `islands` are those of the host."""
    label = dict(short_names(part.host))
    label |= {nic.id: nic.name for nic in part.host.nics}
    label |= {switch.id: switch.name or _SWITCH_NAMES[switch.kind] for switch in part.switches}
    return Names(label=label, island={name: at for at, island in enumerate(islands) for name in island})


def short_name(name: str) -> str:
    """Leave the brand out of a name, which the rest of it implies."""
    for brand in _BRANDS:
        name = name.removeprefix(brand)
    return name


def memory(size_bytes: int | None) -> str:
    """Write a size, or that it is not known."""
    if size_bytes is None:
        return "memory unknown"
    text = format_bytes(size_bytes)
    return text.replace(".0 ", " ")


def pcie_line(pcie: Pcie | None) -> str:
    """Write the largest generation and width of a PCIe link, as far as they are known."""
    if pcie is None or (pcie.max_generation is None and pcie.max_width is None):
        return ""
    generation = "" if pcie.max_generation is None else f" Gen{pcie.max_generation}"
    return f"PCIe{generation}" + ("" if pcie.max_width is None else f" x{pcie.max_width}")


def device_told(device: Device, label: str) -> str:
    """Tell all about a device, a fact a line."""
    facts = [
        f"{label}: {device.name}",
        f"memory: {'unknown' if device.memory_bytes is None else format_bytes(device.memory_bytes)}",
        f"id: {device.id}",
        f"PCI: {device.pci}" if device.pci else "",
        f"NUMA node: {'unknown' if device.numa is None else device.numa}",
        f"CPUs near it: {device.cpus}" if device.cpus else "",
        pcie_line(device.pcie),
        _card_generation(device.pcie),
        "" if device.compute_capability is None else "compute capability: {}.{}".format(*device.compute_capability),
        f"{device.cores} cores" if device.kind is DeviceKind.cpu else "",
        "" if device.power_limit_watts is None else f"power limit: {device.power_limit_watts:.0f} W",
        "MIG is on" if device.mig else "",
        f"MIG slice of {device.parent}" if device.parent else "",
        f"fabric: {device.fabric}" if device.fabric else "",
    ]
    return "\n".join(fact for fact in facts if fact)


def _card_generation(pcie: Pcie | None) -> str:
    known = pcie is not None and pcie.device_max_generation
    return f"the card itself: PCIe Gen{known}" if known else ""


def nic_line(nic: Nic) -> str:
    """Write kind and rate of a NIC in a few characters."""
    kind = _KINDS.get(nic.kind.lower(), nic.kind)
    if nic.bytes_per_second is None:
        return "rate unknown" if kind == "unknown" else f"{kind} ? GB/s"
    return f"{kind} {gigabytes(nic.bytes_per_second)} GB/s"


def nic_told(nic: Nic) -> str:
    """Tell all about a NIC, a fact a line."""
    rate = "unknown" if nic.bytes_per_second is None else f"{format_rate(nic.bytes_per_second)} per direction"
    facts = [
        f"{nic.name}: {nic.kind}",
        f"rate: {rate}",
        f"id: {nic.id}",
        f"PCI: {nic.pci}" if nic.pci else "",
        f"NUMA node: {'unknown' if nic.numa is None else nic.numa}",
    ]
    return "\n".join(fact for fact in facts if fact)


def switch_told(switch: Switch) -> str:
    """Tell all about a switch, a fact a line."""
    kind = _SWITCH_NAMES[switch.kind]
    named = f"{kind}: {switch.name}" if switch.name else kind
    return f"{named}\nid: {switch.id}" + ("" if switch.numa is None else f"\nNUMA node: {switch.numa}")


def switch_name(switch: Switch) -> str:
    """Name a switch by what it is sold as, else by its kind."""
    return switch.name or _SWITCH_NAMES[switch.kind]


def host_lines(host: Host, alike: Sequence[str]) -> tuple[str, str]:
    """Write the two title lines of a host."""
    title = host.name if not alike else f"{host.name}  x {len(alike) + 1}"
    cores = "cores unknown" if host.cores is None else f"{host.cores} core{'' if host.cores == 1 else 's'}"
    sockets = "" if host.sockets is None else f" on {host.sockets} socket{'' if host.sockets == 1 else 's'}"
    facts = [host.cpu_name or "", cores + sockets, memory(host.memory_bytes)]
    facts.append("virtual machine" if host.is_virtual else "")
    return title, " \u00b7 ".join(fact for fact in facts if fact)
