"""A real SLURM without root, and hosts made from network namespaces; skipped, with the reason, where there is none.

SLURM is Debian's, unpacked and not installed; the packages stay in the user's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.shaped_hosts import ShapedHosts, shaped_hosts
from launch.execute import free_port
from launch.spec import RUN_MARK

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmaster" / "slurm"
PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libmunge2", "libhwloc15", "liblua5.1-0",
)  # fmt: skip
LIBRARIES = "usr/lib/x86_64-linux-gnu"
NODES = ("node1", "node2")
OTHER = "node3"  # smaller, and in a partition with them that jobs go to only where it is named


def wait_for(condition: Callable[[], Any], what: str, *, seconds: float = 60) -> Any:
    """Poll until the condition holds; returns what it found."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return found


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Living processes of a run: all of them carry its mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_MARK) == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def records(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Slurm:
    """A cluster on this machine: two equal nodes, and a smaller one."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        library = f"{root}/{LIBRARIES}"
        self.env = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{library}:{library}/slurm-wlm",
            "PATH": f"{root}/usr/sbin:{root}/usr/bin:{os.environ['PATH']}",
        }

    def run(self, *words: str, timeout: float = 60) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False, timeout=timeout)
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Start the controller and the nodes' daemons, and wait until the nodes are idle."""
        for name in ("state", "log", "spool", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(2):  # SLURM wants a device file for each GPU
            (self.folder / "dev" / f"nvidia{at}").symlink_to("/dev/null")
        (self.folder / "slurm.conf").write_text(self._settings())
        cards = f"Name=gpu File={self.folder}/dev/nvidia"
        (self.folder / "gres.conf").write_text(f"NodeName=node[1-2] {cards}[0-1]\nNodeName=node3 {cards}0\n")
        self.run("slurmctld")
        for node in (*NODES, OTHER):
            self.run("slurmd", "-N", node, "-d", f"{self.root}/usr/sbin/slurmstepd-wlm")
        words = ("sinfo", "-h", "-N", "-p", "all", "-o", "%T")
        wait_for(lambda: self.run(*words).split() == ["idle"] * 3, "idle nodes", seconds=30)

    def stop(self) -> None:
        """End the daemons."""
        for path in (*self.folder.glob("slurmd-*.pid"), self.folder / "slurmctld.pid"):
            if path.exists():
                os.kill(int(path.read_text()), signal.SIGTERM)

    def _settings(self) -> str:
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        host = os.uname().nodename.partition(".")[0]
        nodes = "".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} Gres=gpu:2\n" for node in NODES
        )
        folder = self.folder
        return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
PluginDir={self.root}/{LIBRARIES}/slurm-wlm
AuthType=auth/none
CredType=cred/none
# Also the delay before a requeued job may start again; below 5 it is the default of 120 s.
AuthInfo=cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
MessageTimeout=10
SlurmdTimeout=15
KillWait=5
JobRequeue=1
GresTypes=gpu
PlugStackConfig={folder}/none.conf
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=4 RealMemory=2000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}NodeName={OTHER} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} Gres=gpu:1 CPUs=2
PartitionName=all Nodes=ALL MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF
# A job of `high` takes the nodes of one of `low`, whose ranks get SIGTERM that long before.
PartitionName=low Nodes=node[1-2] MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE
PartitionName=high Nodes=node[1-2] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def _unpacked() -> Path:
    """SLURM in the user's cache; fetched by apt-get, which needs no root for that."""
    root = CACHE / "root"
    if (root / "usr/sbin/slurmctld").exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("SLURM is taken from Debian's packages: no apt-get and dpkg here")
    debs = CACHE / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    got = subprocess.run(
        ["apt-get", "download", "-qq", *PACKAGES], cwd=debs, capture_output=True, text=True, check=False, timeout=120
    )
    if got.returncode:
        pytest.skip(f"no packages of SLURM: {(got.stderr.strip().splitlines() or ['no word from apt-get'])[-1]}")
    making = CACHE / f"root.{os.getpid()}"
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "-x", deb, making], check=True)
    for program in (*making.glob("usr/sbin/*-wlm"), *making.glob("usr/bin/*-wlm")):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    making.rename(root)
    return root


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    lab = Slurm(_unpacked(), tmp_path_factory.mktemp("slurm"))
    try:
        lab.start()
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        lab.stop()
        pytest.skip(f"SLURM does not start here: {error}")
    yield lab
    lab.stop()


class Hosts:
    """Namespaces that stand for hosts 10.77.0.1, 10.77.0.2, ..., and a program that reaches them as ssh does."""

    def __init__(self, made: ShapedHosts, folder: Path) -> None:
        self.made, self.folder = made, folder
        self.has_ipv6 = all(self._add(name, f"fd77::{at + 1}/64") for at, name in enumerate(made.names))

    @staticmethod
    def _add(name: str, address: str) -> bool:
        words = ["ip", "-n", name, "addr", "add", address, "dev", "eth0", "nodad"]
        return subprocess.run(words, check=False, capture_output=True).returncode == 0

    def address(self, at: int, *, ipv6: bool = False) -> str:
        """Of a host; IPv6 only where this kernel has it."""
        return f"fd77::{at + 1}" if ipv6 and self.has_ipv6 else f"10.77.0.{at + 1}"

    def ssh(self, name: str = "ssh", **ways: str) -> str:
        """Write the program; `ways` holds what stands before the line of a host (`h1="unshare -m"`)."""
        cases = "".join(f'  {at}) way="{ways.get(f"h{at}", "")}" ;;\n' for at in range(len(self.made.names)))
        program = self.folder / name
        program.write_text(
            "#!/bin/sh\n# As ssh: a host, then a line for its shell.\n"
            'host="$1"; shift; at=$((${host##*[.:]} - 1))\n'
            f'case "$at" in\n{cases}  *) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;\nesac\n'
            f'exec ip netns exec "{self.made.names[0].rpartition("-")[0]}-$at" $way sh -c "$*"\n'
        )
        program.chmod(0o755)
        return str(program)


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("hosts from network namespaces need root")
    try:
        with shaped_hosts(3, 1_000_000_000) as made:
            yield Hosts(made, tmp_path_factory.mktemp("hosts"))
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(name="processes_of")
def processes_of_fixture() -> Callable[[Path], list[psutil.Process]]:
    return processes_of


@pytest.fixture(name="records")
def records_fixture() -> Callable[[Path], list[dict[str, Any]]]:
    return records


@pytest.fixture
def command() -> Callable[..., list[str]]:
    """The words of a `trainmaster` command."""
    return lambda *arguments: [sys.executable, "-m", "orchestrator.cli", *arguments]
