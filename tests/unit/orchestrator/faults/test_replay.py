"""Readings of GPUs that fail are ones that the monitor takes."""

from pathlib import Path

import pytest

from orchestrator.config import Fault
from orchestrator.faults import replay
from orchestrator.faults.fault import KINDS, Who
from orchestrator.faults.replay import readings_of
from orchestrator.monitor.readings import DeviceReading
from orchestrator.monitor.replay import Replay

READINGS = [fault for fault, kind in KINDS.items() if kind.who is Who.readings]
NOW = 1.8e9


@pytest.mark.parametrize("fault", READINGS)
def test_the_monitor_of_a_run_sees_it_when_it_comes(fault: Fault, tmp_path: Path) -> None:
    monitor = Replay(["a", "b"], 0, tmp_path / replay.FILE)
    assert monitor.read(NOW - 10) == []
    replay.append(tmp_path, readings_of(fault, "#1", 0, NOW))
    (before,), (after,) = monitor.read(NOW - 1), monitor.read(NOW + 5)
    assert (before.device, before.throttle_reasons, before.lost, before.xids) == ("b", 0, False, ())
    assert after.device == "b"
    different = DeviceReading.__dataclass_fields__.keys() - {"time"}
    assert any(getattr(before, name) != getattr(after, name) for name in different)


def test_another_host_is_left_alone(tmp_path: Path) -> None:
    replay.append(tmp_path, readings_of(Fault.thermal, "#0", 1, NOW))
    assert Replay(["a"], 0, tmp_path / replay.FILE).read(NOW + 5) == []


def test_numbers_and_bits_are_those_of_the_driver() -> None:
    def made(fault: Fault) -> tuple[DeviceReading, ...]:
        return readings_of(fault, "#0", 0, NOW)

    def numbers(fault: Fault) -> list[tuple[float, int]]:
        return [(xid.time - NOW, xid.number) for found in made(fault) for xid in found.xids]

    assert numbers(Fault.xid_79) == [(0.0, 79)]
    assert numbers(Fault.xid_94) == [(0.0, 94)]
    assert numbers(Fault.xid_48_63) == [(0.0, 48), (1.0, 63)]
    assert numbers(Fault.xid_154) == [(0.0, 154)]
    assert made(Fault.xid_79)[-1].lost
    assert made(Fault.xid_154)[-1].recovery_action == 4
    hot = made(Fault.thermal)[-1]
    assert (hot.throttle_reasons or 0) & 0xE8
    assert dict(hot.throttle_ns)["hw_thermal"] > dict(made(Fault.thermal)[-2].throttle_ns)["hw_thermal"]
    slow = made(Fault.pcie_gen2)[-1]
    assert (slow.pcie_generation, slow.max_pcie_generation) == (2, 5)
    assert slow.utilisation == 1.0  # under load: an idle link may be slow
