"""Which part of a launch a host takes, and where a lone host's ranks meet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.host_job import PORT, HostJob, HostPart, dumps, loads

SAY = (sys.executable, "-c", "import sys; print('rank at', sys.argv[1])", PORT)


def started(folder: Path, job: HostJob, **env: str) -> subprocess.CompletedProcess[str]:
    """Start a host's part as srun does."""
    path = folder / "job.json"
    path.write_text(dumps(job))
    return subprocess.run(
        [sys.executable, "-m", "launch.on_host", str(path)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def job_of(folder: Path, *nodes: str) -> HostJob:
    parts = tuple(HostPart(name="", processes=1, argv=SAY, node=node) for node in nodes)
    return HostJob(name="job", run_dir=str(folder), parts=parts, env=())


def test_a_lone_node_has_a_port_that_ranks_can_reach(tmp_path: Path) -> None:
    """Port 0 would leave the store where the ranks do not look for it."""
    done = started(tmp_path, job_of(tmp_path, ""), SLURMD_NODENAME="n1", SLURM_NODEID="0")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.removeprefix("rank at ")) > 0


@pytest.mark.parametrize(("node", "number"), [("n2", "1"), ("", "1")])
def test_a_node_without_a_part_has_nothing_to_do(tmp_path: Path, node: str, number: str) -> None:
    done = started(tmp_path, job_of(tmp_path, node and "n1"), SLURMD_NODENAME="n2", SLURM_NODEID=number)
    assert (done.returncode, done.stdout) == (0, "note: node n2 is not needed by the plan\n")


def test_a_part_that_names_its_node_is_not_taken_by_number(tmp_path: Path) -> None:
    done = started(tmp_path, job_of(tmp_path, "n2"), SLURMD_NODENAME="n2", SLURM_NODEID="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rank at ")


def test_the_node_is_in_the_file_only_where_it_is_known(tmp_path: Path) -> None:
    job = job_of(tmp_path, "n2", "")
    assert dumps(job).count('"node"') == 1
    assert loads(dumps(job)) == job
