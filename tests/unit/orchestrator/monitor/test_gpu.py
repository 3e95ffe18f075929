"""Readings of a GPU through the unmodified `pynvml`, which finds a stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.monitor.readings import DeviceReading
from orchestrator.monitor.store import decode

ROOT = Path(__file__).parents[4]
UUID = "GPU-00000000-0000-0000-0000-000000000000"
MACHINE = (
    f"gpu 0 uuid {UUID}\ngpu 0 pci 00000000:10:00.0\ngpu 0 name NVIDIA H100 80GB HBM3\ngpu 0 mib 81920\ngpu 0 links 2\n"
    "gpu 0 gen 4\ngpu 0 width 8\ngpu 0 max_gen 5\ngpu 0 max_width 16\ngpu 0 power 700000\ngpu 0 reasons 0x48\n"
)
VALUES = {
    "temperature": 71,
    "sm_clock": 1410,
    "memory_clock": 2600,
    "max_sm_clock": 1980,
    "power_milliwatts": 512_345,
    "utilisation": 97,
    "tx_kib": 1000,
    "rx_kib": 2000,
    "replays": 3,
    "ecc_corrected": 5,
    "ecc_uncorrected": 0,
    "field.74": 123_000_000,
    "field.76": 1,
    "field.269": 2**40,
    "field.270": 0,
    "field.271": 9,
    "field.94": 4,
    "field.91": 2,
    "field.161:1": 7,
    "field.163:0": 1,
    "field.230": 2,
    "gpm.2": 80,
    "gpm.10": 55,
    "gpm.20": 100,
    "gpm.21": 200,
}
WHOLE = {
    "memory_used_bytes": 2**30,
    "utilisation": 0.97,
    "sm_utilisation": 0.8,
    "dram_utilisation": 0.55,
    "sm_clock_mhz": 1410,
    "max_sm_clock_mhz": 1980,
    "memory_clock_mhz": 2600,
    "temperature_celsius": 71,
    "power_watts": 512.345,
    "power_limit_watts": 700.0,
    "throttle_reasons": 0x48,
    "throttle_ns": {
        "sw_power_cap": 123_000_000,
        "sync_boost": 1,
        "sw_thermal": 2**40,
        "hw_thermal": 0,
        "hw_power_brake": 9,
    },
    "pcie_generation": 4,
    "pcie_width": 8,
    "max_pcie_generation": 5,
    "max_pcie_width": 16,
    "pcie_tx_bytes_per_second": 100 * 2**20,
    "pcie_rx_bytes_per_second": 200 * 2**20,
    "pcie_replays": 3,
    "nvlink_errors": 8,
    "ecc_corrected": 5,
    "ecc_uncorrected": 0,
    "recovery_action": 2,
}
# One process takes many readings: the stand-in reads its files anew.
READ = """
import json, os, sys
import pynvml
from orchestrator.monitor.gpu import GpuMeter, Target
from orchestrator.monitor.store import encode
from topology.probe.nvml_calls import Caller
call = Caller(pynvml)
for line in sys.stdin:
    job = json.loads(line)
    os.environ["STAND_IN_METERS"], os.environ["STAND_IN_MACHINE"] = job["before"], job["machine"]
    call.read("nvmlInit")
    meter = GpuMeter(call, Target(device="a/gpu0", uuid=job["uuid"], pci=job["pci"]), 2)
    os.environ["STAND_IN_METERS"] = job["meters"]
    print(json.dumps(encode(meter.read(12.5))))
