"""What a task of srun must know to be a rank."""

from __future__ import annotations

import pytest

from launch.srun_rank import first_host, variables_of_srun, wrong_variables

TASK = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
}


def test_a_task_becomes_a_rank() -> None:
    found = variables_of_srun(TASK)
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == ("3", "1", "5", "2")
    assert found["MASTER_ADDR"] == "gpu03"
    others = (TASK | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}, TASK | {"SLURM_NODEID": "2"})
    assert {variables_of_srun(other)["MASTER_PORT"] for other in others} == {found["MASTER_PORT"]}
    assert variables_of_srun(TASK | {"SLURM_NODEID": "2"})["LOCAL_WORLD_SIZE"] == "1"


def test_steps_and_jobs_side_by_side_meet_at_other_ports() -> None:
    ports = [
        variables_of_srun(TASK | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})["MASTER_PORT"]
        for job in range(77, 87)
        for step in range(3)
    ]
    assert len(set(ports)) == len(ports)
    assert all(20_000 <= int(port) < 32_000 for port in ports)


def test_one_gpu_a_task_is_the_first_of_each() -> None:
    assert variables_of_srun(TASK | {"CUDA_VISIBLE_DEVICES": "1"})["LOCAL_RANK"] == "0"
    assert variables_of_srun(TASK | {"CUDA_VISIBLE_DEVICES": "0,1"})["LOCAL_RANK"] == "1"
    assert variables_of_srun(TASK | {"CUDA_VISIBLE_DEVICES": ""})["LOCAL_RANK"] == "1"


def test_a_launcher_and_the_user_win() -> None:
    assert variables_of_srun(TASK | {"RANK": "0"}) == {}
    assert "MASTER_ADDR" not in variables_of_srun(TASK | {"MASTER_ADDR": "10.0.0.1"})


def test_a_batch_script_is_no_task() -> None:
    script = {name: value for name, value in TASK.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert variables_of_srun(script) == {}
    assert variables_of_srun({}) == {}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[03-05,9]", "gpu03"),
        ("gpu[7,9],cpu1", "gpu7"),
        ("rack[1-2]n[4,6]", "rack1n4"),
        ("node-a.lab", "node-a.lab"),
        ("", "localhost"),
    ],
)
def test_first_of_slurms_lists(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, ()),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ()),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ()),
        ({"RANK": "0"}, ("WORLD_SIZE",)),
        ({"WORLD_SIZE": "2"}, ("RANK",)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, ("RANK",)),
        ({"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ("RANK",)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("MASTER_ADDR", "MASTER_PORT")),
        (TASK, ()),
        (TASK | {"SLURM_PROCID": "x", "SLURM_LOCALID": ""}, ("SLURM_PROCID", "SLURM_LOCALID")),
        ({name: value for name, value in TASK.items() if name != "SLURM_STEP_NUM_TASKS"}, ()),
    ],
)
def test_what_is_wrong_is_named(environ: dict[str, str], named: tuple[str, ...]) -> None:
    assert tuple(name for name, _ in wrong_variables(environ | variables_of_srun(environ))) == named
