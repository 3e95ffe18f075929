"""Memory that runs out for real on CPU ranks: by a limit of the process, and by one of its control group."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.recovery.event import FAULT_PREFIX
from orchestrator.recovery.kernel_oom import read_counters, was_oom_kill

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MIB = 2**20


def _plan(runs: Any, demo: tuple[str, ...], name: str, *overrides: str) -> Path:
    folder: Path = runs.root / name
    done = runs.run("plan", *demo, "devices=1", "engine=ddp", f"run_dir={folder}", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "plan.json"


def _start(plan: Path) -> subprocess.Popen[str]:
    """One rank, as a launcher would start it."""
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.train.worker", str(plan)],
        env={**os.environ, **where, "LOCAL_WORLD_SIZE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _phase(folder: Path) -> str:
    try:
        return str(json.loads((folder / "beats" / "rank-00000.json").read_text())["phase"])
    except (OSError, ValueError):
        return ""


def _hold(process: subprocess.Popen[str], room_bytes: int, *, soft: bool = False) -> None:
    """Let the process grow by no more than this."""
    limit = psutil.Process(process.pid).memory_info().vms + room_bytes
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY if soft else limit))


def _told(out: str) -> dict[str, Any]:
    lines = [line for line in out.splitlines() if line.startswith(FAULT_PREFIX)]
    assert len(lines) == 1, out
    body: dict[str, Any] = json.loads(lines[0].removeprefix(FAULT_PREFIX))
    return body


def test_while_loading(runs: Any, demo: tuple[str, ...], wait_for: Callable[..., None]) -> None:
    plan = _plan(runs, demo, "oom_load")
    process = _start(plan)
    wait_for(lambda: _phase(plan.parent) == "loading", process=process)
    _hold(process, 30 * MIB)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    told = _told(out)
    assert (told["kind"], told["where"], told["phase"], told["rank"]) == ("out_of_memory", "host", "loading", 0)
    report = json.loads((plan.parent / "logs" / "oom-1-0.json").read_text())
    assert report["allocated_bytes"] > 50 * MIB
    assert {entry["name"] for entry in report["terms"]} & {"other_tensors", "activations_and_libraries"}


@pytest.mark.slow
def test_while_training_the_last_checkpoint_stays(
    runs: Any, demo: tuple[str, ...], wait_for: Callable[..., None]
) -> None:
    plan = _plan(runs, demo, "oom_train", "checkpoint.every=1", "eval.before=false", "batch.max_steps=200")
    process = _start(plan)
    checkpoints = plan.parent / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("step-*/*")), process=process)
    _hold(process, -300 * MIB, soft=True)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1, out[-3000:] + err[-3000:]
    told = _told(out)
    assert told["where"] == "host"
    assert told["step"] >= 1
    report = json.loads(Path(told["report"]).read_text())
    terms = {entry["name"]: entry["bytes"] for entry in report["terms"]}
    assert {"base_packed", "absmax", "base_unquantised", "adapters", "optimizer"} <= set(terms)
    assert terms["base_packed"] > MIB
    assert report["largest"][0]["bytes"] >= report["largest"][-1]["bytes"]
    whole = sorted(path.name for path in checkpoints.glob("step-*"))
    assert whole
    assert all((checkpoints / name / "state.json").is_file() for name in whole)


def test_the_run_goes_on_with_a_plan_that_needs_less(runs: Any, demo: tuple[str, ...]) -> None:
    folder: Path = runs.root / "oom_replanned"
    fault = ("faults=out_of_memory", "faults.step=4", "faults.rank=0")
    done = runs.run("train", *demo, "devices=1", "engine=ddp", f"run_dir={folder}", *fault, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran out of host memory" in done.stdout
    first, second = (json.loads((folder / f"plan.{attempt}.json").read_text()) for attempt in (1, 2))
    needed = [body["chosen"]["memory"]["train"]["host_bytes"] for body in (first, second)]
    assert needed[1] < needed[0]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names.index("replanned") < names.index("resumed") < names.index("rehearsed") < names.index("done")
    assert next(event for event in events if event["event"] == "resumed")["step"] == 2
    assert runs.summary(folder.name)["status"] == "done"
    assert set(runs.losses(folder.name)) == set(range(1, 7))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group below this process's own that holds 150 MiB."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if ":memory:" in line), None)
    path = Path("/sys/fs/cgroup/memory" + own if own is not None else "/sys/fs/cgroup") / f"trainmaster-{os.getpid()}"
    limit = "memory.limit_in_bytes" if own is not None else "memory.max"
    try:
        path.mkdir()
        (path / limit).write_text(str(150 * MIB))
    except OSError as error:
        if path.is_dir():
            path.rmdir()
        pytest.skip(f"no control group of one's own here: {error}")
    yield path
    path.rmdir()


_WATCH = """
import json, subprocess, sys
from orchestrator.recovery.kernel_oom import read_counters, was_oom_kill
before = read_counters()
eat = "held = bytearray(b'1') * (%d << 20)"
code = subprocess.run([sys.executable, "-c", eat % int(sys.argv[1])]).returncode
print(json.dumps([code, was_oom_kill(before, read_counters())]))
"""


@pytest.mark.parametrize(("mib", "is_killed"), [(400, True), (20, False)])
def test_a_kill_by_the_kernel_is_told_from_others(group: Path, mib: int, *, is_killed: bool) -> None:
    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    before = read_counters()
    done = subprocess.run(
        [sys.executable, "-c", _WATCH, str(mib)], capture_output=True, text=True, check=True, preexec_fn=join
    )
    code, seen = json.loads(done.stdout)
    assert code == (-signal.SIGKILL if is_killed else 0)
    assert seen is is_killed
    # Its own group is not this one: a kill there says nothing of children here (version 2 counts it above, too).
    assert isinstance(was_oom_kill(before, read_counters()), bool)
