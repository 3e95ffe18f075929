"""What a matrix becomes: the PCIe tree, NVLinks, names; and which of several matrices counts."""

from __future__ import annotations

import pytest

from topology.errors import TopologyError
from topology.model import SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe.smi import parse_smi
from topology.units import GB, GIB


def matrix(*rows: str, names: str = "") -> str:
    names = names or " ".join(f"GPU{at}" for at in range(len(rows)))
    return "\n".join([f"  {names}", *(f"{name} {row}" for name, row in zip(names.split(), rows, strict=True))]) + "\n"


def uniform(size: int, label: str) -> str:
    return matrix(*(" ".join("X" if a == b else label for b in range(size)) for a in range(size)))


def nvlinks(topology: Topology) -> list[tuple[str, str, str]]:
    return [(link.a, link.b, link.kind) for link in topology.links if link.kind.startswith("NV")]


def kinds(topology: Topology) -> list[str]:
    return [pair.kind for pair in topology.pairs]


def test_labels_of_gpus_and_nics_come_back() -> None:
    names = "GPU0 GPU1 NIC0 NIC1"
    rows = ("X NV4 PIX SYS", "NV4 X SYS PXB", "PIX SYS X SYS", "SYS PXB SYS X")
    topology = parse_smi(matrix(*rows, names=names) + "NIC1: mlx5_7\n", host="h")
    labels = pcie_labels(topology)
    assert labels[frozenset(("h/gpu0", "h/NIC0"))] == "PIX"
    assert labels[frozenset(("h/gpu1", "h/mlx5_7"))] == "PXB"
    assert labels[frozenset(("h/NIC0", "h/mlx5_7"))] == "SYS"
    assert labels[frozenset(("h/gpu0", "h/gpu1"))] == "SYS"  # behind NVLink, yet the NICs tell it


