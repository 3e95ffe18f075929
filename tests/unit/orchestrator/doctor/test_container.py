"""Why GPUs that exist cannot be used: drivers, device files, containers."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.doctor.checks_container import check_container

FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")


def test_a_working_driver_has_no_findings(made: Any) -> None:
    container = made.container(bus_gpus=made.ok(("0000:10:00.0",)), device_files=made.ok(FILES))
    assert made.found(check_container(container, made.machine(made.gpu()))) == []


@pytest.mark.parametrize("marks", [(), ("/.dockerenv",)])
@pytest.mark.parametrize(
    ("changes", "severity", "said"),
    [
        ({}, "note", "no NVIDIA GPU is visible"),
        ({"bus_gpus": ("0000:10:00.0",)}, "error", "have no driver"),
        ({"driver_gpus": ("0000:10:00.0",)}, "error", "no device file"),
        ({"device_files": FILES}, "error", "library is not usable"),
    ],
)
def test_without_a_driver_the_place_of_the_gap_is_named(
    made: Any, changes: dict[str, Any], severity: str, said: str, marks: tuple[str, ...]
) -> None:
    container = made.container(marks=marks, **{key: made.ok(value) for key, value in changes.items()})
    found = [item for item in check_container(container, made.machine()) if item.check == "driver"]
    assert made.found(found) == [("driver", severity)]
    assert said in found[0].title
    assert ("--gpus" in found[0].remedy) == bool(marks)
    assert ("/.dockerenv" in found[0].title) == bool(marks)


def test_a_driver_without_gpus_is_a_note(made: Any) -> None:
    assert made.found(check_container(made.container(), made.machine(unavailable=None))) == [("driver", "note")]


def test_a_bus_that_cannot_be_read_is_told(made: Any) -> None:
    container = made.container(bus_gpus=made.bad("EACCES"))
    (found,) = check_container(container, made.machine())
    assert (found.severity.value, found.evidence) == ("note", "made up: EACCES")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("LIB_RM_VERSION_MISMATCH", "reboot"),
        ("DRIVER_NOT_LOADED", "modprobe"),
        ("NO_PERMISSION", "/dev/nvidiactl"),
        ("LIBRARY_NOT_FOUND", "is missing"),
        ("FUNCTION_NOT_FOUND", "LD_LIBRARY_PATH"),
        ("UNKNOWN", "dmesg"),
        ("INSUFFICIENT_RESOURCES", "dmesg"),
    ],
)
def test_a_driver_that_does_not_start_gets_its_own_remedy(made: Any, code: str, remedy: str) -> None:
    machine = made.machine(unavailable=f"no NVIDIA driver: NVML does not start ({code})")
    found = check_container(made.container(device_files=made.ok(FILES)), machine)
    assert made.found(found) == [("driver", "error")]
    assert remedy in found[0].remedy


@pytest.mark.parametrize("marks", [(), ("/.dockerenv",)])
@pytest.mark.parametrize(
    ("unavailable", "remedy"),
    [
        ("the NVIDIA driver does not count its GPUs (UNKNOWN)", ""),
        ("no NVIDIA driver: NVML does not start (UNKNOWN)", ""),
        ("no NVIDIA driver: /run/opengl-driver/lib/libnvidia-ml.so.1 cannot be loaded: file too short", "damaged"),
        (
            "no NVIDIA driver: /a/libnvidia-ml.so.1 cannot be loaded: cannot open shared object file: No such file",
            "ldco",
        ),
        ("the NVIDIA driver does not answer within 20 s (/real-time/libnvidia-ml.so.1)", "hangs"),
        ("the NVIDIA library /usr/lib/libnvidia-ml.so.1 ends the process (SIGSEGV)", "crashes"),
        ("reading /usr/lib/libnvidia-ml.so.1 ends without readings (exit status 1)", "crashes"),
        ("no NVIDIA driver: the package nvidia-ml-py is not installed", "pip install"),
        ("something that was never said before", ""),
    ],
)
def test_a_driver_that_fails_is_no_absent_driver(
    made: Any, unavailable: str, remedy: str, marks: tuple[str, ...]
) -> None:
    # Nothing else of GPUs is seen: the library alone says that there is a driver.
    (found,) = check_container(made.container(marks=marks), made.machine(unavailable=unavailable))
    assert (found.check, found.severity.value) == ("driver", "error")
    assert unavailable in found.evidence
    assert remedy in found.remedy
    assert "no NVIDIA GPU is visible" not in found.title


def test_a_container_that_lost_its_devices_is_to_be_restarted(made: Any) -> None:
    machine = made.machine(unavailable="no NVIDIA driver: NVML does not start (UNKNOWN)")
    container = made.container(marks=("/.dockerenv",), device_files=made.ok(FILES))
    (found,) = (item for item in check_container(container, machine) if item.check == "driver")
    assert found.remedy.startswith("Restart the container")
    assert "daemon-reload" in found.remedy
    assert "--device nvidia.com/gpu=all" in found.remedy
    assert "--gpus all" not in found.remedy
    # On the host nobody takes them away like this.
    (found,) = (item for item in check_container(made.container(), machine) if item.check == "driver")
    assert "Restart the container" not in found.remedy


@pytest.mark.parametrize(("marks", "severity"), [((), "warning"), (("/.dockerenv",), "note")])
def test_gpus_that_only_the_bus_shows(made: Any, marks: tuple[str, ...], severity: str) -> None:
    container = made.container(bus_gpus=made.ok(("0000:10:00.0", "0000:99:00.0")), marks=marks)
    found = check_container(container, made.machine(made.gpu()))
    assert made.found(found) == [("unseen-gpus", severity)]
    assert any(item.evidence == "PCI bus: 0000:99:00.0" for item in found)


@pytest.mark.parametrize("text", ["void", "none", ""])
def test_a_runtime_asked_for_no_gpu(made: Any, text: str) -> None:
    container = made.container(marks=("/.dockerenv",), visible=text)
    assert ("visible-devices", "warning") in made.found(check_container(container, made.machine()))


def test_hidden_gpus_are_told(made: Any) -> None:
    machine = made.machine(made.gpu(is_visible=False), visible_devices="")
    assert made.found(check_container(made.container(), machine)) == [("visible-devices", "warning")]


@pytest.mark.parametrize("missing", ["/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_cuda_needs_more_than_the_card_s_own_file(made: Any, missing: str) -> None:
    files = tuple(name for name in FILES if name != missing)
    found = check_container(made.container(device_files=made.ok(files)), made.machine(made.gpu()))
    assert made.found(found) == [("device-files", "error")]
    assert any(missing in item.title for item in found)


@pytest.mark.parametrize(
    ("files", "faults"), [(("rdma_cm",), [("rdma-files", "warning")]), (("rdma_cm", "uverbs0"), [])]
)
def test_rdma_nics_without_files(made: Any, files: tuple[str, ...], faults: list[tuple[str, str]]) -> None:
    container = made.container(rdma_devices=made.ok(("mlx5_0",)), rdma_files=made.ok(files))
    assert made.found(check_container(container, made.machine(made.gpu()))) == faults


def test_a_visible_mig_device_makes_its_gpu_visible(made: Any) -> None:
    gpus = (made.gpu(0, mig=True, slices=("MIG-1", "MIG-2")), made.gpu(1, is_visible=False))
    (found,) = (
        item
        for item in check_container(made.container(), made.machine(*gpus, visible_devices="MIG-1,MIG-2"))
        if item.check == "visible-devices"
    )
    assert found.severity.value == "ok"
    assert found.title == "1 of 2 GPU(s) are visible to CUDA, 2 MIG device(s) among them"


@pytest.mark.parametrize("visible", [None, "0"])
def test_nobody_hides_a_lost_gpu(made: Any, visible: str | None) -> None:
    machine = made.machine(made.gpu(is_visible=False, lost="nvmlDeviceGetUUID: GPU_IS_LOST"), visible_devices=visible)
    assert made.found(check_container(made.container(), machine)) == []


def test_what_cuda_ignores_is_told(made: Any) -> None:
    machine = made.machine(made.gpu(), visible_devices="0,9", visibility=("'9' is no index below 1",))
    (found,) = (item for item in check_container(made.container(), machine) if item.check == "visible-devices")
    assert (found.severity.value, found.evidence) == ("note", "'9' is no index below 1")
