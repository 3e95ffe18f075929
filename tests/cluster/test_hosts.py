"""torchrun and deepspeed on hosts made from network namespaces: who meets whom, and what is said if one is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch import backends
from launch.execute import Outcome, execute
from launch.facts import ERROR_PREFIX
from launch.host_job import HostJob, HostPart, dumps
from launch.request import Request
from launch.spec import Backend, DeviceKind, HostShare, LaunchSpec
from orchestrator.planner.plan import loads

ROOT = Path(__file__).parents[2]
PYTHON_PATH = os.pathsep.join((str(Path(__file__).parent), str(ROOT)))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def spec_of(lab: Any, run_dir: Path, counts: dict[int, int], mode: str, **changes: Any) -> LaunchSpec:
    """Ranks of `rank.py` on the hosts of these numbers."""
    run_dir.mkdir(exist_ok=True)
    given = {
        "module": "rank",
        "args": (mode,),
        "run_dir": str(run_dir),
        "num_nodes": len(counts),
        "processes_per_node": max(counts.values()),
        "hosts": tuple(HostShare(name=lab.address(at), processes=count) for at, count in counts.items()),
        "env": (("PYTHONPATH", PYTHON_PATH),),
        "python": sys.executable,
        "name": "try-1",
        "device_kind": DeviceKind.cpu,
        "ssh": (lab.ssh(),),
        "join_seconds": 60,
    }
    return LaunchSpec(**{**given, **changes})


def run(request: Request, **env: str) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    user_env = {**os.environ, "PYTHONPATH": PYTHON_PATH, **env}
    return execute(request, user_env=user_env, on_line=lines.append), lines


def ranks(run_dir: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in run_dir.glob("rank-*.json")]
    return sorted(found, key=lambda body: int(body["RANK"]))


def test_torchrun_counts_ranks_in_the_order_of_the_hosts(hosts: Any, tmp_path: Path) -> None:
    """Not in the order of their addresses, which are IPv6 where the kernel has it."""
    counts = {2: 2, 0: 1, 1: 1}
    named = tuple(HostShare(name=hosts.address(at, ipv6=True), processes=count) for at, count in counts.items())
    outcome, lines = run(
        backends.build(Backend.torchrun, spec_of(hosts, tmp_path, counts, "add", hosts=named)),
        NCCL_DEBUG="INFO",
        OMP_NUM_THREADS="2",
    )
    assert outcome.returncode == 0, lines
    assert outcome.leftovers == ()
    found = ranks(tmp_path)
    assert [body["sum"] for body in found] == [10.0] * 4
    assert [body["LOCAL_RANK"] for body in found] == ["0", "1", "0", "0"]
    assert [body["LOCAL_WORLD_SIZE"] for body in found] == ["2", "2", "1", "1"]
    for body, at in zip(found, (2, 2, 0, 1), strict=True):
        assert hosts.address(at, ipv6=True) in body["addresses"]
        assert body["MASTER_ADDR"] == hosts.address(2, ipv6=True)
        assert body["GLOO_SOCKET_IFNAME"] == "eth0"
        assert body["NCCL_DEBUG"] == "INFO"
    assert "rank 0 of 4 on a host" in lines
    said = "OMP_NUM_THREADS: the user's value '2' is used, not '1'"
    assert {said, f"[{named[1].name}] {said}"} <= set(lines)
    logs = (tmp_path / "logs").rglob("stderr.log")
    assert sorted(path.relative_to(tmp_path / "logs").parts[0] for path in logs) == ["host0", "host0", "host1", "host2"]


@pytest.mark.parametrize("counts", [{1: 1, 0: 2}, {2: 1, 0: 1, 1: 2}], ids=["1+2", "1+1+2"])
def test_deepspeed_on_hosts_that_differ(hosts: Any, tmp_path: Path, counts: dict[int, int]) -> None:
    """Threads differ as well: a host with more ranks has fewer for each."""
    named = tuple(
        HostShare(name=hosts.address(at), processes=count, threads=4 // count) for at, count in counts.items()
    )
    request = backends.build(Backend.deepspeed, spec_of(hosts, tmp_path, counts, "add", hosts=named))
    outcome, lines = run(request)
    assert outcome.returncode == 0, lines
    found = ranks(tmp_path)
    places = [at for at, count in counts.items() for _ in range(count)]
    size = len(places)
    assert [body["sum"] for body in found] == [size * (size + 1) / 2] * size
    assert [body["LOCAL_WORLD_SIZE"] for body in found] == [str(counts[at]) for at in places]
    assert [body["OMP_NUM_THREADS"] for body in found] == [str(4 // counts[at]) for at in places]
    for body, at in zip(found, places, strict=True):
        assert hosts.address(at) in body["addresses"]


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_nothing_is_left_on_any_host(
    hosts: Any,
    tmp_path: Path,
    victim: str,
    wait_for: Callable[..., Any],
    processes_of: Callable[[Path], list[psutil.Process]],
) -> None:
    """A rank of the second host is killed, or the launching process itself."""
    folder = tmp_path / victim
    # The ranks ignore SIGTERM: torchrun kills them when their time is up.
    env = (("PYTHONPATH", PYTHON_PATH), ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1"))
    request = backends.build(Backend.torchrun, spec_of(hosts, folder, {0: 1, 1: 1}, "wait", env=env))
    given = folder / "request.json"
    given.write_text(json.dumps({**asdict(request), "backend": request.backend.value}))
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("driver.py")), str(given)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )
    wait_for(lambda: len(ranks(folder)) == 2, "two ranks")
    os.kill(ranks(folder)[1]["pid"] if victim == "rank" else process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    wait_for(lambda: not processes_of(folder), f"no process after the {victim} died", seconds=20)
    assert process.returncode == (1 if victim == "rank" else -signal.SIGKILL)


# What hosts say before ranks start needs no launcher: each runs `true`.


def meeting(hosts: Any, folder: Path, *, ssh: str, count: int = 2, **changes: Any) -> tuple[Outcome, list[str]]:
    folder.mkdir(exist_ok=True)
    names = changes.pop("names", [hosts.address(at) for at in range(count)])
    path = folder / "job.json"
    given = {
        "name": "m-1",
        "run_dir": str(folder),
        "parts": tuple(HostPart(name=name, processes=1, argv=("true", "{master_addr}")) for name in names),
        "env": (),
        "ports": (20_123, 20_321),
        "join_seconds": 20,
    }
    path.write_text(dumps(HostJob(**{**given, **changes})))
    return run(
        Request(
            argv=(sys.executable, "-P", "-u", "-m", "launch.fan_out", str(path), sys.executable, ssh),
            env=(),
            cwd=str(folder),
            log_path=str(folder / "log"),
            backend=Backend.torchrun,
        )
    )


def problems(lines: list[str]) -> list[dict[str, str]]:
    told = [json.loads(line.removeprefix(ERROR_PREFIX)) for line in lines if line.startswith(ERROR_PREFIX)]
    return [problem for body in told for problem in body["problems"]]


def test_hosts_that_fit_together_just_start(hosts: Any, tmp_path: Path) -> None:
    outcome, lines = meeting(hosts, tmp_path, ssh=hosts.ssh(), count=3)
    assert (outcome.returncode, lines) == (0, [])


def test_a_host_that_ssh_does_not_reach_is_named_with_its_words(hosts: Any, tmp_path: Path) -> None:
    outcome, lines = meeting(hosts, tmp_path, ssh=hosts.ssh(), names=[hosts.address(0), "nowhere.9"])
    (problem,) = problems(lines)
    assert outcome.returncode == 2
    assert problem["where"] == "host nowhere.9"
    assert "Could not resolve hostname nowhere.9" in problem["found"]


def test_a_host_that_never_joins_is_named_with_those_that_did(hosts: Any, tmp_path: Path) -> None:
    port = ["ip", "-n", hosts.made.names[2], "link", "set", "eth0"]
    subprocess.run([*port, "down"], check=True)
    try:
        outcome, lines = meeting(hosts, tmp_path, ssh=hosts.ssh(), count=3, join_seconds=3)
    finally:
        subprocess.run([*port, "up"], check=True)
    assert outcome.returncode == 2
    (problem,) = problems(lines)
    assert problem["where"] == "host 10.77.0.3"
    assert problem["found"] == "did not join within 3 s; there: 10.77.0.1, 10.77.0.2"


def test_a_host_that_does_not_see_the_run_directory_says_which_path(hosts: Any, tmp_path: Path) -> None:
    hide = hosts.folder / "hide"
    hide.write_text(f'#!/bin/sh\nmount -t tmpfs none "{tmp_path}" && exec "$@"\n')
    hide.chmod(0o755)
    outcome, lines = meeting(hosts, tmp_path, ssh=hosts.ssh("ssh-hidden", h1=f"unshare -m {hide}"), join_seconds=4)
    assert outcome.returncode == 2
    assert problems(lines)[0]["where"] == f"{tmp_path}/job.json"
    assert "does not see it (No such file or directory)" in problems(lines)[0]["found"]


def test_a_missing_file_is_told_by_all_hosts_that_miss_it(hosts: Any, tmp_path: Path) -> None:
    outcome, lines = meeting(hosts, tmp_path, ssh=hosts.ssh(), must_see=(f"{tmp_path}/plan.json",))
    assert outcome.returncode == 2
    assert [problem["found"] for problem in problems(lines)] == [
        "host 10.77.0.1 does not see it",
        "host 10.77.0.2 does not see it",
    ]


def test_other_versions_code_and_clocks_are_told(hosts: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name, version in (("torch", "1.0"), ("numpy", "0.9")):
        folder = other / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (other / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 7\n")
    (other / "extra").mkdir()
    (other / "extra" / "__init__.py").write_text("there = 'other'\n")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "__init__.py").write_text("there = 'here'\n")
    ways = {f"h{at}": f"env PYTHONPATH={path}:{ROOT}" for at, path in enumerate((tmp_path, other))}
    outcome, lines = meeting(hosts, tmp_path / "run", ssh=hosts.ssh("ssh-other", **ways), packages=("launch", "extra"))
    assert outcome.returncode == 2
    found = [problem["found"] for problem in problems(lines)]
    assert found[0].startswith("torch 1.0, but 2.")
    assert found[1] == "runs other source code of trainmaster than 10.77.0.1"
    notes = [line for line in lines if line.startswith("note: ")]
    assert any("numpy 0.9, but " in note for note in notes)
    assert any("the clock of host 10.77.0.2 is +7.0 s from that of 10.77.0.1" in note for note in notes)


def test_a_taken_port_is_left_for_the_next_and_an_own_one_is_refused(hosts: Any, tmp_path: Path) -> None:
    code = "import socket,time; s=socket.create_server(('',20123)); print('up',flush=True); time.sleep(60)"
    with subprocess.Popen(
        hosts.made.command(0, sys.executable, "-c", code), stdout=subprocess.PIPE, text=True
    ) as squatter:
        assert squatter.stdout is not None
        squatter.stdout.readline()
        try:
            assert meeting(hosts, tmp_path / "a", ssh=hosts.ssh())[0].returncode == 0
            outcome, lines = meeting(hosts, tmp_path / "b", ssh=hosts.ssh(), ports=(20_123,))
        finally:
            squatter.kill()
    assert outcome.returncode == 2
    assert problems(lines)[0]["where"] == "port 20123 of host 10.77.0.1"


def test_an_interface_is_taken_only_if_every_host_reaches_it(hosts: Any, tmp_path: Path) -> None:
    # The loopback leads every other host to itself.
    outcome, lines = meeting(hosts, tmp_path, ssh=hosts.ssh(), interfaces=("lo",))
    assert outcome.returncode == 0
    assert lines == ["note: 127.0.0.1 of 10.77.0.1 is not reached by every host: ranks meet at 10.77.0.1"]


def test_a_fine_tune_on_the_hosts_of_a_hostfile(hosts: Any, tmp_path: Path, command: Callable[..., list[str]]) -> None:
    """Stands for everything from the command to the summary, on hosts with as many ranks each as the file says."""
    slots = {1: 1, 0: 2}
    hostfile, run_dir = tmp_path / "hostfile", tmp_path / "run"
    lines = [f"{hosts.address(at)} slots={count}\n" for at, count in slots.items()]
    hostfile.write_text("# ours\n\n" + "".join(lines))
    ranks = sum(slots.values())
    done = subprocess.run(
        command(
            *(
                "train",
                "experiment=demo",
                f"devices={ranks}",
                "batch.max_steps=2",
                f"batch.global={ranks}",
                "data.max_rows=60",
                "data.max_eval_rows=4",
            ),
            *(f"launch.hostfile={hostfile}", f"launch.ssh={hosts.ssh()}", f"run_dir={run_dir}"),
        ),
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["steps"]) == ("done", ranks, 2)
    strategy = loads((run_dir / "plan.json").read_text()).chosen.strategy
    assert strategy.ranks_per_host == tuple(slots.values())
    assert (run_dir / "launch" / "hostfile").read_text() == "".join(lines)
    found = [len(list((run_dir / "logs" / f"host{at}").rglob("stdout.log"))) for at in range(len(slots))]
    assert found == list(slots.values())
