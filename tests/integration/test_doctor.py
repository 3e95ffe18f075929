"""The examination with real processes: the unmodified `pynvml` over a stand-in library, the real load module."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]

# Copies nothing: it only wakes the stand-in's link, until enough readings have been taken of it.
LOAD = """
import json, os, time
reads, load = os.environ["STAND_IN_READS"], os.environ["STAND_IN_LOAD"]
open(load, "w").close()
before = os.path.getsize(reads) if os.path.exists(reads) else 0
print(json.dumps({"event": "start", "archs": ["sm_89"]}), flush=True)
while os.path.getsize(reads) - before < 5:
    time.sleep(0.01)
os.remove(load)
print(json.dumps({"event": "end", "bytes_per_second": 13e9}), flush=True)
"""

# The few calls of torch that the load module makes, without a GPU.
TORCH = """
import time
__version__, uint8 = "stub", 0
class Tensor:
    def copy_(self, other, non_blocking): pass
def empty(size, **kind): return Tensor()
class cuda:
    def is_available(): return True
    def synchronize(): time.sleep(0.01)
    def get_arch_list(): return ["sm_80", "compute_90"]
"""

LINK = """
import json, sys
from orchestrator.doctor.adapt import machine_evidence
from orchestrator.doctor.checks_pcie import check_pcie
from orchestrator.doctor.present import to_json
from orchestrator.doctor.watch import watch
from topology.probe import read_machine
machine = machine_evidence(read_machine())
loads = tuple(watch(gpu.id, 1.0, command=(sys.executable, "-c", sys.argv[1])) for gpu in machine.gpus)
print(json.dumps({"samples": [load.generations for load in loads], **to_json(check_pcie(machine, loads))}))
"""

EXAMINE = """
import json, sys, time
begin = time.perf_counter()
from orchestrator.doctor import examine, to_json, to_text
findings = examine(load=False)
seconds = time.perf_counter() - begin
heavy = sorted({"torch", "transformers", "bitsandbytes", "deepspeed"} & sys.modules.keys())
print(json.dumps({"seconds": seconds, "heavy": heavy, "text": to_text(findings), **to_json(findings)}))
"""


def python(code: str, *arguments: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
        pytest.skip("needs gcc to build the stand-in library")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(HERE / "nvml_link.c")], check=True, timeout=30)
    return target.parent


@pytest.fixture
def stand_in(library: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "LD_LIBRARY_PATH": str(library),
        "STAND_IN_LOAD": str(tmp_path / "load"),
        "STAND_IN_READS": str(tmp_path / "reads"),
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_the_link_is_judged_while_it_is_awake(stand_in: dict[str, str]) -> None:
    data = python(LINK, LOAD, **stand_in)
    # The generation at rest is 1; every sample counted was taken under load, where it is 4.
    assert len(data["samples"][0]) >= 3
    assert max(data["samples"][0]) == 4
    (finding,) = data["findings"]
    assert (finding["check"], finding["severity"]) == ("pcie-link", "warning")
    assert "runs at Gen4 x8 instead of Gen4 x16" in finding["title"]
    assert "measured 13.0 GB/s" in finding["evidence"]


def test_a_load_that_fails_accuses_no_link(stand_in: dict[str, str]) -> None:
    data = python(LINK, "import sys; sys.exit('CUDA error: out of memory')", **stand_in)
    (finding,) = data["findings"]
    assert (finding["check"], finding["severity"]) == ("pcie-link", "note")
    assert "out of memory" in finding["evidence"]


def test_an_old_driver_gives_notes_and_no_false_alarm(stand_in: dict[str, str]) -> None:
    data = python(EXAMINE, **stand_in)
    about_gpu = [item for item in data["findings"] if "NVIDIA L4" in item["title"] + item["evidence"]]
    assert {item["severity"] for item in about_gpu} <= {"note", "ok"}
    assert {"throttle", "row-remap", "ecc", "pcie-link"} <= {item["check"] for item in about_gpu}


def test_this_machine_is_examined_fast_and_without_torch() -> None:
    data = python(EXAMINE)
    assert data["heavy"] == []
    assert data["seconds"] < 2
    assert data["schema"] == "trainmaster.doctor/1"
    assert {item["severity"] for item in data["findings"]} <= {"ok", "note", "warning", "error"}
    assert {"driver", "versions", "shm", "memlock"} <= {item["check"] for item in data["findings"]}
    assert sum(data["counts"].values()) == len(data["findings"])
    assert data["text"].splitlines()[-1].endswith(("ok", "before training"))


def test_the_real_load_module_says_why_it_cannot_measure() -> None:
    code = """
