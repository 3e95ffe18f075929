"""Raw readings of a host from its kernel: processors, memory, PCI functions and NICs, each a value or an error code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from topology.reading import Reading

Cpus = tuple[int, ...]

NVIDIA: Final = 0x10DE  # a PCI vendor id
DISPLAY: Final = 0x03  # the PCI base class of VGA and 3D controllers
NVSWITCH: Final = 0x0680  # the PCI class and subclass of an NVSwitch: a bridge of no known kind
MAX_NODE: Final = 1023  # NUMA nodes of the largest kernels

# What a recording made before a reading existed holds in its place.
NOT_READ: Final[Reading[Any]] = Reading(source="never asked", error="NOT_READ")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicReadings:
    """One network interface or RDMA port. `kind`: ethernet, infiniband or roce.

    `state` is the kernel's word (`up`, `ACTIVE`); `interface` the network interface behind an RDMA port.
    """

    name: str
    kind: str
    bytes_per_second: Reading[float]
    numa: Reading[int]
    pci: Reading[str]
    state: Reading[str] = NOT_READ
    interface: Reading[str] = NOT_READ


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaReadings:
    """One NUMA node and its logical CPUs."""

    node: int
    cpus: Reading[Cpus]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciReadings:
    """One PCI function: a GPU, a NIC, or a bridge on the way up from one.

    `above` is the way from the top: the host bridge (`pci0000:16`), then the bridges down to the one it sits behind.
    Speeds are in GT/s of one lane, widths in lanes; the speed of the moment falls when the function idles.
    """

    address: str
    numa: Reading[int]
    above: Reading[tuple[str, ...]] = NOT_READ
    vendor_id: Reading[int] = NOT_READ
    device_id: Reading[int] = NOT_READ
    class_code: Reading[int] = NOT_READ
    max_speed_gt: Reading[float] = NOT_READ
    max_width: Reading[int] = NOT_READ
    speed_gt: Reading[float] = NOT_READ
    width: Reading[int] = NOT_READ


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReadings:
    """What the kernel says about this host and about what this process may use of it.

    `memory_headroom_bytes` is what the control groups still allow, page cache that can be dropped included.
    `system_vendor` and `product_name` are the firmware's; `hypervisor` is what /sys/hypervisor calls itself.
    """

    name: Reading[str]
    cpus: Reading[Cpus]
    cpu_quota_cores: Reading[float]
    memory_total_bytes: Reading[int]
    memory_available_bytes: Reading[int]
    memory_limit_bytes: Reading[int]
    memory_headroom_bytes: Reading[int]
    cpu_name: Reading[str]
    cpu_flags: Reading[tuple[str, ...]]
    clock_hz: Reading[float]
    sockets: Reading[int]
    threads_per_core: Reading[int]
    numa_nodes: tuple[NumaReadings, ...] = ()
    nics: tuple[NicReadings, ...] = ()
    pci_functions: tuple[PciReadings, ...] = ()
    system_vendor: Reading[str] = NOT_READ
    product_name: Reading[str] = NOT_READ
    hypervisor: Reading[str] = NOT_READ
