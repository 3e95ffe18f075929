"""Network interfaces and RDMA ports from /sys, with what is behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.probe.host_readings import NicReadings
from topology.probe.kernel_files import attempt, is_there, read_text, read_word
from topology.probe.kernel_values import ReadingAbsentError, positive, whole, word
from topology.probe.pci import address_of, numa_of
from topology.reading import Reading

if TYPE_CHECKING:
    from pathlib import Path

_MEGABIT_BYTES: Final = 125_000
_NO_SPEED: Final = frozenset({"-1", "0", "4294967295"})  # SPEED_UNKNOWN, signed and not
_MAX_MEGABITS: Final = 10**8  # of one port: a hundred times the fastest there is
_MAX_NICS: Final = 512
_IPOIB: Final = "32"


def read_nics(root: Path) -> tuple[NicReadings, ...]:
    """Read all network interfaces with a device behind them, and all RDMA ports."""
    return (*_ethernet(root), *_infiniband(root))[:_MAX_NICS]


def _ethernet(root: Path) -> list[NicReadings]:
    base = root / "sys/class/net"
    found = attempt("net", lambda: sorted(path.name for path in base.iterdir())).value or []
    nics = []
    for name in found:
        path = base / name
        # Loopback, bridges and container ends have no device behind them; IPoIB is listed as infiniband.
        is_ipoib = attempt("type", read_text, path / "type").value == _IPOIB
        if is_there(path / "device") and not is_ipoib:
            rate = attempt(f"/sys/class/net/{name}/speed", _ethernet_rate, path)
            state = attempt(f"/sys/class/net/{name}/operstate", read_word, path / "operstate")
            interface = Reading(source=f"/sys/class/net/{name}", value=name)
            nics.append(_nic(root, path / "device", name, "ethernet", (rate, state, interface)))
    return nics


def _ethernet_rate(path: Path) -> float:
    text = read_text(path / "speed")
    if text in _NO_SPEED:
        raise ReadingAbsentError(code="UNKNOWN_SPEED")
    return float(whole(text, least=1, most=_MAX_MEGABITS) * _MEGABIT_BYTES)


def _infiniband(root: Path) -> list[NicReadings]:
    base = root / "sys/class/infiniband"
    ports = attempt("infiniband", lambda: sorted(base.glob("*/ports/*"))).value or []
    nics = []
    for port in ports:
        device, number = port.parent.parent, port.name
        # NCCL_IB_HCA writes ports beyond the first as NAME:PORT.
        name = device.name if number == "1" else f"{device.name}:{number}"
        source = f"/sys/class/infiniband/{device.name}/ports/{number}"
        layer = attempt("link_layer", read_text, port / "link_layer").value
        rate = attempt(f"{source}/rate", _infiniband_rate, port)
        state = attempt(f"{source}/state", _state, port)
        interface = attempt(f"{source}/gid_attrs/ndevs, device/net", _interface, device, number)
        kind = "roce" if layer == "Ethernet" else "infiniband"
        nics.append(_nic(root, device / "device", name, kind, (rate, state, interface)))
    return nics


def _state(port: Path) -> str:
    # "4: ACTIVE"; empty is malformed.
    return word(read_text(port / "state").rpartition(":")[2].split()[0])


def _infiniband_rate(port: Path) -> float:
    # "200 Gb/sec (4X HDR)".
    if _state(port) != "ACTIVE":
        raise ReadingAbsentError(code="PORT_DOWN")
    return positive(read_text(port / "rate").split()[0], most=_MAX_MEGABITS / 1e3) * 1e9 / 8


def _interface(device: Path, number: str) -> str:
    # The port's own word first; an adapter with one interface has no other.
    named = attempt("ndevs", read_word, device / "ports" / number / "gid_attrs/ndevs/0").value
    if named is not None:
        return named
    names = sorted(path.name for path in (device / "device/net").iterdir())
    at = int(number) - 1
    if len(names) > 1:
        ports = {
            name: attempt("dev_port", read_text, device / "device/net" / name / "dev_port").value for name in names
        }
        names = [name for name in names if ports[name] == str(at)]
    if not names:
        raise ReadingAbsentError(code="NO_INTERFACE")
    return names[0]


def _nic(
    root: Path,
    device: Path,
    name: str,
    kind: str,
    readings: tuple[Reading[float], Reading[str], Reading[str]],
) -> NicReadings:
    rate, state, interface = readings
    return NicReadings(
        name=name,
        kind=kind,
        bytes_per_second=rate,
        numa=numa_of(root, device),
        pci=attempt(f"{name}/device", address_of, device),
        state=state,
        interface=interface,
    )