import json
from orchestrator.doctor.watch import watch
print(json.dumps(watch("GPU-00000000-0000-0000-0000-000000000000", 0.1).failure))
"""
    failure = python(code)
    assert "failed with exit code 1" in failure
    assert "sees no GPU GPU-00000000" in failure


def test_the_real_load_module_measures_what_torch_copies(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    code = """
import json
from orchestrator.doctor.watch import watch
def samples(gpu):
    while True:
        yield (4, 16, 0)
load = watch("GPU-1", 0.3, sampler=samples)
print(json.dumps([load.failure, load.bytes_per_second, load.generations, load.archs]))
"""
    failure, rate, generations, archs = python(code, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert failure is None
    assert rate > 0
    assert set(generations) == {4}
    assert archs == ["sm_80", "compute_90"]


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        (
            "raise ImportError('libcudart.so.13: cannot open shared object file')",
            "torch failed",
            "ImportError: libcudart",
        ),
        ("import os; os.kill(os.getpid(), 11)", "torch failed", "SIGSEGV) while it imported torch"),
        ("cuda.is_available = lambda: False", "cuda failed", "sees no GPU GPU-1"),
        (
            "def init(): raise RuntimeError('driver is\\ntoo old')\ncuda.init, cuda.is_available = init, lambda: False",
            "cuda failed",
            "sees no GPU GPU-1: driver is too old",
        ),
        ("def empty(*_, **__): raise RuntimeError('CUDA out of memory. Tried to allocate')", "busy", "out of memory"),
    ],
)
def test_the_real_load_module_names_stage_and_cause(tmp_path: Path, changes: str, kind: str, said: str) -> None:
    (tmp_path / "torch.py").write_text(f"{TORCH}\n{changes}\n")
    code = """
import json
from orchestrator.doctor.watch import watch
load = watch("GPU-1", 0.1, sampler=lambda gpu: (_ for _ in ()))
print(json.dumps([load.kind, load.failure]))
"""
    found, failure = python(code, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert found == kind
    assert said in failure


def test_what_a_library_prints_does_not_get_between_the_lines(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"import os\nprint('hello' * 20000)\nos.write(1, b'x' * 100000)\n{TORCH}")
    code = """
import json
from orchestrator.doctor.watch import watch
load = watch("GPU-1", 0.1, sampler=lambda gpu: (_ for _ in ()))
print(json.dumps([load.failure, load.bytes_per_second]))
"""
    failure, rate = python(code, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert failure is None
    assert rate > 0


def test_a_library_that_is_none_is_a_driver_that_fails(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    data = python(EXAMINE, LD_LIBRARY_PATH=str(tmp_path))
    (driver,) = (item for item in data["findings"] if item["check"] == "driver")
    assert driver["severity"] == "error"
    assert str(tmp_path) in driver["evidence"]
    assert data["text"].splitlines()[-1].endswith("before training")


def test_a_folder_of_the_user_does_not_shadow_the_load_module(tmp_path: Path) -> None:
    for name in ("orchestrator", "torch", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('shadowed')\n")
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "from orchestrator.doctor.watch import watch; print(watch('GPU-0', 0.1).failure)",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert "sees no GPU GPU-0" in done.stdout