@pytest.mark.parametrize(
    ("size", "label", "is_switched"),
    [
        (2, "NV12", False),
        (4, "NV4", False),
        (4, "NV6", False),
        (4, "NV18", True),
        (3, "NV12", True),
        (8, "NV8", True),
        (8, "NV12", True),
        (8, "NV18", True),
        (16, "NV6", True),
    ],
)
def test_nvswitches_are_inferred_from_more_links_than_a_gpu_has(size: int, label: str, is_switched: bool) -> None:
    topology = parse_smi(uniform(size, label), host="h")
    switches = [switch.id for switch in topology.switches if switch.kind is SwitchKind.nvswitch]
    links = nvlinks(topology)
    assert switches == (["h/nvswitch"] if is_switched else [])
    assert len(links) == (size if is_switched else size * (size - 1) // 2)
    assert {kind for _, _, kind in links} == {label}
    assert not is_switched or {end for _, end, _ in links} == {"h/nvswitch"}


def test_rates_of_nvlinks_are_assumed_where_the_text_names_no_gpu() -> None:
    (link,) = (link for link in parse_smi(uniform(2, "NV4"), host="h").links if link.kind == "NV4")
    assert link.bytes_per_second is None
    assert link.assumed_bytes_per_second == 100 * GB
    assert "assumed" in link.source


def test_a_gpu_that_lost_links_has_a_narrower_bundle_to_the_switch() -> None:
    rows = [["X" if a == b else "NV10" if 2 in (a, b) else "NV12" for b in range(8)] for a in range(8)]
    topology = parse_smi(matrix(*map(" ".join, rows)), host="h")
    assert {a: kind for a, _, kind in nvlinks(topology)}["h/gpu2"] == "NV10"
    assert [kind for _, _, kind in nvlinks(topology)].count("NV12") == 7


def test_counts_no_machine_has_make_no_links() -> None:
    topology = parse_smi(matrix("X NV18 NV12", "NV18 X SYS", "NV12 SYS X"), host="h")
    assert nvlinks(topology) == []
    assert any("30 NVLinks" in warning for warning in topology.warnings)


SHOWN = uniform(2, "NV4")
PLACES = uniform(2, "NODE")


@pytest.mark.parametrize(
    "text",
    [
        SHOWN + "\n" + PLACES,
        PLACES + "\n" + SHOWN,
        f"$ nvidia-smi topo -m\n{SHOWN}\n$ nvidia-smi topo -mp\n{PLACES}",
        f"{SHOWN}\nLegend:\n PIX = a\n NV# = b\n\n{PLACES}\nLegend:\n PIX = a\n",
        SHOWN + "\n" + PLACES + "\n" + SHOWN + "\n" + PLACES,
    ],
)
def test_m_and_mp_complete_each_other(text: str) -> None:
    topology = parse_smi(text, host="h")
    assert kinds(topology) == ["NV4"]
    assert list(pcie_labels(topology).values()) == ["NODE"]
    assert any("PCIe places are those" in warning for warning in topology.warnings)


def test_two_outputs_of_m_that_differ_are_not_mixed() -> None:
    text = f"$ nvidia-smi topo -m\n{SHOWN}\n$ nvidia-smi topo -m\n{PLACES}"
    topology = parse_smi(text, host="h")
    assert kinds(topology) == ["NV4"]
    assert "the matrix at line 2 is taken" in topology.warnings[1]
    assert "topology.matrix=2 takes that of line 7" in topology.warnings[1]
    assert kinds(parse_smi(text, host="h", matrix=2)) == ["NODE"]
    assert kinds(parse_smi(text, host="h", matrix=1)) == ["NV4"]
    with pytest.raises(TopologyError, match=r"headers at lines 2, 7; do: give topology.matrix a number from 1 to 2"):
        parse_smi(text, host="h", matrix=3)
    with pytest.raises(TopologyError):
        parse_smi(text, host="h", matrix=0)


def test_labels_that_contradict_are_two_machines() -> None:
    shown = matrix("X NV4 SYS", "NV4 X SYS", "SYS SYS X")
    topology = parse_smi(shown + "\n" + uniform(3, "PHB"), host="h")
    assert any("a matrix that differs" in warning for warning in topology.warnings)


TOLD = "  GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X {0} {1} {2}\nGPU1 {0} X {1} {2}\n"


@pytest.mark.parametrize(
    ("between", "cpus", "node", "is_one"),
    [
        ("", "0-23", "N/A", True),
        ("", "0-11", "N/A", False),
        ("", "0-23", "1", True),
        ("Legend:\n\n  X    = Self\n```\n\n```text\n", "0-23", "N/A", True),
        ("nvidia-smi topo -mp\n", "0-11", "N/A", False),
        ("on another machine:\n", "0-23", "N/A", False),
        ("On a machine without NVLink GPU0 and GPU1 look like this\n", "N/A", "N/A", False),
        ("\u5728\u4e0d\u540c\u7684\u673a\u5668\u4e0a\n", "N/A", "N/A", False),
        ("And the PCIe places, by `nvidia-smi topo -mp`:\n", "0-23", "N/A", True),
    ],
)
def test_m_and_mp_are_of_one_machine(between: str, cpus: str, node: str, is_one: bool) -> None:
    topology = parse_smi(TOLD.format("NV2", "0-23", "N/A") + "\n" + between + TOLD.format("PHB", cpus, node), host="h")
    assert kinds(topology) == ["NV2"]
    assert any("PCIe places are those" in warning for warning in topology.warnings) == is_one
    assert any("a matrix that differs" in warning for warning in topology.warnings) != is_one


def test_a_nic_may_have_the_name_of_another_part() -> None:
    names = ("gpu0", "node0", "bridge0", "pcie0", "nvswitch")
    columns = " ".join(["GPU0", "GPU1", *(f"NIC{at}" for at in range(len(names)))])
    legend = "".join(f"NIC{at}: {name}\n" for at, name in enumerate(names))
    size = len(names) + 2
    rows = [" ".join("X" if a == b else "NV4" if a + b == 1 else "PIX" for b in range(size)) for a in range(size)]
    topology = parse_smi(matrix(*rows, names=columns) + legend, host="h")
    assert [nic.name for nic in topology.nics] == list(names)
    assert set(pcie_labels(topology).values()) == {"PIX"}


def test_a_repeat_completes_what_the_first_left_out() -> None:
    text = SHOWN + "\n  GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV4 0-3 0\nGPU1 NV4 X 4-7 1\n"
    topology = parse_smi(text, host="h")
    assert [device.numa for device in topology.gpus] == [0, 1]
    assert not any("differ" in warning for warning in topology.warnings)


UUIDS = [f"GPU-{at}aaaaaaa-0000-1111-2222-333333333333" for at in range(2)]
LISTED = "".join(f"GPU {at}: NVIDIA A100-SXM4-80GB (UUID: {uuid})\n" for at, uuid in enumerate(UUIDS))
CSV = "index, name, memory.total [MiB], pci.bus_id\n" + "".join(
    f"{at}, NVIDIA A100-SXM4-80GB, 81920 MiB, 00000000:0{at + 1}:00.0\n" for at in range(2)
)
TABLE = "".join(
    f"|   {at}  NVIDIA A100-SXM4-80GB          On  | 00000000:0{at + 1}:00.0 Off |                    0 |\n"
    "| N/A   31C    P0    62W / 400W |      0MiB / 81920MiB |      0%      Default |\n"
    for at in range(2)
)


@pytest.mark.parametrize("beside", [LISTED, CSV, TABLE, LISTED + CSV + TABLE])
def test_names_are_taken_from_what_stands_beside_the_matrix(beside: str) -> None:
    for text in (beside + "\n" + SHOWN, SHOWN + "\n" + beside):
        topology = parse_smi(text, host="h")
        assert {device.name for device in topology.gpus} == {"NVIDIA A100-SXM4-80GB"}
        assert {device.memory_bytes for device in topology.gpus} == {80 * GIB}
        if "UUID" in beside:
            assert [device.uuid for device in topology.gpus] == UUIDS
            assert topology.pairs[0].a == UUIDS[0]
        if "00000000" in beside:
            assert [device.pci for device in topology.gpus] == ["0000:01:00.0", "0000:02:00.0"]
        assert any("nominal size" in warning for warning in topology.warnings) == (beside is LISTED)


@pytest.mark.parametrize(
    "beside",
    [
        LISTED.splitlines()[0],
        LISTED + "GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-x)",
        LISTED + "GPU 0: Tesla T4 (UUID: GPU-y)",
        LISTED.replace("GPU-1", "GPU-0"),
    ],
)
def test_a_list_of_other_gpus_is_not_used(beside: str) -> None:
    topology = parse_smi(SHOWN + "\n" + beside, host="h")
    assert {device.name for device in topology.gpus} == {"unknown GPU"}
    assert {device.uuid for device in topology.gpus} == {None}
    assert any("unknown" in warning for warning in topology.warnings[1:])


def test_names_cut_or_masked_stay_unknown() -> None:
    text = SHOWN + "\n" + LISTED.replace("aaaaaaa", "xxxxxxx") + TABLE.replace("A100-SXM4-80GB   ", "A100-SXM...      ")
    topology = parse_smi(text, host="h")
    assert {device.uuid for device in topology.gpus} == {None}
    assert [device.id for device in topology.gpus] == ["h/gpu0", "h/gpu1"]
    assert {device.name for device in topology.gpus} == {"NVIDIA A100-SXM4-80GB"}


def test_slices_below_a_gpu_say_that_it_is_cut_up() -> None:
    first, second = LISTED.splitlines()
    text = f"{SHOWN}\n{first}\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n{second}\n"
    assert [device.mig for device in parse_smi(text, host="h").gpus] == [True, None]
