"""A training that is run with a time limit, started again where it was killed, and leaves nothing behind."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launch.spec import RUN_MARK
from orchestrator.fault_runs import outside
from orchestrator.fault_runs.outside import Job, own_namespace, run_job, small_disk

# In the place of `python -m orchestrator.cli train`: this runs the words that follow as a script.
PREFIX = (
    sys.executable,
    "-c",
    "import os, sys; os.execv(sys.executable, [sys.executable, '-c', SCRIPT, *sys.argv[1:]])",
)


def job(tmp_path: Path, script: str, limit_seconds: float = 20.0, *, restarts: bool = False) -> Job:
    prefix = (*PREFIX[:2], PREFIX[2].replace("SCRIPT", repr(script)))
    words = ("experiment=demo",)
    return Job(run_dir=tmp_path / "run", words=words, prefix=prefix, limit_seconds=limit_seconds, restarts=restarts)


def test_what_a_run_left_is_read(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "events.jsonl").write_text('{"event": "done", "time": 1.0}\n{"event": "cu')
    (run_dir / "metrics.jsonl").write_text('{"step": 3, "loss": 1.5}\n{"step": 4, "eval_loss": 1.0}\n')
    left = run_job(job(tmp_path, "import sys; print('error: a: b. Do c.'); print('error: d.'); sys.exit(4)"))
    assert (left.code, left.words) == (4, "a: b. Do c.; d.")
    assert [dict(event) for event in left.events] == [{"event": "done", "time": 1.0}]
    assert left.summary == {}
    assert outside.newest_step(run_dir) == 3


def test_the_words_of_the_command(tmp_path: Path) -> None:
    run = replace(job(tmp_path, ""), prefix=("nice",))
    path = f"'{tmp_path}/run'"
    own = ("-m", "orchestrator.cli", "train")
    assert run.argv(again=False, python="py") == ("nice", "py", *own, "experiment=demo", f"run_dir={path}")
    assert run.argv(again=True, python="py") == ("nice", "py", *own, f"resume={path}")


def test_one_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores every request, and its child has a session of its own."""
    monkeypatch.setattr(outside, "_STOP_SECONDS", 0.1)
    script = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
env = {{**os.environ, {RUN_MARK!r}: {str(tmp_path / "run")!r}}}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env, start_new_session=True)
os.makedirs({str(tmp_path / "run")!r})
open({str(tmp_path / "run" / "child")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    path = tmp_path / "run" / "child"
    began = time.monotonic()
    hanging = job(tmp_path, script, limit_seconds=1.5)
    left = run_job(hanging)
    assert left.code is None
    assert time.monotonic() - began < 10
    assert not psutil.pid_exists(int(path.read_text()))


def test_a_supervisor_that_was_killed_starts_again(tmp_path: Path) -> None:
    script = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[-1].split("=")[1].strip("'"))
folder.mkdir(exist_ok=True)
with (folder / "starts").open("a") as file:
    file.write(sys.argv[-1].split("=")[0] + " ")
if (folder / "starts").read_text().count(" ") < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    left = run_job(job(tmp_path, script, restarts=True))
    assert left.code == 0
    assert (tmp_path / "run" / "starts").read_text() == "run_dir resume resume "
    assert [event["kind"] for event in left.events] == ["supervisor_lost", "supervisor_lost"]
    once = run_job(replace(job(tmp_path, script.replace("< 3", "< 99")), run_dir=tmp_path / "other"))
    assert once.code == -signal.SIGKILL


def test_the_checkpoints_lie_on_a_small_disk_of_their_own(tmp_path: Path) -> None:
    """Mounted once the run has made its folder, and gone with it."""
    namespace = own_namespace()
    if not namespace:
        pytest.skip("no mounts here: neither root nor user namespaces")
    run_dir = tmp_path / "run"
    script = f"""
import os, pathlib, time
run = pathlib.Path({str(run_dir)!r})
run.mkdir()
(run / "plan.json").write_text("{{}}")
while not os.path.ismount(run / "checkpoints"):
    time.sleep(0.02)
whole = os.statvfs(run / "checkpoints")
(run / "size").write_text(str(whole.f_blocks * whole.f_frsize))
(run / "checkpoints" / "step").write_text("x")
"""
    own = job(tmp_path, script)
    left = run_job(replace(own, prefix=(*small_disk(namespace, run_dir, 5 << 20), *own.prefix)))
    assert left.code == 0, own.log.read_text()
    assert int((run_dir / "size").read_text()) == 5 << 20
    assert not list((run_dir / "checkpoints").iterdir())


def test_the_own_network_of_a_host_is_known(tmp_path: Path) -> None:
    here = tmp_path / "ssh"
    here.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    here.chmod(0o755)
    assert not outside.has_own_network(str(here), ["a", "b"])
    assert not outside.has_own_network(str(here), [])
    if os.geteuid() == 0 and outside.runs(("ip", "netns", "add", f"net{os.getpid()}")):
        here.write_text(f'#!/bin/sh\nshift\nexec ip netns exec net{os.getpid()} sh -c "$*"\n')
        assert outside.has_own_network(str(here), ["a", "b"])
        assert outside.runs(("ip", "netns", "del", f"net{os.getpid()}"))


def test_json_of_events_that_outsiders_tell(tmp_path: Path) -> None:
    from orchestrator.faults import marks

    marks.tell(tmp_path, "fault_detected", kind="supervisor_lost")
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "supervisor_lost"
