"""The load process's lines and ends, with real processes and samples from a list."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.doctor.evidence import LoadEvidence, NoLoad
from orchestrator.doctor.samples import bounded_samples
from orchestrator.doctor.watch import Sample, watch

START = 'print(\'{"event": "start", "archs": ["sm_80"]}\', flush=True)\n'
END = 'print(\'{"event": "end", "bytes_per_second": 26e9}\', flush=True)\n'
# Ends only when it is killed.
FOREVER = "import signal\nwhile True: signal.pause()\n"


def run(code: str, patience: float = 20.0) -> LoadEvidence:
    def no_samples(gpu: str) -> Generator[Sample, None, None]:
        yield from ()

    command = (sys.executable, "-S", "-c", code)
    return watch("GPU-1", 0.1, command=command, sampler=no_samples, patience_seconds=patience)


def test_a_measurement_is_taken() -> None:
    found = run("print('a banner of some library')\n" + START + END)
    assert (found.failure, found.bytes_per_second, found.archs) == (None, 26e9, ("sm_80",))
    # Nothing was sampled, and so nothing is claimed.
    assert found.generations == ()


def test_samples_are_taken_between_the_two_lines_only(tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    os.mkfifo(enough)

    def samples(gpu: str) -> Generator[Sample, None, None]:
        assert gpu == "GPU-1"
        yield from [(4, 16, 0), (None, 16, 1), (3, None, None)]
        # The load process waits for this, so the order does not depend on the clock.
        enough.write_text("go")
        yield (4, 8, 4)

    code = f"{START}open({str(enough)!r}).read()\n{END}"
    found = watch("GPU-1", 0.1, command=(sys.executable, "-S", "-c", code), sampler=samples, patience_seconds=20)
    assert found.failure is None
    assert found.generations[:2] == (4, 3)
    assert found.widths[:2] == (16, 16)
    assert found.event_reasons[:2] == (0, 1)


def test_a_measurement_counts_even_if_the_process_then_hangs() -> None:
    assert run(START + END + FOREVER).failure is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('CUDA out of memory')", "failed with exit code 1: CUDA out of memory"),
        ("import os; os.abort()", "ended by signal 6"),
        ("print('hello')", "no measurement: 'hello'"),
        ("print('no newline', end='')", "no measurement: 'no newline'"),
        (START, "ended without a measurement"),
        (END, "no measurement"),
        ("print('[' * 100000)", "no measurement"),
        (START + 'print(\'{"event": "end", "bytes_per_second": -1}\')', "no measurement"),
        (START + 'print(\'{"event": "end", "bytes_per_second": 1e999}\')', "no measurement"),
        (START + "print('[1, 2]')", "no measurement"),
        ("import os; os.write(1, b'\\xff\\x00\\n')", r"\\xff"),
        ("", "ended without a measurement"),
    ],
)
def test_failures_say_what_happened(code: str, said: str) -> None:
    found = run(code)
    assert found.failure is not None
    assert said in found.failure
    assert found.bytes_per_second is None


STAGE = 'print(\'{"event": "stage", "stage": "%s"}\', flush=True)\n'
FAILED = 'print(\'{"event": "failed", "reason": "%s"}\', flush=True)\nimport sys; sys.exit(1)'


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (
            STAGE % "torch" + FAILED % "ImportError: libcudart",
            NoLoad.TORCH_FAILED,
            "while it imported torch: ImportError",
        ),
        (STAGE % "torch" + "import os; os.kill(os.getpid(), 11)", NoLoad.TORCH_FAILED, "SIGSEGV) while it imported"),
        (
            STAGE % "torch" + STAGE % "cuda" + FAILED % "sees no GPU",
            NoLoad.CUDA_FAILED,
            "while it started CUDA: sees no",
        ),
        (STAGE % "cuda" + START + FAILED % "CUDA error: launch failure", NoLoad.COPY_FAILED, "while it copied data"),
        (STAGE % "cuda" + FAILED % "CUDA out of memory. Tried", NoLoad.BUSY, "out of memory"),
        (STAGE % "cuda" + FAILED % "devices are busy or unavailable", NoLoad.BUSY, "busy"),
        (STAGE % "something new" + "import sys; sys.exit(3)", NoLoad.UNCLEAR, "exit code 3"),
        ("print('hello')", NoLoad.UNCLEAR, "no measurement"),
    ],
)
def test_failures_tell_where_they_came(code: str, kind: NoLoad, said: str) -> None:
    found = run(code)
    assert found.kind is kind
    assert said in str(found.failure)


def test_the_line_about_the_error_is_told_and_not_the_last() -> None:
    code = "import sys; sys.exit('what():  CUDA error: no kernel image\\nCompile with `TORCH_USE_CUDA_DSA`')"
    assert str(run(code).failure).endswith("what():  CUDA error: no kernel image")


def test_impossible_samples_do_not_count(tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    os.mkfifo(enough)

    def samples(gpu: str) -> Generator[Sample, None, None]:
        yield (2**32 - 1, 0, 0)
        enough.write_text("go")
        yield (0, 2**32 - 1, 0)

    code = f"{START}open({str(enough)!r}).read()\n{END}"
    found = watch("GPU-1", 0.1, command=(sys.executable, "-S", "-c", code), sampler=samples, patience_seconds=20)
    assert (found.failure, found.generations, found.widths) == (None, (), ())
    assert found.event_reasons


def test_endless_output_is_cut_off() -> None:
    assert "no measurement" in str(run("while True: print('x' * 1000)").failure)


def test_a_program_that_does_not_exist() -> None:
    found = watch("GPU-1", 0.1, command=("/nonexistent/program",), sampler=lambda _: iter_nothing())
    assert "could not be started" in str(found.failure)


def iter_nothing() -> Generator[Sample, None, None]:
    yield from ()


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()

    def interrupted(gpu: str) -> Generator[Sample, None, None]:
        yield (4, 16, 0)
        raise KeyboardInterrupt

    code = f"import fcntl\nfile = open({str(lock)!r})\nfcntl.flock(file, fcntl.LOCK_EX)\n{START}{FOREVER}"
    with pytest.raises(KeyboardInterrupt):
        watch("GPU-1", 0.1, command=(sys.executable, "-S", "-c", code), sampler=interrupted, patience_seconds=20)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_hang_ends_with_everything_it_started(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    code = f"""
