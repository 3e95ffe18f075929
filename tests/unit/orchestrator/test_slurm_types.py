"""What sinfo and srun print, read back; recorded from version 22.05."""

from __future__ import annotations

import pytest

from orchestrator.config import LaunchConfig
from orchestrator.errors import UserError
from orchestrator.slurm_probe import copies_of
from orchestrator.slurm_types import Answer, judged_answer, parse_types, probe_command
from topology.presets import preset
from topology.units import MIB

SINFO = """\
a1|128|1031000|gpu:a100:8(S:0-1)|ib,a100|mixed
a2|128|1031000|gpu:a100:8(S:0-1)|ib,a100|idle
a2|128|1031000|gpu:a100:8(S:0-1)|ib,a100|idle
a3|128|1031000|gpu:a100:8(S:0-1)|ib,a100|drained*
t1|32|192000|gpu:t4:2,shard:8,mps:200|(null)|idle~
c1|64|257000|(null)|(null)|down*
g1|16|64000|gpu:1|(null)|allocated
"""


def test_kinds_of_nodes() -> None:
    kinds = {kind.nodes or kind.states: kind for kind in parse_types(SINFO)}
    assert len(kinds) == 4
    big = kinds["a2", "a1"]  # the idle one is asked first, the drained one never; a2 is in two partitions
    assert (big.gpus, big.gpu_name, big.cpus, big.memory_bytes) == (8, "a100", 128, 1_031_000 * MIB)
    told = "8 x a100, 128 CPUs, 1006.8 GiB of memory, features ib,a100 (1 mixed, 1 idle, 1 drained*)"
    assert str(big) == told
    assert (kinds["t1",].gpus, kinds["t1",].gpu_name) == (2, "t4")  # shards and MPS are no further cards
    assert (kinds["g1",].gpus, kinds["g1",].gpu_name) == (1, "")
    gone = kinds[(("down*", 1),)]
    assert gone.nodes == ()
    assert str(gone) == "64 CPUs, 251.0 GiB of memory (1 down*)"


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_partitions: Unable to contact slurm controller\n"])
def test_no_nodes(text: str) -> None:
    assert parse_types(text) == ()


def test_the_whole_node_is_asked_for() -> None:
    kind = parse_types(SINFO)[0]
    launch = LaunchConfig(partition="gpu", account="team", probe_seconds=9, extra=("--comment=x",))
    assert probe_command(kind, "a2", launch, "/venv/bin/python") == (
        *("srun", "--job-name=trainmaster-probe", "--nodes=1", "--ntasks=1", "--nodelist=a2", "--cpus-per-task=128"),
        *("--mem=0", "--gres=gpu:8", "--time=5", "--immediate=9", "--partition=gpu", "--account=team", "--exclusive"),
        *("--comment=x", "/venv/bin/python", "-P", "-m", "orchestrator.cli", "probe", "format=json"),
    )


NO_PROGRAM = """\
slurmstepd: error: execve(): /x/python: No such file or directory
srun: error: a2: task 0: Exited with exit code 2
"""
BUSY = (
    "srun: job 6 queued and waiting for resources\nsrun: error: Unable to allocate resources: Requested nodes are busy"
)


@pytest.mark.parametrize(
    ("code", "errors", "answer"),
    [
        (0, "srun: job 5 queued and waiting for resources", Answer()),
        (1, BUSY, Answer(is_busy=True)),
        (
            1,
            "srun: error: Unable to allocate resources: Requested node configuration is not available",
            Answer(why="Unable to allocate resources: Requested node configuration is not available"),
        ),
        (
            2,
            NO_PROGRAM,
            Answer(
                why="slurmstepd: error: execve(): /x/python: No such file or directory / "
                "a2: task 0: Exited with exit code 2"
            ),
        ),
        (1, "", Answer(why="srun ended with code 1")),
    ],
)
def test_how_a_probe_ended(code: int, errors: str, answer: Answer) -> None:
    assert judged_answer(code, errors, LaunchConfig()) == answer


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("Invalid account or account/partition combination specified", "launch.account=team"),
        ("Invalid qos specification", "launch.qos=high"),
        ("Requested reservation is invalid", "launch.reservation"),
        ("Invalid feature specification", "launch.constraint=a100"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "launch.qos=high"),
    ],
)
def test_what_is_wrong_for_every_node_ends_it(said: str, where: str) -> None:
    launch = LaunchConfig(account="team", qos="high", constraint="a100")
    with pytest.raises(UserError) as caught:
        judged_answer(1, f"srun: error: Unable to allocate resources: {said}", launch)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == (where, f"srun refused the probe: {said}")


def test_equal_nodes_are_copies_without_uuids_of_their_own() -> None:
    found = preset("dgx_h100")
    asked = found.hosts[0].name
    one, other = copies_of(found, (asked, "n7"))
    assert one is found
    assert [device.id for device in other.devices] == [f"n7/gpu{at}" for at in range(8)]
    assert {device.uuid for device in other.devices} == {None}
    assert len(other.links) == len(found.links)
    assert all(nic.id.startswith("n7/") for nic in other.nics)
