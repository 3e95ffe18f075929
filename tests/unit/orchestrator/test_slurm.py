"""What SLURM's programs print, read back; recorded from version 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.backends import slurm as backend
from launch.slurm_options import SlurmOptions
from launch.spec import DeviceKind, LaunchSpec
from orchestrator.slurm import (
    Phase,
    parse_job_number,
    parse_sacct,
    parse_states,
    record_submission,
    refusal,
    submitted_job,
)

PENDING = (
    "JobId=7 JobName=a-1 UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=4294901758 Nice=0 Account=(null) "
    "QOS=(null) JobState=PENDING Reason=BeginTime Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:00 NodeList=(null) NumNodes=2"
)
RUNNING = PENDING.replace("PENDING Reason=BeginTime", "RUNNING Reason=None").replace(
    "NodeList=(null)", "NodeList=n[1-2]"
)


def test_a_waiting_job() -> None:
    state = parse_states("7", PENDING)
    assert state is not None
    assert (state.phase, str(state)) == (Phase.waiting, "job 7: pending (BeginTime), restart 2")


def test_of_an_array_the_one_at_work_speaks() -> None:
    state = parse_states("7", "\n".join((PENDING, RUNNING, PENDING.replace("PENDING", "COMPLETED"))))
    assert state is not None
    assert (state.phase, str(state)) == (Phase.running, "job 7: running on n[1-2], restart 2")


@pytest.mark.parametrize(
    "word", ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "NEW_ONE"]
)
def test_every_other_state_is_an_end(word: str) -> None:
    state = parse_states("7", PENDING.replace("PENDING", word))
    assert state is not None
    assert state.phase is Phase.ended


def test_accounting_knows_what_the_controller_has_forgotten() -> None:
    state = parse_sacct("7", "CANCELLED by 1000|n[1-2]\nCOMPLETED|n1\n")
    assert state is not None
    assert (state.state, state.phase, state.nodes) == ("CANCELLED", Phase.ended, "n[1-2]")
    assert parse_sacct("7", "") is None
    assert parse_states("7", "") is None


@pytest.mark.parametrize(
    ("lines", "job"),
    [
        (["12"], "12"),
        (["12;east"], "12"),
        (["sbatch: note: hello", "12"], "12"),
        (["sbatch: error: no"], None),
        ([], None),
    ],
)
def test_the_number_of_a_job(lines: list[str], job: str | None) -> None:
    assert parse_job_number(lines) == job


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("sbatch: error: invalid partition specified: nowhere", "#SBATCH --partition=nowhere"),
        ("sbatch: error: Invalid generic resource (gres) specification", "#SBATCH --gres=gpu:2"),
        ("sbatch: error: Invalid account or account/partition combination specified", "#SBATCH --account=team"),
        ("sbatch: error: Invalid feature specification", "#SBATCH --constraint=a100"),
        ("sbatch: error: Requested time limit is invalid (missing or exceeds some limit)", "#SBATCH --time=9-0"),
        ("sbatch: error: Requested node configuration is not available", "#SBATCH --nodes=2"),
    ],
)
def test_a_refusal_comes_with_our_line(message: str, line: str) -> None:
    spec = LaunchSpec(
        module="m",
        run_dir="/r",
        num_nodes=2,
        processes_per_node=2,
        python="python",
        name="a",
        device_kind=DeviceKind.gpu,
    )
    options = SlurmOptions(partition="nowhere", account="team", constraint="a100", time="9-0")
    script = backend.build(spec, options, prepare="p").files[1].text
    (problem,) = refusal([message, "sbatch: error: Batch job submission failed"], script, "/r/job").problems
    number = script.splitlines().index(line) + 1
    assert f"line {number}: {line}" in problem.where
    assert message.removeprefix("sbatch: error: ") in problem.found


def test_a_refusal_about_nothing_of_ours_names_the_script() -> None:
    (problem,) = refusal(
        ["sbatch: error: Unable to contact slurm controller"], "#SBATCH --requeue\n", "/r/job"
    ).problems
    assert problem.where == "/r/job"


def test_the_job_is_known_to_other_shells(tmp_path: Path) -> None:
    assert submitted_job(tmp_path) is None
    (tmp_path / "launch").mkdir()
    record_submission(tmp_path, "12")
    assert submitted_job(tmp_path) == "12"
