"""What the verb makes of what its processes tell, with stand-ins for the machine and the processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.calibration_file import Calibration, Measured, from_json, loads
from orchestrator.config import BenchConfig, DataConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.errors import RunFailed, UserError
from orchestrator.measure import bench
from orchestrator.measure.run import Crew, Outcome
from orchestrator.outputs import write_whole
from topology.presets import preset

Make = Callable[..., Calibration]


def config(*only: str, **changes: Any) -> RunConfig:
    job = {"model": ModelConfig(path="none"), "data": DataConfig(path="none")}
    return RunConfig(**{**job, "bench": BenchConfig(only=only or ("all",)), **changes})


class Crews:
    """Stands in for the processes: each part tells one number, unless it is to fail."""

    def __init__(self, spread: float = 0.1, failing: tuple[str, ...] = ()) -> None:
        self.seen: list[Crew] = []
        self.spread = spread
        self.failing = failing

    def __call__(self, crew: Crew, _: Callable[[str], None]) -> Outcome:
        self.seen.append(crew)
        one = {"value": 2.0, "unit": "B/s", "repeats": 5, "spread": self.spread, "how": "so"}
        names = [part.name for part in crew.parts]
        return Outcome(
            measured={
                name: (Measured(name="x", device=crew.device_name, **one),)
                for name in names
                if name not in self.failing
            },
            failed={name: "no kernel" for name in names if name in self.failing},
            versions={"torch": "2.13.0"},
        )


def measured(monkeypatch: pytest.MonkeyPatch, machine: str, crews: Crews, asked: RunConfig) -> bench.Bench:
    monkeypatch.setattr(bench, "machine_of", lambda _: preset(machine))
    return bench.measure(asked, "2026-11-30", lambda _: None, crews)


def test_cpu_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    crews = Crews()
    found = measured(monkeypatch, "cpu", crews, config()).calibration
    cores = preset("cpu").hosts[0].cores
    device, *hosts = crews.seen
    assert (device.ranks, device.threads, device.device) == (2, cores // 2, "cpu")
    assert {(host.ranks, host.device_name) for host in hosts} == {(1, "")}
    assert [part.name for part in hosts[-1].parts] == ["links", "collectives"]  # they share their ranks
    assert (found.ranks, found.threads) == (2, cores // 2)
    assert {section.name for section in found.sections} == {part.name for crew in crews.seen for part in crew.parts}
    assert measured(monkeypatch, "cpu", crews, config(devices=1)).calibration.threads == cores


def test_each_kind_of_gpu_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crews = Crews()
    found = measured(monkeypatch, "2xa100-40gb+2xt4", crews, config("gemm", "context")).calibration
    machine = preset("2xa100-40gb+2xt4").hosts[0]
    firsts = {device.name: device.id for device in reversed(machine.devices)}
    assert {crew.device_name: crew.visible for crew in crews.seen} == firsts
    assert (found.ranks, found.threads) == (0, 0)
    assert found.measured_devices == set(firsts)


def test_a_failed_part_is_told_and_the_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, "cpu", Crews(failing=("memory",)), config("gemm", "memory"))
    assert found.failed == (("memory", "no kernel"),)
    assert [section.name for section in found.calibration.sections] == ["gemm"]
    text = bench.to_text(found, "/cache/x.json")
    assert "memory: no kernel" in text
    assert "/cache/x.json" in text


def test_numbers_that_say_nothing_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match=r"lie 300% apart"):
        measured(monkeypatch, "cpu", Crews(spread=3.0), config("gemm"))
    wide = measured(monkeypatch, "cpu", Crews(spread=0.5), config("gemm"))
    assert "Measure again on an idle machine" in bench.to_text(wide, "")


def test_another_machine_cannot_be_measured_from_here() -> None:
    asked = config(topology=TopologyConfig(preset="dgx_h100"))
    with pytest.raises(UserError, match="measures the machine it runs on"):
        bench.measure(asked, "2026-11-30", lambda _: None, Crews())


def test_the_document_is_a_calibration_file(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, "cpu", Crews(), config("gemm", "stack"))
    assert from_json(bench.to_json(found, "/x"), "c.json") == found.calibration


def test_the_store_keeps_other_parts_and_mends_damage(make_calibration: Make, tmp_path: Path) -> None:
    environ, said = {"XDG_CACHE_HOME": str(tmp_path)}, []
    first = make_calibration({"gemm": {"a": 1.0}})
    path = Path(bench.store(first, environ, said.append, write_whole))
    bench.store(make_calibration({"memory": {"copy": 2.0}}), environ, said.append, write_whole)
    kept = loads(path.read_text(), "c.json")
    assert {section.name for section in kept.sections} == {"gemm", "memory"}
    assert said == []
    path.write_text("{")
    bench.store(first, environ, said.append, write_whole)
    assert loads(path.read_text(), "c.json") == first
    assert "replaced" in said[0]


def test_a_cache_that_cannot_be_written_is_told(make_calibration: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    stored = bench.store(make_calibration({}), {"XDG_CACHE_HOME": str(tmp_path / "file")}, said.append, write_whole)
    assert stored == ""
    assert said[0].startswith("not stored: ")
