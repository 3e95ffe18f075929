from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.checks import printable
from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe.nccl_xml import parse_nccl_xml
from topology.render.nccl_xml import nccl_xml

# What NCCL's reader takes: no declaration, one blank before an attribute, none before the end of an element.
LINE = re.compile(r' *<[a-z0-9]+( [a-z_]+="[^"<>\n]{0,253}"){0,16}/?>| *</[a-z0-9]+>')
WIDTHS = (1, 2, 4, 8, 16)


def link(a: str, b: str, kind: str, rate: float | None = None) -> Link:
    return Link(a=a, b=b, kind=kind, source="drawn", bytes_per_second=rate)


def gpu(name: str, pci: str | None, numa: int | None = 0, **more: object) -> Device:
    made = Device(id=name, host="box", kind=DeviceKind.gpu, name="a GPU", memory_bytes=None, numa=numa, pci=pci)
    return replace(made, **more)  # type: ignore[arg-type]


def back(text: str) -> Topology:
    return parse_nccl_xml(text.encode(), host="back")


# Characters that a terminal would obey or XML has not are among them.
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: len(printable(name)) < 80 and name.strip())


class Drawing:
    """Collects the parts of a machine while it is drawn."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.devices: list[Device] = []
        self.nics: list[Nic] = []
        self.switches: list[Switch] = []
        self.links: list[Link] = []
        self.capability = draw(st.sampled_from([(8, 0), (9, 0), (10, 0), (10, 3)]))
        self.bus = 0

    def address(self) -> str:
        self.bus += 1
        return f"0001:{self.bus:02x}:00.0"

    def node(self, numa: int | None) -> None:
        socket = f"box/node{'?' if numa is None else numa}"
        self.switches.append(Switch(id=socket, kind=SwitchKind.socket, host="box", numa=numa))
        for other in self.switches[:-1]:
            if other.kind is SwitchKind.socket:
                self.links.append(link(other.id, socket, "SYS"))
        cpus = self.draw(st.sampled_from([None, "0", "0-15,32-47", "95", "63-64"]))
        for _ in range(self.draw(st.integers(0, 3))):
            # Whether a common bus goes with a common host bridge is drawn: the file has to tell either way.
            self.bus += 1
            num_tops = self.draw(st.integers(1, 3))
            above = socket
            if self.draw(st.booleans()):
                form = self.draw(st.sampled_from(["pci0000:{:02x}", "bridge0000:{:02x}", "root {}", "pci-{}"]))
                above = f"box/{form.format(self.bus)}"
                self.switches.append(Switch(id=above, kind=SwitchKind.bridge, host="box", numa=numa))
                self.links.append(link(above, socket, "CPU"))
            bus = self.bus if self.draw(st.booleans()) else None
            for slot in range(num_tops):
                address = self.address() if bus is None else f"0000:{bus:02x}:{slot:02x}.0"
                self.part(address, above, numa, cpus, depth=0)
        if self.draw(st.booleans()):
            name = self.draw(st.sampled_from(["docker0", "a\"<&>' é\t\n"]))
            nic = Nic(id=f"box/{name}-{numa}", name=f"{name}-{numa}", kind="unknown", numa=numa)
            self.nics.append(nic)
            self.links.append(link(nic.id, socket, "virtual"))

    def part(self, address: str, above: str, numa: int | None, cpus: str | None, *, depth: int) -> None:
        roles = ["gpu", "nic"] if depth > 2 else ["gpu", "nic", "switch", "switch"]
        role = self.draw(st.sampled_from(roles))
        generation, width = self.draw(st.integers(2, 6)), self.draw(st.sampled_from(WIDTHS))
        rate = self.draw(st.sampled_from([None, {2: 0.5, 3: 64 / 65, 4: 128 / 65, 5: 256 / 65, 6: 7.375}[generation]]))
        if rate is not None:
            rate *= width * 1e9
        if role == "gpu":
            pcie = None if rate is None else Pcie(max_generation=generation, max_width=width)
            index = len(self.devices)
            made = gpu(f"GPU-{index}", address, numa, index=index, compute_capability=self.capability)
            name = self.draw(NAMES)
            memory = self.draw(st.sampled_from([None, 0, 85_899_345_920]))
            uuid = f"GPU-{index:08d}" if self.draw(st.booleans()) else None
            self.devices.append(replace(made, cpus=cpus, pcie=pcie, name=name, memory_bytes=memory, uuid=uuid))
            self.links.append(link(made.id, above, "PCIe", rate))
            if self.draw(st.booleans()):
                self.links.append(link(made.id, f"box/node{'?' if numa is None else numa}", "C2C", 447.12e9))
        elif role == "nic":
            self.adapter(address, above, numa, rate)
        else:
            # A switch whose address is not known gets one that says so, which shares no bus.
            known = self.draw(st.booleans())
            switch = f"box/{address}" if known else f"box/pcie{len(self.switches)}"
            self.switches.append(Switch(id=switch, kind=SwitchKind.pcie, host="box", numa=numa))
            self.links.append(link(switch, above, "PCIe", rate))
            for _ in range(self.draw(st.integers(0, 3))):
                self.part(self.address(), switch, numa, cpus, depth=depth + 1)

    def adapter(self, address: str, above: str, numa: int | None, rate: float | None) -> None:
        kind = self.draw(st.sampled_from(["infiniband", "roce", "ethernet"]))
        name = f"{'eth' if kind == 'ethernet' else 'mlx5_'}{len(self.nics)}"
        num_ports = self.draw(st.integers(1, 2))
        speed = self.draw(st.sampled_from([None, 1.25e9, 25e9, 50e9]))
        ends = [f"box/{name}" + (f":{port + 1}" if num_ports > 1 else "") for port in range(num_ports)]
        self.nics += [Nic(id=end, name=name, kind=kind, numa=numa, pci=address, bytes_per_second=speed) for end in ends]
        if num_ports > 1:
            function = f"box/{address}"
            self.switches.append(Switch(id=function, kind=SwitchKind.pcie, host="box", numa=numa))
            self.links += [link(end, function, "port") for end in ends]
            ends = [function]
        self.links.append(link(ends[0], above, "PCIe", rate))

    def nvlinks(self) -> dict[frozenset[str], int]:
        style = self.draw(st.sampled_from(["none", "mesh", "switch"]))
        names = [device.id for device in self.devices]
        if style == "switch" and names:
            self.switches.append(Switch(id="box/nvswitch", kind=SwitchKind.nvswitch, host="box"))
            counts = {name: self.draw(st.sampled_from([0, 11, 12])) for name in names}
            self.links += [link(name, "box/nvswitch", f"NV{count}") for name, count in counts.items() if count]
            return {frozenset((a, b)): min(counts[a], counts[b]) for a in names for b in names if a != b}
        found: dict[frozenset[str], int] = {}
        if style == "mesh":
            for a, b in zip(names, names[1:] + names[:1], strict=True):
                if a != b and frozenset((a, b)) not in found:
                    found[frozenset((a, b))] = count = self.draw(st.integers(1, 6))
                    self.links.append(link(a, b, f"NV{count}"))
        return found


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    drawing = Drawing(draw)
    for numa in draw(st.sampled_from([(0,), (0, 1), (1, 0, 7), (None,)])):
        drawing.node(numa)
    counts = drawing.nvlinks()
    name = draw(st.sampled_from([None, "AuthenticAMD 175/17", "GenuineIntel", "arm64", "Intel(R) Xeon(R) 8480C"]))
    host = Host(
        name="box",
        memory_bytes=2**40,
        cores=None,
        devices=tuple(drawing.devices),
        nics=tuple(drawing.nics),
        cpu_name=name,
    )
    bare = Topology(hosts=(host,), switches=tuple(drawing.switches), links=tuple(drawing.links))
    labels = pcie_labels(bare)
    names = [device.id for device in drawing.devices]
    ends = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    kinds = {end: f"NV{count}" if (count := counts.get(frozenset(end))) else labels[frozenset(end)] for end in ends}
    return replace(bare, pairs=tuple(Pair(a=a, b=b, kind=kind) for (a, b), kind in kinds.items()))


def places(topology: Topology) -> dict[str, str]:
    # What stands for a part in any reading of it: the address of a GPU, the name of a port.
    found = {device.id: str(device.pci) for device in topology.devices}
    return found | {nic.id: nic.id.partition("/")[2] for nic in topology.nics}


def shape(topology: Topology) -> dict[str, object]:
    name = places(topology)
    tree = {switch.id for switch in topology.switches if switch.kind is not SwitchKind.nvswitch}
    nvlinks: Counter[tuple[str, str]] = Counter()
    for item in topology.links:
        for a, b in ((item.a, item.b), (item.b, item.a)):
            if item.kind.startswith("NV") and a in name:
                nvlinks[name[a], name.get(b, "switch")] += int(item.kind[2:])
    return {
        "pairs": {frozenset((name[pair.a], name[pair.b])): pair.kind for pair in topology.pairs},
        "labels": {frozenset(name[end] for end in ends): label for ends, label in pcie_labels(topology).items()},
        "nics": {name[nic.id]: (nic.name, nic.kind, nic.bytes_per_second, nic.numa, nic.pci) for nic in topology.nics},
        "gpus": {
            device.pci: (
                *(device.index, device.numa, device.pcie, device.compute_capability, device.cpus),
                *(printable(device.name), device.memory_bytes, device.uuid),
            )
            for device in topology.gpus
        },
        "nvlinks": nvlinks,
        "c2c": {name[item.a]: item.bytes_per_second for item in topology.links if item.kind == "C2C"},
        "rates": Counter(item.bytes_per_second for item in topology.links if item.kind == "PCIe" and item.a in name),
        "nodes": [switch.numa for switch in topology.switches if switch.kind is SwitchKind.socket],
        "switches": sum(switch.kind is SwitchKind.pcie for switch in topology.switches),
        "uplinks": Counter(item.bytes_per_second for item in topology.links if item.kind == "PCIe" and item.a in tree),
    }


@settings(max_examples=60)
@given(machines())
def test_a_drawn_machine_survives_its_file(machine: Topology) -> None:
    text = nccl_xml(machine)
    again = back(text)
    found = shape(again)
    for what, wanted in shape(machine).items():
        assert found[what] == wanted, what
    assert nccl_xml(again) == text
    for line in text.splitlines():
        assert LINE.fullmatch(line), line


def without_addresses(machine: Topology) -> Topology:
    host = machine.hosts[0]
    devices = tuple(replace(device, pci=None) for device in host.devices)
    nics = tuple(replace(nic, pci=None) for nic in host.nics)
    name = {switch.id: switch.id.replace(":", "-") for switch in machine.switches}
    return replace(
        machine,
        hosts=(replace(host, devices=devices, nics=nics),),
        switches=tuple(replace(switch, id=name[switch.id]) for switch in machine.switches),
        links=tuple(replace(item, a=name.get(item.a, item.a), b=name.get(item.b, item.b)) for item in machine.links),
    )


@settings(max_examples=30)
@given(machines())
def test_made_up_addresses_keep_the_labels(machine: Topology) -> None:
    bare = without_addresses(machine)
    if not machine.gpus and all(nic.pci is None for nic in machine.nics):
        return
    with pytest.raises(TopologyError, match="has no PCI address"):
        nccl_xml(bare)
    text = nccl_xml(bare, invent_addresses=True)
    assert text.startswith("<!-- Bus ids of domain fffe are made up: this file is for reading, never for NCCL")
    again = back(text)
    by_index = {device.id: str(device.index) for device in (*again.devices, *machine.devices)}

    def kinds(topology: Topology) -> dict[frozenset[str], str]:
        return {frozenset((by_index[pair.a], by_index[pair.b])): pair.kind for pair in topology.pairs}

    assert kinds(again) == kinds(machine)
    assert nccl_xml(again) == text
