"""All checks together, and what becomes of evidence that is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.doctor import examine, to_json, to_text
from orchestrator.doctor.evidence import Evidence, LoadEvidence
from orchestrator.doctor.examination import judge, read_evidence
from orchestrator.doctor.read_packages import read_packages
from topology.probe import MachineReadings, read_machine
from topology.probe.readings import GpuReadings
from topology.reading import Reading


@pytest.fixture
def healthy(made: Any) -> Evidence:
    gpus = (made.gpu(0, nvlink=made.nvlink(1, 1)), made.gpu(1, nvlink=made.nvlink(1, 1)))
    return Evidence(
        machine=made.machine(*gpus, nics=(made.nic("mlx5_0", 0),)),
        limits=made.limits(),
        container=made.container(
            bus_gpus=made.ok(tuple(gpu.pci for gpu in gpus)),
            driver_gpus=made.ok(tuple(gpu.pci for gpu in gpus)),
            device_files=made.ok(("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")),
            rdma_devices=made.ok(("mlx5_0",)),
            rdma_files=made.ok(("uverbs0",)),
        ),
        packages=made.packages(requirements=(("trl", "numpy>=2"),)),
        pci=made.pci(("0000:00:01.0", made.ok(0)), ("0000:01:01.0", made.ok(0))),
        fabric_manager=made.manager(),
        loads=(made.load(0), made.load(1)),
    )


def parts(value: Any) -> Iterator[Reading[Any]]:
    """Every reading in a value."""
    if isinstance(value, Reading):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif is_dataclass(value):
        for item in fields(value):
            yield from parts(getattr(value, item.name))


def blinded(value: Any, choices: Iterator[bool]) -> Any:
    """The same value, with the chosen readings failed."""
    if isinstance(value, Reading):
        return Reading(source=value.source, error="EPERM") if next(choices) else value
    if isinstance(value, tuple):
        return tuple(blinded(item, choices) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: blinded(getattr(value, item.name), choices) for item in fields(value)})
    return value


def test_a_healthy_machine_has_nothing_to_tell(made: Any, healthy: Evidence) -> None:
    findings = judge(healthy)
    assert made.found(findings) == []
    checks = {item.check for item in findings}
    assert {"driver", "versions", "throttle", "pcie-link", "nvlink", "p2p", "acs", "iommu", "nic-numa", "shm"} <= checks


# The evidence is frozen, so examples may share it.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_unknown_accuses_nobody(healthy: Evidence, data: st.DataObject) -> None:
    count = sum(1 for _ in parts(healthy))
    choices = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    findings = judge(blinded(healthy, iter(choices)))
    assert {item.severity.value for item in findings} <= {"ok", "note"}
    to_json(findings)
    assert re.search(r"0 errors, 0 warnings, \d+ notes?, \d+ ok\n$", to_text(findings))


def test_a_blind_examination_tells_of_every_part(made: Any, healthy: Evidence) -> None:
    healthy = replace(healthy, loads=())
    findings = judge(blinded(healthy, iter([True] * sum(1 for _ in parts(healthy)))))
    told = {check for check, _ in made.found(findings)}
    assert {"throttle", "row-remap", "ecc", "pcie-link", "nic-numa", "cpu-affinity", "p2p", "acs", "iommu"} <= told
    assert {"shm", "memlock", "open-files", "pids", "memory-limit", "versions", "torch-cuda"} <= told


def gpu(index: int) -> GpuReadings:
    ok: Reading[Any] = Reading(source="made up", value=2**40)
    no: Reading[Any] = Reading(source="made up", error="NOT_SUPPORTED")
    return GpuReadings(
        index=index,
        uuid=Reading(source="made up", value=f"GPU-{index}"),
        name=Reading(source="made up", value="NVIDIA L4"),
        pci=Reading(source="made up", value=f"0000:1{index}:00.0"),
        memory_total_bytes=ok,
        memory_free_bytes=ok,
        compute_capability=no,
        numa=no,
        cpus=no,
    )


def readings(tmp_path: Path, visible: str | None) -> MachineReadings:
    found = read_machine(tmp_path, {})
    nvml = replace(found.nvml, gpus=(gpu(0), gpu(1)), unavailable=None, visible_devices=visible)
    return replace(found, nvml=nvml)


def loads(tmp_path: Path, *, load: bool, visible: str | None = None) -> dict[str, str | None]:
    def watcher(uuid: str, seconds: float, **_: Any) -> LoadEvidence:
        return LoadEvidence(gpu=uuid, bytes_per_second=seconds)

    found = read_evidence(
        load=load, root=tmp_path, environment={}, readings=readings(tmp_path, visible), watcher=watcher
    )
    return {item.gpu: item.failure for item in found.loads}


def test_load_is_put_only_where_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loads(tmp_path, load=False) == {"GPU-0": "load=false", "GPU-1": "load=false"}
    cuda = replace(read_packages({}), torch_cuda=Reading(source="made up", value="13.0"))
    monkeypatch.setattr("orchestrator.doctor.examination.read_packages", lambda _: cuda)
    assert loads(tmp_path, load=True) == {"GPU-0": None, "GPU-1": None}
    hidden = loads(tmp_path, load=True, visible="GPU-1")
    assert hidden == {"GPU-0": "CUDA_VISIBLE_DEVICES hides it", "GPU-1": None}
    cpu = replace(cuda, torch_cuda=Reading(source="made up", error="CPU_BUILD"))
    monkeypatch.setattr("orchestrator.doctor.examination.read_packages", lambda _: cpu)
    assert loads(tmp_path, load=True)["GPU-0"] == "no torch with CUDA (CPU_BUILD)"


def test_this_machine_is_examined() -> None:
    findings = examine(load=False)
    assert {"driver", "versions", "shm"} <= {item.check for item in findings}
