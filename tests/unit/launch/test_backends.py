"""Golden requests: whole command, files and environment of each backend on CPU and GPU."""

from dataclasses import replace

import pytest

from launch import backends
from launch.errors import LaunchError
from launch.request import Request
from launch.spec import Backend, DeviceKind, LaunchSpec

CPU = LaunchSpec(
    module="orchestrator.train.worker",
    args=("/runs/a/plan.json", "--x=a b"),
    run_dir="/runs/a",
    processes_per_node=2,
    env=(("NCCL_ALGO", "Ring"),),
    python="/venv/bin/python",
    name="a-1",
    device_kind=DeviceKind.cpu,
    threads_per_process=4,
)
GPU = replace(CPU, device_kind=DeviceKind.gpu, device_ids=("GPU-aa", "GPU-bb"), master_port=29611)

COMMON_ENV = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NCCL_ALGO": "Ring",
    "OMP_NUM_THREADS": "4",
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRAINMASTER_RUN_DIR": "/runs/a",
}
CPU_ENV = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}
GPU_ENV = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}
WORKER = ("orchestrator.train.worker", "/runs/a/plan.json", "--x=a b")


def golden(backend: Backend, argv: tuple[str, ...], *env: dict[str, str]) -> Request:
    merged = {name: value for part in (COMMON_ENV, *env) for name, value in part.items()}
    return Request(
        files=(),
        argv=argv,
        env=tuple(sorted(merged.items())),
        cwd="/runs/a",
        log_path="/runs/a/logs/a-1.log",
        backend=backend,
    )


def local_env(port: str) -> dict[str, str]:
    return {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "RANK": "0",
        "WORLD_SIZE": "1",
    }


def test_local_on_cpu() -> None:
    spec = replace(CPU, processes_per_node=1)
    argv = ("/venv/bin/python", "-u", "-m", *WORKER)
    assert backends.build(Backend.local, spec) == golden(Backend.local, argv, CPU_ENV, local_env("0"))


def test_local_on_gpu() -> None:
    spec = replace(GPU, processes_per_node=1, device_ids=("GPU-bb",))
    argv = ("/venv/bin/python", "-u", "-m", *WORKER)
    env = {**GPU_ENV, "CUDA_VISIBLE_DEVICES": "GPU-bb"}
    assert backends.build(Backend.local, spec) == golden(Backend.local, argv, env, local_env("29611"))


@pytest.mark.parametrize(
    ("spec", "endpoint", "device_env"),
    [(CPU, "127.0.0.1:0", CPU_ENV), (GPU, "127.0.0.1:29611", GPU_ENV)],
    ids=["cpu", "gpu"],
)
def test_torchrun(spec: LaunchSpec, endpoint: str, device_env: dict[str, str]) -> None:
    argv = (
        *("/venv/bin/python", "-u", "-m", "torch.distributed.run"),
        *("--nnodes", "1"),
        *("--nproc-per-node", "2"),
        *("--max-restarts", "0"),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", endpoint),
        *("--rdzv-id", "a-1"),
        *("--local-addr", "127.0.0.1"),
        *("--role", ""),
        *("--log-dir", "/runs/a/logs"),
        *("--redirects", "3"),
        *("--tee", "0:3"),
        *("-m", *WORKER),
    )
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}"}
    assert backends.build(Backend.torchrun, spec) == golden(Backend.torchrun, argv, device_env, env)


@pytest.mark.parametrize(
    ("spec", "world_info", "device_env"),
    [
        # Decoded: host "localhost" with the ids "-1" twice, and with "GPU-aa", "GPU-bb".
        (replace(CPU, master_port=29611), "eyJsb2NhbGhvc3QiOlsiLTEiLCItMSJdfQ==", CPU_ENV),
        (GPU, "eyJsb2NhbGhvc3QiOlsiR1BVLWFhIiwiR1BVLWJiIl19", GPU_ENV),
    ],
    ids=["cpu", "gpu"],
)
def test_deepspeed(spec: LaunchSpec, world_info: str, device_env: dict[str, str]) -> None:
    argv = (
        *("/venv/bin/python", "-u", "-m", "deepspeed.launcher.launch"),
        f"--world_info={world_info}",
        "--node_rank=0",
        "--master_addr=127.0.0.1",
        "--master_port=29611",
        "--module",
        "--no_local_rank",
        "--log_level=warning",
        *WORKER,
    )
    env = {"LOCAL_WORLD_SIZE": "2"}
    assert backends.build(Backend.deepspeed, spec) == golden(Backend.deepspeed, argv, device_env, env)


@pytest.mark.parametrize(
    ("backend", "spec", "found"),
    [
        (Backend.local, CPU, "one process"),
        (Backend.torchrun, replace(GPU, num_nodes=2), "this host alone"),
        (Backend.deepspeed, replace(GPU, num_nodes=2), "this host alone"),
        (Backend.deepspeed, CPU, "free port"),
        (Backend.deepspeed, replace(GPU, device_ids=()), "devices 0, 1"),
    ],
)
def test_refusals_say_what_to_do(backend: Backend, spec: LaunchSpec, found: str) -> None:
    with pytest.raises(LaunchError) as caught:
        backends.build(backend, spec)
    assert found in caught.value.found
    assert caught.value.remedy


def test_spec_env_may_bring_torchrun_prefixes_back() -> None:
    name = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
    request = backends.build(Backend.torchrun, replace(CPU, env=((name, "[${rank}] "),)))
    assert dict(request.env)[name] == "[${rank}] "
