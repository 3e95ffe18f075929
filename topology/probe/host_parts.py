"""A host without its GPUs, from raw readings: its size, its CPU slots, its NICs, and what is worth telling. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.model import Device, DeviceKind, Host, Nic
from topology.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from topology.probe.readings import HostReadings, NicReadings
    from topology.reading import Reading

# Flags that decide a precision or a rate; a processor names some hundred more.
_FEATURES: Final = frozenset(
    {"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "sve", "sve2", "bf16"},
)
# What hypervisors write as vendor or product of their machines, in lower case (systemd-detect-virt(1) knows the same).
_HYPERVISORS: Final = (
    *("qemu", "kvm", "vmware", "virtualbox", "innotek", "xen", "bochs", "bhyve", "parallels", "virtual machine"),
    *("amazon ec2", "google compute engine", "openstack", "alibaba cloud", "rhev", "ovirt", "nutanix ahv"),
    *("hvm domu", "firecracker", "cloud hypervisor", "digitalocean", "apple virtualization"),
)
MAX_DEVICES: Final = 1024  # of one host: more are refused when a topology is read back
_BARE: Final = ".metal"  # Amazon's product name of a whole machine, from the same vendor


def is_virtual(host: HostReadings) -> bool | None:
    """Tell whether a hypervisor is below the kernel: by the processor's flag, else by the firmware's names."""
    flags = host.cpu_flags.value or ()
    if "hypervisor" in flags or host.hypervisor.value:
        return True
    names = [reading.value.lower() for reading in (host.system_vendor, host.product_name) if reading.value]
    if any(name.endswith(_BARE) for name in names):
        return False
    if any(known in name for name in names for known in _HYPERVISORS):
        return True
    # Processors with `fpu` among their flags (x86) have the flag wherever there is a hypervisor; ARM has none.
    return False if "fpu" in flags or names else None


def host_of(host: HostReadings, name: str, devices: tuple[Device, ...]) -> Host:
    """Build the host around its devices."""
    memory_bytes, total_bytes = _memory_bytes(host), host.memory_total_bytes.value
    return Host(
        name=name,
        memory_bytes=memory_bytes,
        cores=usable_cores(host),
        devices=devices,
        available_memory_bytes=_available_bytes(host),
        memory_limit_bytes=None if memory_bytes == total_bytes else memory_bytes,
        sockets=host.sockets.value,
        threads_per_core=host.threads_per_core.value or 1,
        nics=tuple(_nic(nic, name) for nic in host.nics),
        cpu_name=host.cpu_name.value,
        clock_hz=host.clock_hz.value,
        is_virtual=is_virtual(host),
    )


def cpu_slots(host: HostReadings, host_name: str) -> tuple[Device, ...]:
    """Build a device of one core for each usable core, up to 1024; they share the host's memory equally."""
    cpus, slots = host.cpus.value or (), min(usable_cores(host), MAX_DEVICES)
    node_of = {cpu: node.node for node in host.numa_nodes for cpu in node.cpus.value or ()}
    features = tuple(sorted(_FEATURES.intersection(host.cpu_flags.value or ())))
    memory_bytes, free_bytes = _memory_bytes(host), _available_bytes(host)
    return tuple(
        Device(
            id=f"{host_name}/cpu{slot}",
            host=host_name,
            kind=DeviceKind.cpu,
            name=host.cpu_name.value or "unknown CPU",
            memory_bytes=None if memory_bytes is None else memory_bytes // slots,
            numa=node_of.get(cpus[slot]) if slot < len(cpus) else None,
            index=slot,
            cores=1,
            features=features,
            free_memory_bytes=None if free_bytes is None else free_bytes // slots,
        )
        for slot in range(slots)
    )


def usable_cores(host: HostReadings) -> int:
    """Return the logical CPUs this process may run on, cut to the whole cores of its quota; at least one."""
    allowed = max(1, len(host.cpus.value or ()))
    quota = host.cpu_quota_cores.value
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def kernel_list(cpus: Iterable[int]) -> str | None:
    """Write logical CPUs as the kernel does: 0, 1, 2 and 8 are `0-2,8`; None for none."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or None


def host_warnings(host: HostReadings) -> list[str]:
    """Tell what is missing of that which later stages lean on: a clock or a socket count changes no plan."""
    named: Mapping[str, Reading[object]] = {"usable CPUs": host.cpus, "host memory": host.memory_total_bytes}
    warnings = [f"{what} unreadable ({reading.error})" for what, reading in named.items() if reading.error is not None]
    total, limit = host.memory_total_bytes.value, host.memory_limit_bytes.value
    if total is not None and limit is not None and limit < total:
        warnings.append(f"host memory limited to {format_bytes(limit)} of {format_bytes(total)} by a control group")
    down = [nic.name for nic in host.nics if nic.bytes_per_second.error == "PORT_DOWN"]
    return [*warnings, *(f"NIC {name}: the port is down" for name in down)]


def _memory_bytes(host: HostReadings) -> int | None:
    known = [host.memory_total_bytes.value, host.memory_limit_bytes.value]
    return min((value for value in known if value is not None), default=None)


def _available_bytes(host: HostReadings) -> int | None:
    known = [host.memory_available_bytes.value, host.memory_headroom_bytes.value]
    return min((value for value in known if value is not None), default=None)


def _nic(nic: NicReadings, host_name: str) -> Nic:
    return Nic(
        id=f"{host_name}/{nic.name}",
        name=nic.name,
        kind=nic.kind,
        bytes_per_second=nic.bytes_per_second.value,
        numa=nic.numa.value,
        pci=nic.pci.value,
    )
