"""The batch script as a whole, and what sbatch would misread."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.backends import slurm
from launch.errors import LaunchError
from launch.host_job import loads
from launch.request import FileToWrite, Request
from launch.slurm_options import ContainerRuntime, SlurmOptions
from launch.spec import Backend, DeviceKind, HostShare, LaunchSpec

GOLDEN = Path(__file__).with_name("golden")
CPU = LaunchSpec(
    module="orchestrator.train.worker",
    args=("/runs/a/plan.json",),
    run_dir="/runs/a",
    num_nodes=2,
    processes_per_node=2,
    env=(("PYTORCH_ALLOC_CONF", "a:b c"),),
    python="/venv/bin/python",
    name="a-1",
    device_kind=DeviceKind.cpu,
    threads_per_process=4,
)
GPU = replace(CPU, device_kind=DeviceKind.gpu, num_nodes=16, processes_per_node=8)
UNEVEN = replace(
    GPU,
    num_nodes=2,
    processes_per_node=2,
    hosts=(HostShare(processes=2), HostShare(processes=1)),
)
ALL = SlurmOptions(
    job_name="tune",
    partition="gpu,big",
    account="team",
    qos="high",
    constraint="a100|h100",
    reservation="night",
    nodelist="n[1-20]",
    exclude="n7",
    gres="gpu:a100:8",
    cpus=64,
    memory="0",
    time="1-12:00:00",
    exclusive=True,
    array="1-5%1",
    mail="me@example.org",
    extra=("--licenses=x:1",),
    modules=("cuda/12.8", "gcc"),
    venv="/venvs/a",
    signal_seconds=300,
    max_requeues=3,
)
MODULES = {"measure": "orchestrator.slurm_node", "compare": "orchestrator.slurm_check"}
WATCHED = {**MODULES, "watch": "orchestrator.slurm_supervise"}


def build(spec: LaunchSpec = CPU, options: SlurmOptions | None = None, **more: Any) -> Request:
    return slurm.build(spec, options or SlurmOptions(), prepare="orchestrator.train.prepare", **more)


def script(request: Request) -> str:
    return request.files[1].text


@pytest.mark.parametrize(
    ("name", "spec", "options", "more"),
    [
        ("cpu", CPU, SlurmOptions(), {}),
        ("gpu_all", GPU, ALL, MODULES),
        ("gpu_uneven", UNEVEN, SlurmOptions(signal_seconds=0), WATCHED),
        ("pyxis", GPU, SlurmOptions(container="nvcr.io/nvidia/pytorch:26.01", mounts=("/data:/data",)), WATCHED),
        ("apptainer", GPU, SlurmOptions(container="/a.sif", container_runtime=ContainerRuntime.apptainer), {}),
    ],
)
def test_whole_scripts(name: str, spec: LaunchSpec, options: SlurmOptions, more: dict[str, Any]) -> None:
    request = build(spec, options, **more)
    assert script(request) == (GOLDEN / f"{name}.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=script(request), text=True, check=False).returncode == 0


def test_the_request() -> None:
    request = build()
    described, batch, exports = request.files
    assert batch == FileToWrite(path="/runs/a/launch/job.sbatch", text=batch.text, mode=0o755)
    assert replace(request, files=()) == Request(
        argv=("sbatch", "--parsable", "/runs/a/launch/job.sbatch"),
        env=(),
        cwd="/runs/a",
        log_path="/runs/a/logs/sbatch.log",
        backend=Backend.slurm,
    )
    assert exports.path == "/runs/a/launch/exports.sh"
    # Identity and placement in any case, the rest only where the user has not set it.
    assert "export CUDA_VISIBLE_DEVICES=''\n" in exports.text
    assert "[ -n \"${PYTORCH_ALLOC_CONF+set}\" ] || export PYTORCH_ALLOC_CONF='a:b c'\n" in exports.text
    job = loads(described.text)
    assert (described.path, job.ports) == ("/runs/a/launch/a-1.json", ())  # by the number of the job
    assert [part.name for part in job.parts] == ["", ""]
    assert [part.argv[part.argv.index("--node-rank") + 1] for part in job.parts] == ["0", "1"]


def test_nodes_that_differ_on_cpus() -> None:
    hosts = (HostShare(processes=3), HostShare(processes=1))
    request = build(replace(CPU, hosts=hosts, processes_per_node=3))
    assert "#SBATCH --cpus-per-task=12\n" in script(request)
    assert [part.processes for part in loads(request.files[0].text).parts] == [3, 1]


def test_gpus_of_nodes_that_differ_are_asked_for_in_all() -> None:
    request = build(UNEVEN, **MODULES)
    assert "#SBATCH --gpus=3\n" in script(request)
    assert "--gres=gpu" not in script(request)
    # A node with one GPU need not have the cores of one with two.
    assert "#SBATCH --cpus-per-gpu=4\n" in script(request)
    assert "--cpus-per-task" not in script(request)
    assert "#SBATCH --cpus-per-task=6\n" in script(build(UNEVEN, SlurmOptions(cpus=6)))
    steps = [line for line in script(request).splitlines() if line.lstrip().startswith("step srun")]
    # One node does not have the GPUs of the job, so its steps must ask for none.
    assert ["--gres=none" in line for line in steps] == ["--nodes=1" in line for line in steps]
    given = script(build(UNEVEN, SlurmOptions(gres="gpu:2")))
    assert "#SBATCH --gres=gpu:2\n" in given
    assert "--gpus" not in given
    assert "--gres=none" not in given


def test_threads_of_nodes_that_differ_are_told_by_their_parts() -> None:
    hosts = (HostShare(processes=2, threads=4), HostShare(processes=1, threads=8))
    described, _, exports = build(replace(CPU, hosts=hosts)).files
    assert [dict(part.env).get("OMP_NUM_THREADS") for part in loads(described.text).parts] == ["4", "8"]
    assert "OMP_NUM_THREADS" not in exports.text  # a shell's value would count as the user's
    assert "OMP_NUM_THREADS" in build(CPU).files[2].text


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (replace(CPU, hosts=(HostShare(name="a", processes=2), HostShare(name="b", processes=2))), "named a, b"),
        (replace(CPU, run_dir="/runs/a b"), "run_dir '/runs/a b'"),
        (replace(CPU, run_dir="/runs/%j"), "run_dir '/runs/%j'"),
    ],
)
def test_what_one_job_cannot_be(spec: LaunchSpec, found: str) -> None:
    with pytest.raises(LaunchError) as caught:
        build(spec)
    assert found in caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"partition": "$PARTITION"}, "launch.partition='$PARTITION'"),
        ({"account": "`id`"}, "launch.account='`id`'"),
        ({"qos": "a\n#SBATCH --exclusive"}, "launch.qos="),
        ({"constraint": '"a b"'}, "launch.constraint="),
        ({"job_name": "a b"}, "launch.job_name='a b'"),
        ({"extra": ("--comment=a#b",)}, "launch.extra='--comment=a#b'"),
        ({"extra": ("licenses",)}, "launch.extra has 'licenses'"),
        ({"time": "4h"}, "launch.time='4h'"),
        ({"memory": "64 GB"}, "launch.memory='64 GB'"),
        ({"array": "0-3"}, "launch.array='0-3'"),
        ({"conda": "a", "venv": "/b"}, "both launch.conda and launch.venv"),
        ({"venv": "/b", "container": "c"}, "a container and"),
        ({"mounts": ("/a:/a",)}, "launch.mounts without"),
        ({"cpus": -1}, "launch.cpus=-1"),
        ({"signal_seconds": 70_000}, "launch.signal_seconds=70000"),
    ],
)
def test_what_sbatch_would_misread(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(LaunchError) as caught:
        SlurmOptions(**changes)
    assert found in caught.value.found
    assert caught.value.remedy


def test_all_problems_come_at_once() -> None:
    with pytest.raises(LaunchError) as caught:
        SlurmOptions(partition="$A", account="$B", time="x")
    assert all(word in caught.value.found for word in ("partition", "account", "time"))


def test_ranks_are_watched_from_the_first_node_but_not_from_a_container() -> None:
    watched = "step /venv/bin/python -P -u -m orchestrator.slurm_supervise /runs/a /runs/a/launch/a-1.json -- srun "
    assert watched in script(build(**WATCHED))
    assert "slurm_supervise" not in script(build(CPU, SlurmOptions(container="/a.sif"), **WATCHED))


def test_nodes_are_looked_at_before_rows_and_ranks_only_where_asked_for() -> None:
    lines = script(build(**MODULES)).splitlines()
    steps = [line.split(" -m ")[1] for line in lines if line.lstrip().startswith("step srun")]
    assert steps == [
        'orchestrator.slurm_node /runs/a "$ATTEMPT"',
        'orchestrator.slurm_check /runs/a /runs/a/launch/a-1.json "$ATTEMPT"',
        "orchestrator.train.prepare /runs/a/plan.json",
        "launch.on_host /runs/a/launch/a-1.json",
    ]
    assert lines.index(". /runs/a/launch/exports.sh") > next(
        at for at, line in enumerate(lines) if "slurm_check" in line
    )
    assert "slurm_check" not in script(build())


def test_an_own_template() -> None:
    text = "#!/bin/sh\n{% for line in directives %}\n#SBATCH {{ line }}\n{% endfor %}\nexec {{ ranks }}\n"
    lines = script(build(template=text)).splitlines()
    assert lines[-1].startswith("exec srun ")
    assert lines[-1].endswith("-m launch.on_host /runs/a/launch/a-1.json")


@pytest.mark.parametrize("text", ["{{ rank }}", "{% for %}", "{{ ranks"])
def test_a_template_that_does_not_work(text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        build(template=text)
    assert caught.value.asked == "launch.template"
    assert "ranks" in caught.value.remedy
