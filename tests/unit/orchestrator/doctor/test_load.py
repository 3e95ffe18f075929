"""Which GPUs are measured, with how much patience, and what a failure on the way means."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.doctor.checks_load import check_load
from orchestrator.doctor.evidence import GpuEvidence, LoadEvidence, NoLoad
from orchestrator.doctor.loads import take_loads
from orchestrator.doctor.progress import Progress
from orchestrator.doctor.watch import FIRST_SECONDS, LATER_SECONDS


class Watcher:
    """Fails as told for a GPU, and keeps what it was asked."""

    def __init__(self, **kinds: NoLoad) -> None:
        self.kinds, self.asked = kinds, list[tuple[str, str | None, float]]()

    def __call__(
        self, gpu: str, seconds: float, *, cuda_name: str | None, patience_seconds: float, tick: Callable[[], None]
    ) -> LoadEvidence:
        tick()
        self.asked.append((gpu, cuda_name, patience_seconds))
        kind = self.kinds.get(gpu.replace("-", ""))
        if kind is not None:
            return LoadEvidence(gpu=gpu, kind=kind, failure=f"{kind.value}!")
        return LoadEvidence(gpu=gpu, bytes_per_second=26e9)


def taken(made: Any, watcher: Watcher, *gpus: GpuEvidence, stream: Any = None, **changes: Any) -> list[NoLoad | None]:
    found = take_loads(
        gpus or tuple(made.gpu(at) for at in range(3)),
        made.packages(**changes),
        wanted=True,
        seconds=1.0,
        watcher=watcher,
        progress=Progress(stream or io.StringIO()),
    )
    return [load.kind for load in found]


def test_only_the_first_may_take_its_time(made: Any) -> None:
    watcher = Watcher()
    assert taken(made, watcher) == [None, None, None]
    assert [patience for *_, patience in watcher.asked] == [FIRST_SECONDS, LATER_SECONDS, LATER_SECONDS]


@pytest.mark.parametrize("kind", [NoLoad.TORCH_FAILED, NoLoad.CUDA_FAILED, NoLoad.LATE])
def test_a_failure_that_would_come_again_is_met_once(made: Any, kind: NoLoad) -> None:
    watcher = Watcher(GPU0=kind)
    assert taken(made, watcher) == [kind, NoLoad.NOT_TRIED, NoLoad.NOT_TRIED]
    assert len(watcher.asked) == 1


@pytest.mark.parametrize("kind", [NoLoad.BUSY, NoLoad.COPY_FAILED, NoLoad.UNCLEAR])
def test_a_failure_of_one_card_keeps_nobody_from_the_others(made: Any, kind: NoLoad) -> None:
    assert taken(made, Watcher(GPU0=kind)) == [kind, None, None]


def test_each_reason_to_stay_away_is_named(made: Any) -> None:
    gpus = (
        made.gpu(0, is_visible=False),
        made.gpu(1, is_visible=False, lost="nvmlDeviceGetUUID: GPU_IS_LOST"),
        made.gpu(2, memory_free_bytes=made.ok(2**20)),
        made.gpu(3, mig=True),
        made.gpu(4, id="0000:14:00.0"),
        made.gpu(5, memory_free_bytes=made.ok(0), memory_fault="total 0"),
    )
    reasons = [NoLoad.HIDDEN, NoLoad.LOST, NoLoad.BUSY, NoLoad.UNCUT, NoLoad.UNNAMED, None]
    assert taken(made, Watcher(), *gpus) == reasons
    assert taken(made, Watcher(), torch_cuda=made.bad("CPU_BUILD")) == [NoLoad.NO_TORCH] * 3


def test_cuda_is_told_the_mig_device_and_nvml_the_gpu(made: Any) -> None:
    watcher = Watcher()
    taken(made, watcher, made.gpu(0, mig=True, slices=("MIG-1", "MIG-2")), made.gpu(1))
    assert [asked[:2] for asked in watcher.asked] == [("GPU-0", "MIG-1"), ("GPU-1", None)]


def test_each_measurement_is_announced_on_a_terminal(made: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    taken(made, Watcher(), made.gpu(0, is_visible=False), made.gpu(1), made.gpu(2), stream=stream)
    assert [line.partition("(")[2] for line in stream.getvalue().splitlines()] == ["1 of 2)", "2 of 2)"]
    assert "0000:11:00.0" in stream.getvalue()


def judged(made: Any, kind: NoLoad, failure: str) -> Any:
    return check_load(made.machine(made.gpu()), (LoadEvidence(gpu="GPU-0", kind=kind, failure=failure),))


@pytest.mark.parametrize(
    ("kind", "failure", "severity", "remedy"),
    [
        (
            NoLoad.TORCH_FAILED,
            "ImportError: libcudart.so.13: cannot open shared object file",
            "error",
            "Reinstall torch",
        ),
        (NoLoad.TORCH_FAILED, "ended by signal 11 (SIGSEGV)", "error", "LD_PRELOAD"),
        (NoLoad.CUDA_FAILED, "ended by signal 11 (SIGSEGV)", "error", "LD_PRELOAD"),
        (NoLoad.CUDA_FAILED, "RuntimeError: torch 2.13.0 sees no GPU GPU-0", "error", "/dev/nvidia-uvm"),
        (
            NoLoad.CUDA_FAILED,
            "torch 2.13.0 sees no GPU GPU-0: The NVIDIA driver on your system is too old",
            "error",
            "newer driver",
        ),
        (NoLoad.CUDA_FAILED, "Error 802: system not yet initialized", "error", "fabricmanager"),
        (NoLoad.CUDA_FAILED, "never seen", "error", "torch.cuda.init"),
        (NoLoad.COPY_FAILED, "CUDA error: unspecified launch failure", "error", "nvidia-smi -r -i GPU-0"),
        (NoLoad.LATE, "took longer than 61 s", "warning", "import torch"),
    ],
)
def test_what_a_training_would_meet_too_is_a_fault(
    made: Any, kind: NoLoad, failure: str, severity: str, remedy: str
) -> None:
    (found,) = judged(made, kind, failure)
    assert (found.check, found.severity.value, found.evidence) == ("cuda-start", severity, failure)
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "kind", [NoLoad.SWITCHED_OFF, NoLoad.HIDDEN, NoLoad.LOST, NoLoad.BUSY, NoLoad.NOT_TRIED, NoLoad.UNCLEAR]
)
def test_what_only_kept_the_load_away_is_none(made: Any, kind: NoLoad) -> None:
    assert judged(made, kind, "why") == ()


def test_a_measurement_shows_that_cuda_starts(made: Any) -> None:
    (found,) = check_load(made.machine(made.gpu()), (made.load(),))
    assert (found.check, found.severity.value) == ("cuda-start", "ok")
