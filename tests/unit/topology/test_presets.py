from __future__ import annotations

import pytest

from topology.errors import TopologyError
from topology.model import DeviceKind
from topology.presets import cpu_host, preset


@pytest.mark.parametrize(
    ("name", "gpus", "kinds", "islands"),
    [
        ("1x24gb", 1, set(), 1),
        ("2x24gb-pcie", 2, {"PHB"}, 2),
        ("2x24gb-node", 2, {"NODE"}, 2),
        ("8xa100-80gb", 8, {"NV12"}, 1),
        ("8xh100", 8, {"NV18"}, 1),
        ("4xv100-16gb", 4, {"NV1", "NV2"}, 1),
        ("2xa100-40gb+2xt4", 4, {"NODE", "SYS"}, 4),
    ],
)
def test_presets_are_the_machines_they_name(name: str, gpus: int, kinds: set[str], islands: int) -> None:
    topology = preset(name)
    assert len(topology.gpus) == gpus
    assert {pair.kind for pair in topology.pairs} == kinds
    assert len(topology.islands) == islands


def test_an_nvswitch_gives_every_gpu_its_whole_rate() -> None:
    rates = {name: {link.bytes_per_second for link in preset(name).links} for name in ("8xa100-80gb", "8xh100")}
    assert rates == {"8xa100-80gb": {300e9}, "8xh100": {450e9}}


def test_the_cpu_host_has_as_many_slots_as_asked() -> None:
    topology = cpu_host(slots=5)
    assert [device.id for device in topology.devices] == [f"cpuhost/cpu{slot}" for slot in range(5)]
    assert {device.kind for device in topology.devices} == {DeviceKind.cpu}
    assert topology.hosts[0].memory_bytes == sum(device.memory_bytes for device in topology.devices)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(TopologyError, match="use '8xa100-80gb'"):
        preset("8xA100")
