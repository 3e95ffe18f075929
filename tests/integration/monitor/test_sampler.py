"""The sampler as the process it is: killed, orphaned, hung in the driver, scraped and replayed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from launch.execute import free_port
from orchestrator.monitor.gpu import Target
from orchestrator.monitor.log import ReadingLog
from orchestrator.monitor.process import MODULE, SamplerProcess, log_path
from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from orchestrator.monitor.sampler import Options, arguments_of
from orchestrator.monitor.scalars import scalars_folder
from orchestrator.monitor.store import host_file, parse_line, rank_file, read_run

pytestmark = pytest.mark.integration
METERS = Path(__file__).parents[2] / "unit/orchestrator/monitor/nvml_meters.c"
UUIDS = [f"GPU-0000000{at}-0000-0000-0000-000000000000" for at in range(2)]
MACHINE = "".join(
    f"gpu {at} uuid {uuid}\ngpu {at} pci 00000000:1{at}:00.0\ngpu {at} name NVIDIA L4\ngpu {at} mib 23034\n"
    for at, uuid in enumerate(UUIDS)
)


def until(wanted: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "not within its time"
        time.sleep(0.02)


@contextmanager
def started(options: Options, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    log = log_path(options.run_dir, options.host)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments_of(options)], env={**os.environ, **environment}, stderr=errors
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def readings(run_dir: Path, kind: type = object) -> list[object]:
    return [reading for reading in read_run(run_dir) if isinstance(reading, kind)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for the driver's library and its files."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build the stand-in library")
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(METERS)]
    subprocess.run(command, check=True, timeout=30)
    (folder / "machine").write_text(MACHINE)
    return folder


def in_driver(folder: Path, meters: str) -> dict[str, str]:
    (folder / "meters").write_text(meters)
    found = {"STAND_IN_MACHINE": folder / "machine", "STAND_IN_METERS": folder / "meters", "LD_LIBRARY_PATH": folder}
    return {name: str(path) for name, path in found.items()}


def both(run_dir: Path) -> Options:
    targets = tuple(Target(device=f"a/gpu{at}", uuid=uuid) for at, uuid in enumerate(UUIDS))
    return Options(run_dir=run_dir, every_seconds=0.1, devices=targets, has_gpus=True)


def test_killed_at_any_moment_it_leaves_whole_lines(tmp_path: Path) -> None:
    with started(Options(run_dir=tmp_path, every_seconds=0.01)) as process:
        until(lambda: len(readings(tmp_path)) > 20)
        process.kill()
        process.wait(10)
    lines = host_file(tmp_path, 0).read_bytes().splitlines()
    assert all(parse_line(line) for line in lines[:-1])
    before = len(readings(tmp_path))
    with started(Options(run_dir=tmp_path, every_seconds=0.01)):
        until(lambda: len(readings(tmp_path)) > before + 3)


def test_it_ends_with_the_process_that_started_it_and_writes_what_it_has(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from orchestrator.monitor.process import SamplerProcess;"
        "from orchestrator.monitor.sampler import Options;"
        "print(SamplerProcess(Options(run_dir=Path(sys.argv[1]), every_seconds=0.2)).pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: len(readings(tmp_path)) > 1)
    parent.kill()
    parent.wait(10)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 5)
    assert "sampled for" in log_path(tmp_path, 0).read_text()


def test_asked_to_end_it_ends_at_once(tmp_path: Path) -> None:
    process = SamplerProcess(Options(run_dir=tmp_path, every_seconds=60.0))
    until(lambda: bool(readings(tmp_path)))
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 2.0
    assert len(readings(tmp_path, HostReading)) == 2  # the first, and one at the end


def test_devices_of_the_run_are_read_and_an_error_is_told_once(tmp_path: Path, driver: Path) -> None:
    only = both(tmp_path)
    only = Options(run_dir=tmp_path, every_seconds=0.1, devices=only.devices[1:], has_gpus=True)
    with started(only, **in_driver(driver, "1 temperature 55\n0 temperature 90\nxid 1 31\n")) as process:
        until(lambda: len(readings(tmp_path, DeviceReading)) > 4)
        process.terminate()
        assert process.wait(5) == 0
    found = readings(tmp_path, DeviceReading)
    assert {(one.device, one.temperature_celsius) for one in found if one.temperature_celsius} == {("a/gpu1", 55)}  # type: ignore[attr-defined]
    assert [(xid.device, xid.number) for one in found for xid in one.xids] == [("a/gpu1", 31)]  # type: ignore[attr-defined]


def test_a_driver_that_hangs_keeps_neither_the_host_from_being_read_nor_the_end(tmp_path: Path, driver: Path) -> None:
    environment = in_driver(driver, "0 temperature 50\n1 temperature 50\n")
    with started(both(tmp_path), **environment) as process:
        until(lambda: len(readings(tmp_path, DeviceReading)) > 2)
        (driver / "meters").write_text("hang nvmlDeviceGetTemperature\n")
        time.sleep(0.3)
        num_devices, num_hosts = len(readings(tmp_path, DeviceReading)), len(readings(tmp_path, HostReading))
        until(lambda: len(readings(tmp_path, HostReading)) > num_hosts + 5)
        assert len(readings(tmp_path, DeviceReading)) == num_devices
        process.terminate()
        assert process.wait(3) == 0


def test_a_driver_that_hangs_at_its_start_does_no_harm(tmp_path: Path, driver: Path) -> None:
    with started(both(tmp_path), **in_driver(driver, "hang nvmlDeviceGetHandleByUUID\n")) as process:
        until(lambda: len(readings(tmp_path, HostReading)) > 5)
        process.terminate()
        assert process.wait(3) == 0


def test_without_a_driver_the_host_is_read_and_the_log_says_why(tmp_path: Path) -> None:
    with started(both(tmp_path), LD_LIBRARY_PATH=str(tmp_path)):
        until(lambda: len(readings(tmp_path)) > 2)
        until(lambda: "no readings of GPUs" in log_path(tmp_path, 0).read_text())


def test_a_replay_stands_in_for_the_driver(tmp_path: Path) -> None:
    lines = [
        {"time": 0, "device": "#0", "temperature_celsius": 60, "pcie_generation": 4},
        {"time": 0.5, "device": "#0", "temperature_celsius": 92, "throttle_reasons": 0x40},
        {"time": 3, "device": "#0", "lost": True, "xids": [{"time": 3, "number": 79, "words": "off the bus"}]},
    ]
    file = tmp_path / "replay.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = Options(run_dir=tmp_path, every_seconds=0.1, devices=(Target(device="host/cpu0"),), replay=file)
    with started(options):
        until(lambda: any(one.lost for one in readings(tmp_path, DeviceReading)))  # type: ignore[attr-defined]
        time.sleep(0.3)
    found = readings(tmp_path, DeviceReading)
    assert [(xid.device, xid.number, xid.words) for one in found for xid in one.xids] == [  # type: ignore[attr-defined]
        ("host/cpu0", 79, "off the bus")
    ]
    temperatures = [one.temperature_celsius for one in found]  # type: ignore[attr-defined]
    assert temperatures.index(92) > temperatures.index(60) == 0
    with started(options):  # another attempt: the state lasts, the error is not told again
        num_before = len(found)
        until(lambda: len(readings(tmp_path, DeviceReading)) > num_before + 3)
    again = readings(tmp_path, DeviceReading)[num_before:]
    assert all(one.lost for one in again)  # type: ignore[attr-defined]
    assert not [xid for one in again for xid in one.xids]  # type: ignore[attr-defined]


def test_a_broken_replay_ends_it_with_a_message(tmp_path: Path) -> None:
    with started(Options(run_dir=tmp_path, replay=tmp_path / "none")) as process:
        assert process.wait(10) == 2
    assert "Traceback" not in log_path(tmp_path, 0).read_text()


def test_prometheus_and_tensorboard_show_hosts_and_ranks(tmp_path: Path) -> None:
    port = free_port()
    ranks = ReadingLog(rank_file(tmp_path, 0), 10**6)
    ranks.append([RankReading(time=time.time(), rank=0, host=0, step=1, step_seconds=0.5, loss=2.5)])
    elsewhere = ReadingLog(rank_file(tmp_path, 1), 10**6)
    elsewhere.append([RankReading(time=time.time(), rank=1, host=1, step=1, step_seconds=0.5)])
    has_tensorboard = bool(pytest.importorskip("tensorboard"))
    options = Options(run_dir=tmp_path, every_seconds=0.1, prometheus_port=port, tensorboard=has_tensorboard)
    with started(options) as process:
        until(lambda: len(readings(tmp_path, HostReading)) > 2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        process.terminate()
        assert process.wait(10) == 0
    assert 'trainmaster_rank_loss{host="0",rank="0"} 2.5\n' in text
    assert 'rank="1"' not in text
    assert "trainmaster_host_memory_used_bytes{" in text
    assert sum(path.stat().st_size for path in scalars_folder(tmp_path, 0).iterdir()) > 500


def test_a_port_that_is_taken_is_said_and_no_more(tmp_path: Path) -> None:
    port = free_port()
    first = Options(run_dir=tmp_path / "a", every_seconds=0.1, prometheus_port=port)
    with started(first):
        until(lambda: len(readings(first.run_dir)) > 1)
        second = Options(run_dir=tmp_path / "b", every_seconds=0.1, prometheus_port=port)
        with started(second):
            until(lambda: len(readings(second.run_dir)) > 3)
            assert f"127.0.0.1:{port}" in log_path(second.run_dir, 0).read_text()


def test_sampling_each_second_takes_less_than_a_hundredth_of_a_cpu(tmp_path: Path, driver: Path) -> None:
    environment = in_driver(driver, "0 temperature 50\n1 temperature 50\n")
    with started(both(tmp_path), **environment) as process:
        until(lambda: len(readings(tmp_path, HostReading)) > 3)
        sampler = psutil.Process(process.pid)
        before, first = sum(sampler.cpu_times()[:2]), len(readings(tmp_path, HostReading))
        until(lambda: len(readings(tmp_path, HostReading)) > first + 30)
        used = sum(sampler.cpu_times()[:2]) - before
        rounds = len(readings(tmp_path, HostReading)) - first
    # The stand-in reads a file in each call; a driver does not.
    print(f"a round takes {1e3 * used / rounds:.1f} ms of a CPU")
    assert used / rounds < 10e-3


def test_its_priority_is_low_and_torch_is_not_in_it(tmp_path: Path) -> None:
    with started(Options(run_dir=tmp_path, every_seconds=0.1)) as process:
        until(lambda: len(readings(tmp_path)) > 1)
        sampler = psutil.Process(process.pid)
        assert sampler.nice() >= 10
        assert not [one.path for one in sampler.memory_maps() if "torch" in one.path]
        os.kill(process.pid, signal.SIGINT)  # a terminal's; the launcher ends the run
        before = len(readings(tmp_path))
        until(lambda: len(readings(tmp_path)) > before + 2)
