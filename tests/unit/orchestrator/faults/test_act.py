"""Real harm to a child process, its files and a small file system."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from launch.spec import RUN_MARK
from orchestrator.faults import act

ROOT = Path(__file__).parents[4]


@contextmanager
def child(code: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_kill() -> None:
    with child("from orchestrator.faults import act; act.kill_self()") as process:
        assert process.wait(20) == -signal.SIGKILL


def test_stop_and_go_on() -> None:
    with child(
        "from orchestrator.faults import act; print('here', flush=True); act.stop_self(); print('on')"
    ) as process:
        assert line_of(process) == "here"
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        process.send_signal(signal.SIGCONT)
        assert line_of(process) == "on"


HANG = """
import faulthandler, os, signal, sys, threading, time
from orchestrator.faults import act
ticks = []
def tick():
    while True:
        print("tick", flush=True)
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
stacks = open(os.environ["STACKS"], "w")
faulthandler.register(signal.SIGUSR2, stacks)
time.sleep(0.05)
print("hangs", flush=True)
act.hang()
"""


def test_a_hang_holds_the_interpreter_lock(tmp_path: Path) -> None:
    """Neither its threads nor its handlers run; a stack dump in C does, and shows where; only SIGKILL ends it."""
    stacks = tmp_path / "stacks"
    with child(HANG, STACKS=str(stacks)) as process:
        while line_of(process) != "hangs":
            pass
        until = time.monotonic() + 30
        while "in hang" not in stacks.read_text():
            assert time.monotonic() < until
            process.send_signal(signal.SIGUSR2)
            time.sleep(0.01)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        with suppress(BlockingIOError):  # what its thread said before
            while os.read(process.stdout.fileno(), 65536):
                pass
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)  # ten turns of its thread
        with pytest.raises(BlockingIOError):
            os.read(process.stdout.fileno(), 65536)
        assert process.poll() is None
        process.kill()
        assert process.wait(20) == -signal.SIGKILL


SUPERVISED = """
import os, subprocess, sys
rank = "from orchestrator.faults import act\\ntry: print(act.supervisor_pid())\\nexcept act.Refused as e: print(e)"
agent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
env = {**os.environ, MARK: "/runs/a"}
subprocess.run([sys.executable, "-c", agent, *sys.argv[1:]], env=env)
"""


@pytest.mark.parametrize(("word", "is_found"), [("train", True), ("notebook", False)])
def test_the_supervisor_is_the_parent_of_the_outermost_process_of_the_run(word: str, *, is_found: bool) -> None:
    code = SUPERVISED.replace("MARK", repr(RUN_MARK))
    done = subprocess.Popen(
        [sys.executable, "-c", code, word],
        env={**{k: v for k, v in os.environ.items() if k != RUN_MARK}, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = done.communicate(timeout=30)
    assert said.strip() == (
        str(done.pid) if is_found else "this rank was not started by `trainmaster train` on this host"
    )


def test_memory_is_refused_by_the_kernel_and_the_limit_taken_back() -> None:
    code = """
import resource
from orchestrator.faults import act
before = resource.getrlimit(resource.RLIMIT_AS)
try:
    act.exhaust_host()
except MemoryError as error:
    print("MemoryError", resource.getrlimit(resource.RLIMIT_AS) == before)
"""
    with child(code) as process:
        assert line_of(process) == "MemoryError True"


def checkpoint(run_dir: Path, step: int) -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "moments.safetensors").write_bytes(bytes(range(200)))
    return folder


def test_the_newest_checkpoint_is_by_step_and_whole(tmp_path: Path) -> None:
    assert act.newest_checkpoint(tmp_path) is None
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 10)
    (tmp_path / "checkpoints" / "incomplete-step-00000012").mkdir()
    assert act.newest_checkpoint(tmp_path) == newest


def test_one_bit(tmp_path: Path) -> None:
    path = act.flip_bit(checkpoint(tmp_path, 1))
    assert path.name == "moments.safetensors"
    before, after = bytes(range(200)), path.read_bytes()
    assert len(after) == len(before)
    assert sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True)) == 1


def test_half(tmp_path: Path) -> None:
    assert act.cut(checkpoint(tmp_path, 1)).read_bytes() == bytes(range(100))


def test_a_large_file_system_is_left_alone(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize < 3 << 30:
        pytest.skip("this file system is small")
    with pytest.raises(act.Refused, match="GiB"):
        act.fill(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_small_one_is_filled_to_the_last_byte(tmp_path: Path) -> None:
    code = f"""
import errno
from pathlib import Path
from orchestrator.faults import act
folder = Path({str(tmp_path)!r})
print(act.fill(folder))
try:
    (folder / "more").write_bytes(b"x" * 4096)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    words = ["unshare", *(() if os.geteuid() == 0 else ("-Ur",)), "-m", "sh", "-c"]
    script = f'mount -t tmpfs -o size=3m tmpfs {tmp_path} && exec "$@"'
    done = subprocess.run(
        [*words, script, "sh", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.stdout.split() == [str(3 << 20), "ENOSPC"], done.stderr
    assert not list(tmp_path.iterdir())  # the mount was the child's alone


def test_the_network_of_the_machine_is_left_alone() -> None:
    with pytest.raises(act.Refused):
        act.cut_link(0)
    with pytest.raises(act.Refused):
        act.slow_link(2.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_link_in_a_namespace_is_shaped_and_cut() -> None:
    code = """
import json, subprocess, time
import psutil
from orchestrator.faults import act
def run(*words): return subprocess.run(words, check=True, capture_output=True, text=True).stdout
run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
run("ip", "link", "set", "eth0", "up")
run("ip", "link", "set", "eth1", "up")
run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "900mbit", "burst", "256k", "latency", "50ms")
act.slow_link(3.0)
print(json.loads(run("tc", "-j", "qdisc", "show", "dev", "eth0"))[0]["options"]["rate"])
def is_up(): return "UP" in json.loads(run("ip", "-j", "link", "show", "dev", "eth0"))[0]["flags"]
print(act.cut_link(1.5))
for child in psutil.Process().children(recursive=True):  # as a launcher ends whatever its ranks have left
    child.kill()
time.sleep(0.5)
print(is_up())
time.sleep(2.5)
print(is_up())
"""
    name = f"faults{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.decode().strip()}")
    done = subprocess.run(
        ["ip", "netns", "exec", name, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "eth0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    subprocess.run(["ip", "netns", "del", name], check=True)
    assert done.stdout.splitlines() == [str(300_000_000 // 8), "eth0 is down for 1.5 s", "False", "True"], done.stderr
