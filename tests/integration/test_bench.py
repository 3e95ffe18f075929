"""`trainmaster bench` with real kernels, and plans that use what it found."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

_TGKILL = 234  # x86-64's number of the call that sends a signal to one thread


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator.cli", *arguments]


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=280, check=False
    )


def environment(cwd: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(cwd / "cache")}


def result(cwd: Path, *arguments: str) -> dict[str, Any]:
    done = run(cwd, *arguments, "format=json")
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def seconds(plan: dict[str, Any], name: str) -> float:
    return next(term["seconds"] for term in plan["chosen"]["time_terms"] if term["name"] == name)


def values(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {entry["name"]: entry["value"] for entry in entries}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a cache of its own, and what the two cheapest parts gave there."""
    folder = tmp_path_factory.mktemp("bench")
    return folder, result(folder, "bench", "bench.only=gemm,memory", "save=c.json")


def test_the_numbers_stand_in_file_and_cache(measured: tuple[Path, dict[str, Any]]) -> None:
    folder, body = measured
    assert json.loads((folder / "c.json").read_text()) == body
    stored = Path(body["stored"])
    assert stored.is_relative_to(folder / "cache")
    assert stored.stem == body["fingerprint"]
    assert json.loads(stored.read_text())["sections"] == body["sections"]
    assert not list(stored.parent.glob(".*"))
    for section in body["sections"].values():
        assert section["measured"]
        for item in section["measured"]:
            assert item["value"] > 0
            assert item["repeats"] >= 5


def test_a_plan_takes_the_measured_rate_and_says_so(measured: tuple[Path, dict[str, Any]]) -> None:
    folder, body = measured
    # One micro-batch, so that other rates do not make it another choice.
    demo = ("plan", "experiment=demo", "batch.micro=8")
    table = result(folder, *demo, "calibration=none")
    auto = result(folder, *demo)
    named = result(folder, *demo, "calibration=c.json")
    assert table["calibration"] is None
    assert auto["calibration"]["file"] == body["stored"]
    assert named["calibration"]["rates"] == auto["calibration"]["rates"]
    # The demo's model is 256 wide, which is one of the widths that are measured.
    rate = values(body["sections"]["gemm"]["measured"])["fp32.256"]
    flops = seconds(table, "products") * 0.85 * peak_of(table)
    assert seconds(auto, "products") == pytest.approx(flops / rate, rel=0.01)
    assert seconds(auto, "dequantise") == seconds(table, "dequantise")
    gap = seconds(auto, "products") - seconds(table, "products")
    optimizer = seconds(auto, "optimizer") - seconds(table, "optimizer")
    assert auto["chosen"]["step_seconds"] == pytest.approx(table["chosen"]["step_seconds"] + gap + optimizer)
    shown = run(folder, "plan", "experiment=demo")
    assert f"measured on {body['made']} ({body['stored']})" in shown.stdout


def peak_of(plan: dict[str, Any]) -> float:
    """FLOP/s that the table gives a rank: from its own words."""
    why = next(term["why"] for term in plan["chosen"]["time_terms"] if term["name"] == "products")
    return float(why.split(" at ")[1].split()[0]) * 1e12 / 0.85


def test_a_part_measured_later_joins_the_others(measured: tuple[Path, dict[str, Any]]) -> None:
    folder, body = measured
    again = result(folder, "bench", "bench.only=memory")
    assert set(again["sections"]) == {"memory"}
    kept = json.loads(Path(again["stored"]).read_text())
    assert kept["sections"]["gemm"] == body["sections"]["gemm"]
    assert kept["sections"]["memory"] == again["sections"]["memory"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A job in the background of a shell ignores interrupts from its start on, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def to_process(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def to_another_thread(pid: int) -> None:
    """As a kernel may deliver it, when the first thread is busy."""
    others = [thread.id for thread in psutil.Process(pid).threads() if thread.id != pid]
    assert ctypes.CDLL(None).syscall(_TGKILL, pid, others[-1], signal.SIGINT) == 0


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    "interrupt",
    [
        to_process,
        pytest.param(
            to_another_thread,
            marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="the call's number is x86-64's"),
        ),
    ],
)
def test_an_interrupt_leaves_nothing(tmp_path: Path, interrupt: Callable[[int], None]) -> None:
    bench = subprocess.Popen(
        command("bench", "bench.only=gemm", "save=c.json"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with bench:
        assert bench.stderr is not None
        assert bench.stderr.readline().startswith("bench: gemm")
        children = psutil.Process(bench.pid).children(recursive=True)
        assert children
        interrupt(bench.pid)
        assert bench.wait(10) == 130
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "bench.only=gem"), "Did you mean 'gemm'?"),
        (("bench", "topology=dgx_h100"), "measures the machine it runs on"),
        (("plan", "experiment=demo", "calibration=missing.json"), "calibration="),
    ],
    ids=["part", "machine", "file"],
)
def test_bad_input_ends_with_2_and_a_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_the_parts(tmp_path: Path) -> None:
    done = run(tmp_path, "bench", "--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("gemm", "dequantise", "overhead", "stack"))


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")
def test_every_part_is_measured_on_a_gpu(tmp_path: Path) -> None:
    body = result(tmp_path, "bench")
    assert body["failed"] == {}
    assert {"context", "gemm", "memory", "dequantise", "transfer", "overhead", "stack"} <= set(body["sections"])