"""


def meters(**changes: int | None) -> str:
    values = {**VALUES, **{name.replace("__", ".").replace("_s_", ":"): value for name, value in changes.items()}}
    return "".join(f"0 {name} {value}\n" for name, value in values.items() if value is not None)


@pytest.fixture(scope="session")
def read(
    meter_library: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[dict[str, Any]]]:
    """Read the GPU with each of the texts of meters; `before` is what it says when it is opened."""

    def run(
        texts: Sequence[str],
        *,
        before: str | None = None,
        machine: str = MACHINE,
        uuid: str = UUID,
        flags: str = "",
        pci: str = "",
    ) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("gpu")
        (folder / "machine").write_text(machine)
        lines = []
        for at, text in enumerate(texts):
            (folder / f"{at}").write_text(text)
            (folder / f"before{at}").write_text(text if before is None else before)
            job = {"meters": str(folder / f"{at}"), "before": str(folder / f"before{at}"), "uuid": uuid, "pci": pci}
            lines.append(json.dumps({**job, "machine": str(folder / "machine")}))
        environment = {**os.environ, "LD_LIBRARY_PATH": str(meter_library(flags)), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", READ],
            env=environment,
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for record in found:
            assert isinstance(decode(record), DeviceReading)
            assert [record.pop(key) for key in ("kind", "device", "time", "host")] == ["device", "a/gpu0", 12.5, 2]
        return found

    return run


def test_all_that_the_driver_tells(read: Callable[..., list[dict[str, Any]]]) -> None:
    assert read([meters()]) == [WHOLE]


def test_every_call_fails_by_itself(read: Callable[..., list[dict[str, Any]]]) -> None:
    alone = {
        "nvmlDeviceGetTemperature": {"temperature_celsius"},
        "nvmlDeviceGetPowerUsage": {"power_watts"},
        "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
        "nvmlDeviceGetMaxClockInfo": {"max_sm_clock_mhz"},
        "nvmlDeviceGetUtilizationRates": {"utilisation"},
        "nvmlDeviceGetTotalEccErrors": {"ecc_corrected", "ecc_uncorrected"},
        "nvmlDeviceGetFieldValues": {"throttle_ns", "nvlink_errors", "recovery_action"},
        "nvmlGpmQueryDeviceSupport": {"sm_utilisation", "dram_utilisation"},
        "nvmlGpmSampleGet": {"sm_utilisation", "dram_utilisation"},
        "nvmlGpmMetricsGet": {"sm_utilisation", "dram_utilisation"},
    }
    found = read([f"{meters()}fail {function} 3\n" for function in alone])
    for (function, names), record in zip(alone.items(), found, strict=True):
        slower = {"pcie_tx_bytes_per_second": 1000 * 1024, "pcie_rx_bytes_per_second": 2000 * 1024}
        wanted = {name: value for name, value in WHOLE.items() if name not in names}
        assert record == (wanted | slower if "Gpm" in function else wanted), function


def test_a_counter_that_one_call_lacks_is_taken_from_the_other(read: Callable[..., list[dict[str, Any]]]) -> None:
    (found,) = read([f"{meters()}fail nvmlDeviceGetPcieReplayCounter 3\n"])
    assert found["pcie_replays"] == 4


def test_older_drivers_sum_the_links_themselves(read: Callable[..., list[dict[str, Any]]]) -> None:
    (found,) = read([meters(field__38=1, field__45=2, field__52=30, field__59=400, field__160=5000)])
    assert found["nvlink_errors"] == 5433


def test_a_driver_that_refuses_a_list_with_a_field_it_does_not_know_is_asked_one_by_one(
    read: Callable[..., list[dict[str, Any]]],
) -> None:
    assert read([meters(one_field_a_call=1)]) == [WHOLE]


def test_drivers_of_2020_have_other_names(read: Callable[..., list[dict[str, Any]]]) -> None:
    (found,) = read([meters()], flags="-DOLD")
    assert found["throttle_reasons"] == 0x48


def test_a_driver_that_fills_in_all_ones_is_not_believed(read: Callable[..., list[dict[str, Any]]]) -> None:
    (found,) = read([meters(field__269=2**64 - 1, ecc_corrected=2**64 - 1)])
    assert "sw_thermal" not in found["throttle_ns"]
    assert "ecc_corrected" not in found


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_rest_stays_unknown(
    read: Callable[..., list[dict[str, Any]]],
) -> None:
    functions = ("Temperature", "PowerUsage", "ClockInfo", "UtilizationRates", "FieldValues", "TotalEccErrors")
    gone = meters() + "".join(f"fail nvmlDeviceGet{name} 15\n" for name in functions)
    (found,) = read([gone], before=meters())
    assert found["lost"] is True
    assert "temperature_celsius" not in found


def test_a_gpu_is_found_by_its_address_where_its_uuid_is_not_known(read: Callable[..., list[dict[str, Any]]]) -> None:
    (found,) = read([meters()], uuid="GPU-none", pci="0000:10:00.0")
    assert found == WHOLE
    assert read([meters()], uuid="GPU-none") == [{}]
