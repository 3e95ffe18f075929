"""Runs of the real command on the shipped base and rows; small, but nothing in them is replaced."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

DEMO = ("experiment=demo", "batch.max_steps=6", "checkpoint.every=2", "data.max_eval_rows=16")


class Runs:
    """Starts `trainmaster` in a folder of its own and reads what it left."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator.cli", *arguments]

    def run(self, *arguments: str, timeout: float = 150, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def train(self, name: str, *overrides: str) -> dict[str, Any]:
        """Train to the end in `root/name` and return the summary."""
        done = self.run("train", *DEMO, f"run_dir={self.root / name}", *overrides)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.summary(name)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def summary(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.root / name / "summary.json").read_text())
        return body

    def losses(self, name: str) -> dict[int, float]:
        """Training loss by step."""
        records = map(json.loads, (self.root / name / "metrics.jsonl").read_text().splitlines())
        return {record["step"]: record["loss"] for record in records if "loss" in record}

    def copy_at(self, source: str, target: str, step: int) -> Path:
        """A run that ended right after the checkpoint of this step."""
        folder = self.root / target
        shutil.copytree(self.root / source, folder)
        for checkpoint in (folder / "checkpoints").iterdir():
            if checkpoint.name != f"step-{step:08d}":
                shutil.rmtree(checkpoint)
        (folder / "summary.json").unlink()
        shutil.rmtree(folder / "adapter")
        return folder


def wait_for(
    condition: Callable[[], bool], *, seconds: float = 90, process: subprocess.Popen[str] | None = None
) -> None:
    """Poll until the condition holds; fail when time is up or the process has ended before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "time is up"
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Living ranks of a run, in the order they were started.

    Not their launcher: when its output has no reader any more, torchrun waits for ever after its ranks have ended.
    """
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        is_launcher = "torch.distributed.run" in line
        if "orchestrator.train.worker" in line and not is_launcher and str(folder / "plan.json") in line:
            found.append(process)
    return found


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def ddp(runs: Runs) -> str:
    """An uninterrupted run of two ranks."""
    runs.train("ddp", "engine=ddp", "checkpoint.keep=9")
    return "ddp"


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., None]:
    return wait_for


@pytest.fixture(name="ranks_of")
def ranks_of_fixture() -> Callable[[Path], list[psutil.Process]]:
    return ranks_of


@pytest.fixture
def demo() -> tuple[str, ...]:
    return DEMO