import fcntl, os
file = open({str(lock)!r})
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
os.fork()
{FOREVER}"""
    found = run(code, patience=0.5)
    assert "took longer than 1 s and was killed" in str(found.failure)
    assert found.kind is NoLoad.LATE
    # Parent and child share the lock: it can be taken as soon as both are gone, and not before.
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_process_that_the_kernel_does_not_let_go_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []

    def stuck(*arguments: Any, **options: Any) -> Any:
        job = subprocess.Popen(*arguments, **options)
        waits.append(job.wait)
        job.wait = hangs
        return job

    def hangs(timeout: float) -> int:  # a limit must be given
        raise subprocess.TimeoutExpired("load", timeout)

    monkeypatch.setattr("orchestrator.doctor.watch.subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": stuck}))
    assert run(STAGE % "cuda" + FOREVER, patience=0.2).kind is NoLoad.LATE
    (wait,) = waits
    assert wait() < 0


def test_samples_that_do_not_come_end_the_samples() -> None:
    go = threading.Event()

    def source() -> Generator[Sample, None, None]:
        yield (4, 16, 0)
        go.wait()
        yield (4, 16, 0)

    assert list(bounded_samples(source(), patience_seconds=0.01)) == [(4, 16, 0)]
    go.set()


def test_samples_end_with_their_source() -> None:
    assert list(bounded_samples(iter_nothing())) == []
