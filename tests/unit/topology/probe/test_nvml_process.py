"""A driver that hangs, crashes or talks: the probe goes on and says what happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from topology.probe import assemble
from topology.probe.nvml_library import LIBRARY, find_library
from topology.probe.nvml_process import VARIABLE, read_nvml_apart
from topology.probe.readings import NvmlReadings

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the loader's rules are Linux's")

# What it does when NVML starts is chosen by a variable.
MISBEHAVES: Final = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int nvmlInitWithFlags(unsigned flags) {
    const char *what = getenv("MISBEHAVES"), *pid = getenv("PID_FILE");
    if (pid) { FILE *f = fopen(pid, "w"); fprintf(f, "%d\\n", (int)getpid()); fclose(f); }
    puts("a library that talks"); fflush(stdout);
    if (!strcmp(what, "hangs")) for (;;) pause();
    if (!strcmp(what, "crashes")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
    if (!strcmp(what, "exits")) _exit(0);
    return 9;
}
"""


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build a library")
    folder = tmp_path_factory.mktemp("misbehaving")
    (folder / "it.c").write_text(MISBEHAVES)
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / LIBRARY), str(folder / "it.c")]
    subprocess.run(command, check=True, timeout=30)
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NvmlReadings]:
    def run(folder: Path, *, seconds: str = "20", **variables: str) -> NvmlReadings:
        for name, value in {"LD_LIBRARY_PATH": str(folder), VARIABLE: seconds, **variables}.items():
            monkeypatch.setenv(name, value)
        return read_nvml_apart(os.environ)

    return run


def test_a_driver_that_hangs_is_left_after_the_limit(read: Any, misbehaving: Path, made: Any) -> None:
    start = time.monotonic()
    nvml = read(misbehaving, seconds="0.5", MISBEHAVES="hangs", CUDA_VISIBLE_DEVICES="1")
    assert time.monotonic() - start < 15
    assert (nvml.driver_version.error, nvml.visible_devices, nvml.gpus) == ("TIMEOUT", "1", ())
    told = f"the NVIDIA driver does not answer within 0.5 s ({misbehaving / LIBRARY}; {VARIABLE} sets another limit)"
    assert nvml.unavailable == told
    assert told in assemble(made.machine(nvml)).warnings[0]


def test_a_crash_is_told_by_its_signal(read: Any, misbehaving: Path) -> None:
    nvml = read(misbehaving, MISBEHAVES="crashes")
    assert nvml.unavailable == f"the NVIDIA library {misbehaving / LIBRARY} ends the process (SIGSEGV)"
    assert nvml.driver_version.error == "CRASHED"


def test_an_end_without_an_answer_is_told(read: Any, misbehaving: Path) -> None:
    nvml = read(misbehaving, MISBEHAVES="exits")
    assert nvml.unavailable == f"reading {misbehaving / LIBRARY} ends without readings (exit status 0)"


def test_what_a_library_prints_is_no_answer(read: Any, misbehaving: Path) -> None:
    nvml = read(misbehaving, MISBEHAVES="no")
    assert nvml.unavailable == "no NVIDIA driver: NVML does not start (DRIVER_NOT_LOADED)"


def test_the_limit_is_a_number_of_seconds(read: Any, misbehaving: Path) -> None:
    for text in ("soon", "nan", "-1"):
        assert "does not start" in read(misbehaving, seconds=text, MISBEHAVES="no").unavailable


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A job in the background of a shell ignores interrupts from its start on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_child_too(read: Any, misbehaving: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def interrupt() -> None:
        for _ in range(2000):
            if pid_file.exists() and pid_file.read_text().endswith("\n"):
                break
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        read(misbehaving, seconds="50", MISBEHAVES="hangs", PID_FILE=str(pid_file))
    helper.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_good_driver_is_read_from_any_directory(
    read: Any, nvml_library: Any, described: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "machine.txt").write_text("\n".join(described.cards(2, described.a100)))
    monkeypatch.chdir(tmp_path)
    nvml = read(nvml_library(""), STAND_IN_MACHINE=str(tmp_path / "machine.txt"), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert (nvml.unavailable, nvml.count.value, nvml.device_order) == (None, 2, "PCI_BUS_ID")
    assert [gpu.uuid.value for gpu in nvml.gpus] == [described.uuid(0), described.uuid(1)]


@pytest.mark.parametrize(("num_bytes", "words"), [(0, "file too short"), (3000, "")])
def test_a_damaged_library_is_not_called_missing(
    read: Any, nvml_library: Any, tmp_path: Path, num_bytes: int, words: str
) -> None:
    path = tmp_path / LIBRARY
    path.write_bytes((nvml_library("") / LIBRARY).read_bytes()[:num_bytes])
    told = read(tmp_path).unavailable
    assert str(path) in told
    assert words in told
    assert "not found" not in told


def test_a_link_to_nothing_is_told(read: Any, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).symlink_to(tmp_path / "gone")
    nvml = read(tmp_path)
    if nvml.gpus or "does not take" not in (nvml.unavailable or ""):
        pytest.skip("the loader finds a driver elsewhere")
    assert f"the loader does not take {tmp_path / LIBRARY}" in nvml.unavailable


@pytest.mark.parametrize(
    "folder",
    ["usr/lib64", "usr/lib/aarch64-linux-gnu", "usr/lib/wsl/lib", "run/opengl-driver/lib", "usr/local/nvidia/lib64"],
)
def test_usual_folders_are_looked_at(tmp_path: Path, folder: str) -> None:
    assert find_library({}, tmp_path) is None
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / LIBRARY).touch()
    assert find_library({}, tmp_path) == str(tmp_path / folder / LIBRARY)


def test_the_loaders_own_list_counts_where_it_is_not_stale(tmp_path: Path) -> None:
    library = tmp_path / "opt/driver" / LIBRARY
    (tmp_path / "etc").mkdir()
    text = f"glibc-ld.so.cache1.1\0\0{LIBRARY}\0{library}\0libz.so.1\0/lib/libz.so.1\0"
    (tmp_path / "etc/ld.so.cache").write_bytes(text.encode())
    assert find_library({}, tmp_path) is None
    library.parent.mkdir(parents=True)
    library.touch()
    assert find_library({}, tmp_path) == str(library)


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / LIBRARY).touch()
    asked = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path / 'lib'}"}
    assert find_library(asked, Path("/nowhere")) == str(tmp_path / "lib" / LIBRARY)
    preloaded = asked | {"LD_PRELOAD": "/x/libjemalloc.so /x/libnvidia-ml.so.1"}
    assert find_library(preloaded, tmp_path) == "/x/libnvidia-ml.so.1"
    monkeypatch.chdir(tmp_path / "lib")
    assert find_library({"LD_LIBRARY_PATH": "/nowhere:"}, Path("/nowhere")) == f"./{LIBRARY}"
