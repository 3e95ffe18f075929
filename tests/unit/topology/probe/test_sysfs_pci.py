"""PCI functions, NICs and firmware names from a made-up /sys, and the tree they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topology.link_rates import pcie_rate
from topology.model import Pcie, Topology
from topology.pcie_tree import pcie_labels
from topology.probe import assemble
from topology.probe.readings import NvmlReadings, PciReadings
from topology.probe.sysfs import read_host

Tree = Callable[[dict[str, str]], Path]
FAST = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
GPU = {"vendor": "0x10de", "class": "0x030200", "device": "0x2330"}
ROOT, UP, DOWN, OTHER = "0000:16:00.0", "0000:17:00.0", "0000:18:00.0", "0000:18:01.0"


def add(root: Path, way: str, **files: str) -> Path:
    """Add a function below the functions of its way (`pci0000:16/0000:16:00.0/...`), with its link on the bus."""
    folder = root / "sys/devices" / way
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(folder)
    return folder


def by_address(found: tuple[PciReadings, ...]) -> dict[str, PciReadings]:
    return {function.address: function for function in found}


def test_the_way_up_and_every_bridge_on_it_are_read(tmp_path: Path) -> None:
    add(tmp_path, f"pci0000:16/{ROOT}", **FAST)
    add(tmp_path, f"pci0000:16/{ROOT}/{UP}", **FAST)
    add(tmp_path, f"pci0000:16/{ROOT}/{UP}/{DOWN}", **FAST)
    gpu = f"pci0000:16/{ROOT}/{UP}/{DOWN}/0000:19:00.0"
    add(tmp_path, gpu, **GPU, **FAST, current_link_speed="2.5 GT/s PCIe", current_link_width="8", numa_node="1")
    # The bus tells of the GPU: nobody named its address.
    found = by_address(read_host(tmp_path).pci_functions)
    assert list(found) == ["0000:19:00.0", ROOT, UP, DOWN]
    card = found["0000:19:00.0"]
    assert card.above.value == ("pci0000:16", ROOT, UP, DOWN)
    assert (card.vendor_id.value, card.device_id.value, card.class_code.value) == (0x10DE, 0x2330, 0x030200)
    assert (card.max_speed_gt.value, card.max_width.value, card.numa.value) == (32.0, 16, 1)
    assert (card.speed_gt.value, card.width.value) == (2.5, 8)
    assert found[UP].above.value == ("pci0000:16", ROOT)
    assert found[UP].vendor_id.error == "ENOENT"


@pytest.mark.parametrize(
    ("way", "above"),
    [
        ("pci0000:00/0000:00:05.0", ("pci0000:00",)),
        ("pci0000:16/0000:16:00.5/pci10000:00/10000:00:02.0/10000:01:00.0", ("pci10000:00", "10000:00:02.0")),
        ("LNXSYSTM:00/LNXSYBUS:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0", ("pci0001:00",)),
    ],
)
def test_the_last_host_bridge_counts(tmp_path: Path, way: str, above: tuple[str, ...]) -> None:
    folder = add(tmp_path, way, **GPU)
    assert by_address(read_host(tmp_path).pci_functions)[folder.name].above.value == above


def test_what_a_function_does_not_say_is_a_code(tmp_path: Path) -> None:
    says = {"max_link_speed": "Unknown", "max_link_width": "255", "current_link_width": "0", "numa_node": "-1"}
    add(tmp_path, "platform/0000:19:00.0", **GPU, **says, current_link_speed="")
    (found,) = read_host(tmp_path, ("0000:19:00.0",)).pci_functions
    assert (found.max_speed_gt.error, found.max_width.error, found.width.error) == (
        "UNKNOWN_SPEED",
        "UNKNOWN_WIDTH",
        "UNKNOWN_WIDTH",
    )
    assert (found.speed_gt.error, found.numa.error, found.above.error) == ("UNKNOWN_SPEED", "NO_NODE", "NO_HOST_BRIDGE")


def test_only_display_functions_of_nvidia_are_gpus(tmp_path: Path) -> None:
    add(tmp_path, "pci0000:00/0000:00:01.0", vendor="0x10de", **{"class": "0x040300"})
    add(tmp_path, "pci0000:00/0000:00:02.0", vendor="0x1af4", **{"class": "0x030000"})
    add(tmp_path, "pci0000:00/0000:00:03.0", vendor="0x10de", **{"class": "0x030000"})
    add(tmp_path, "pci0000:00/0000:00:04.0", vendor="none")
    assert [found.address for found in read_host(tmp_path).pci_functions] == ["0000:00:03.0"]


def test_the_bus_tells_switches_to_old_drivers(tmp_path: Path, made: Any) -> None:
    add(tmp_path, "pci0000:c0/0000:c5:00.0", vendor="0x10de", **{"class": "0x068000"})
    functions = read_host(tmp_path).pci_functions
    far = made.link(0, "0000:c5:00.0", remote_type=made.bad("FUNCTION_NOT_FOUND"))
    nvml = made.nvml(made.gpu(0, nvlinks=(far,)), made.gpu(1, nvlinks=(far,)))
    assert [pair.kind for pair in assemble(made.machine(nvml, pci_functions=functions)).pairs] == ["NV1"]
    assert [pair.kind for pair in assemble(made.machine(nvml)).pairs] == ["NODE"]


def test_a_loop_of_links_does_not_hang(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:19:00.0").symlink_to(bus / "0000:1a:00.0")
    (bus / "0000:1a:00.0").symlink_to(bus / "0000:19:00.0")
    rdma(tmp_path, "mlx5_0", bus / "0000:19:00.0", "InfiniBand", None)
    host = read_host(tmp_path, ("0000:19:00.0",))
    assert host.pci_functions[0].above.value is None
    assert host.nics[0].pci.error == "MALFORMED"


def rdma(root: Path, name: str, function: Path, layer: str, interface: str | None) -> None:
    port = root / f"sys/class/infiniband/{name}/ports/1"
    port.mkdir(parents=True)
    for key, text in {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": layer}.items():
        (port / key).write_text(f"{text}\n")
    (root / f"sys/class/infiniband/{name}/device").symlink_to(function)
    if interface is not None:
        (function / "net" / interface).mkdir(parents=True)
        net = root / "sys/class/net" / interface
        net.mkdir(parents=True)
        (net / "device").symlink_to(function)
        (net / "operstate").write_text("up\n")
        (net / "speed").write_text("400000\n")


def a_box(root: Path) -> Topology:
    """One switch with a GPU and a RoCE adapter, and an adapter of two functions at a root port of its own."""
    add(root, f"pci0000:16/{ROOT}", **FAST)
    add(root, f"pci0000:16/{ROOT}/{UP}", **{**FAST, "max_link_width": "8"})
    add(root, f"pci0000:16/{ROOT}/{UP}/{DOWN}", **FAST)
    add(root, f"pci0000:16/{ROOT}/{UP}/{OTHER}", **FAST)
    add(root, f"pci0000:16/{ROOT}/{UP}/{DOWN}/0000:10:00.0", **GPU, **FAST, numa_node="0")
    nic = {**FAST, "numa_node": "0"}
    roce = add(root, f"pci0000:16/{ROOT}/{UP}/{OTHER}/0000:1a:00.0", **nic)
    add(root, "pci0000:30/0000:30:01.0", **{**FAST, "max_link_speed": "16.0 GT/s PCIe"})
    twin = [add(root, f"pci0000:30/0000:30:01.0/0000:31:00.{at}", **nic) for at in range(2)]
    rdma(root, "mlx5_0", roce, "Ethernet", "eth0")
    rdma(root, "mlx5_1", twin[0], "InfiniBand", None)
    rdma(root, "mlx5_2", twin[1], "InfiniBand", None)
    return root


def test_the_interface_behind_an_rdma_port_is_named(tmp_path: Path) -> None:
    nics = {nic.name: nic for nic in read_host(a_box(tmp_path)).nics}
    assert (nics["mlx5_0"].interface.value, nics["mlx5_0"].state.value) == ("eth0", "ACTIVE")
    assert (nics["mlx5_1"].interface.error, nics["mlx5_1"].bytes_per_second.value) == ("ENOENT", 50e9)
    assert (nics["eth0"].state.value, nics["eth0"].pci.value) == ("up", "0000:1a:00.0")


def test_ports_of_one_adapter_share_its_function(tmp_path: Path, made: Any) -> None:
    host = read_host(a_box(tmp_path))
    topology = assemble(made.machine(made.nvml(made.gpu(0)), pci_functions=host.pci_functions, nics=host.nics))
    gpu = topology.gpus[0].id
    labels = {tuple(sorted(ends)): label for ends, label in pcie_labels(topology).items()}
    assert {other: label for (_, other), label in labels.items() if gpu in _} == {
        "box/eth0": "PIX",
        "box/mlx5_0": "PIX",
        "box/mlx5_1": "NODE",
        "box/mlx5_2": "NODE",
    }
    assert labels["box/eth0", "box/mlx5_0"] == labels["box/mlx5_1", "box/mlx5_2"] == "PIX"
    links = {link.a: link for link in topology.links}
    assert (links["box/mlx5_2"].b, links["box/mlx5_2"].kind) == ("box/0000:31:00.0", "port")
    # Each link is as fast as the slower of its ends.
    assert links["box/0000:31:00.0"].bytes_per_second == pcie_rate(4, 16).bytes_per_second
    assert links[f"box/{UP}"].bytes_per_second == pcie_rate(5, 8).bytes_per_second
    assert (links[gpu].b, links[f"box/{UP}"].b) == (f"box/{UP}", "box/pci0000:16")
    assert topology.gpus[0].pcie == Pcie(max_generation=5, max_width=16, device_max_generation=5)


def test_mig_devices_are_ports_of_their_gpu(tmp_path: Path, made: Any) -> None:
    host = read_host(a_box(tmp_path))
    gpu = made.gpu(0, mig_mode=made.ok(1), mig_devices=(made.mig(0), made.mig(1)))
    topology = assemble(made.machine(made.nvml(gpu), pci_functions=host.pci_functions))
    links = {link.a: link for link in topology.links}
    assert {links[device.id].b for device in topology.gpus} == {"box/0000:10:00.0"}
    assert pcie_labels(topology)[frozenset(device.id for device in topology.gpus)] == "PIX"
    assert [pair.kind for pair in topology.pairs] == ["PIX"]


def test_bridges_of_a_virtual_machine_are_not_believed(tmp_path: Path, made: Any) -> None:
    add(tmp_path, "pci0000:00/0000:00:02.0", max_link_speed="2.5 GT/s PCIe", max_link_width="1")
    add(tmp_path, "pci0000:00/0000:00:02.0/0000:10:00.0", **GPU, **FAST)
    host = read_host(tmp_path)
    for flags in (("fpu",), ("fpu", "hypervisor")):
        machine = made.machine(made.nvml(made.gpu(0)), pci_functions=host.pci_functions, cpu_flags=made.ok(flags))
        assert assemble(machine).gpus[0].pcie == Pcie(max_generation=5, max_width=16, device_max_generation=5)


def test_cards_on_the_bus_without_a_driver_are_told_in_one_line(tmp_path: Path, made: Any) -> None:
    add(tmp_path, "pci0000:00/0000:00:03.0", **GPU)
    nvml = NvmlReadings(driver_version=made.bad("NO_DRIVER"), unavailable="no NVIDIA driver: not found")
    machine = made.machine(nvml, pci_functions=read_host(tmp_path).pci_functions)
    (line,) = assemble(machine).warnings
    assert line.startswith("no NVIDIA driver: not found, while 1 NVIDIA GPU(s) are on the PCI bus (0000:00:03.0): ")
    shown = made.machine(made.nvml(made.gpu(0)), pci_functions=read_host(tmp_path).pci_functions)
    assert "1 of 1 NVIDIA GPUs on the PCI bus are not shown by the driver" in " ".join(assemble(shown).warnings)


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "is_virtual"),
    [
        ("fpu avx hypervisor", None, None, True),
        ("fpu avx", "Supermicro", "SYS-821GE-TNHR", False),
        ("fpu avx", None, None, False),
        ("fpu avx", "QEMU", "Standard PC", True),
        ("asimd sve", "Amazon EC2", "g5g.xlarge", True),
        ("asimd sve", "Amazon EC2", "g5g.metal", False),
        ("asimd sve", "Microsoft Corporation", "Virtual Machine", True),
        ("asimd sve", "NVIDIA", "GB200 NVL", False),
        ("asimd sve", None, None, None),
    ],
)
def test_a_virtual_machine_is_known_by_flag_or_name(
    tmp_path: Path, tree: Tree, made: Any, flags: str, vendor: str | None, product: str | None, is_virtual: bool | None
) -> None:
    names = {"sys_vendor": vendor, "product_name": product}
    tree({f"sys/class/dmi/id/{key}": f"{text}\n" for key, text in names.items() if text is not None})
    read = read_host(tmp_path)
    parts = {"system_vendor": read.system_vendor, "product_name": read.product_name}
    machine = made.machine(made.nvml(made.gpu(0)), cpu_flags=made.ok(tuple(flags.split())), **parts)
    assert assemble(machine).hosts[0].is_virtual is is_virtual
