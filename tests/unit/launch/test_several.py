"""Golden requests for several hosts, of the same and of different size, on CPU and GPU."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from launch import backends
from launch.errors import LaunchError
from launch.host_job import candidate_ports, dumps, loads
from launch.request import Request
from launch.spec import Backend, DeviceKind, HostShare, LaunchSpec

HOSTS = (HostShare(name="me@a", processes=2), HostShare(name="b", processes=1))
CPU = LaunchSpec(
    module="orchestrator.train.worker",
    args=("/runs/a b/plan.json",),
    run_dir="/runs/a b",
    num_nodes=2,
    processes_per_node=2,
    env=(("NCCL_DEBUG", "WARN"),),
    python="/venv/bin/python",
    name="a-1",
    device_kind=DeviceKind.cpu,
    threads_per_process=4,
    hosts=HOSTS,
    packages=("topology",),
    interfaces=("eth1",),
    join_seconds=60,
)
IDS = (("GPU-aa", "GPU-bb"), ("GPU-cc",))
GPU = replace(
    CPU,
    device_kind=DeviceKind.gpu,
    master_port=29611,
    hosts=tuple(replace(host, device_ids=ids) for host, ids in zip(HOSTS, IDS, strict=True)),
)
ENV = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NCCL_DEBUG": "WARN",
    "OMP_NUM_THREADS": "4",
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRAINMASTER_RUN_DIR": "/runs/a b",
}
CPU_ENV = {**ENV, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}
GPU_ENV = {**ENV, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
NO_PREFIX = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}"}


def torchrun(at: int, count: int) -> list[str]:
    return [
        *("/venv/bin/python", "-u", "-m", "torch.distributed.run"),
        *("--nnodes", "2"),
        *("--node-rank", str(at)),
        *("--nproc-per-node", str(count)),
        *("--max-restarts", "0"),
        *("--rdzv-backend", "static"),
        *("--master-addr", "{master_addr}"),
        *("--master-port", "{master_port}"),
        *("--rdzv-id", "a-1"),
        *("--rdzv-conf", "timeout=60"),
        *("--local-addr", "{local_addr}"),
        *("--role", ""),
        *("--log-dir", f"/runs/a b/logs/host{at}"),
        *("--redirects", "3"),
        # Only rank 0 is shown live.
        *(("--tee", "0:3") if at == 0 else ()),
        *("-m", "orchestrator.train.worker", "/runs/a b/plan.json"),
    ]


def deepspeed(at: int, world: str) -> list[str]:
    return [
        *("/venv/bin/python", "-u", "-m", "deepspeed.launcher.launch"),
        f"--world_info={world}",
        f"--node_rank={at}",
        "--master_addr={master_addr}",
        "--master_port={master_port}",
        "--module",
        "--no_local_rank",
        "--log_level=warning",
        *("orchestrator.train.worker", "/runs/a b/plan.json"),
    ]


def job(env: dict[str, str], parts: list[dict[str, Any]], ports: list[int], *, uses_devices: bool) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": "a-1",
        "run_dir": "/runs/a b",
        "parts": parts,
        "env": env,
        "ports": ports,
        "must_see": ["/runs/a b/plan.json"],
        "packages": ["launch", "orchestrator", "topology"],
        "interfaces": ["eth1"],
        "join_seconds": 60,
        "uses_devices": uses_devices,
    }


def part(name: str, count: int, argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "processes": count, "argv": argv, "env": env}


def check(request: Request, backend: Backend, env: dict[str, str], body: dict[str, Any]) -> None:
    described, hostfile = request.files
    assert described.path == "/runs/a b/launch/a-1.json"
    assert json.loads(described.text) == body
    assert (hostfile.path, hostfile.text) == ("/runs/a b/launch/hostfile", "me@a slots=2\nb slots=1\n")
    assert replace(request, files=()) == Request(
        argv=(
            *("/venv/bin/python", "-P", "-u", "-m", "launch.fan_out", "/runs/a b/launch/a-1.json", "/venv/bin/python"),
            *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15"),
        ),
        env=tuple(sorted(env.items())),
        cwd="/runs/a b",
        log_path="/runs/a b/logs/a-1.log",
        backend=backend,
    )


PORTS = [24592, 25601, 26610, 27619, 28628, 29637, 20646, 21655]


def test_torchrun_on_cpus() -> None:
    parts = [part("me@a", 2, torchrun(0, 2), NO_PREFIX), part("b", 1, torchrun(1, 1), NO_PREFIX)]
    body = job(CPU_ENV, parts, PORTS, uses_devices=False)
    check(backends.build(Backend.torchrun, CPU), Backend.torchrun, CPU_ENV, body)


def test_torchrun_on_gpus() -> None:
    parts = [
        part("me@a", 2, torchrun(0, 2), {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb", **NO_PREFIX}),
        part("b", 1, torchrun(1, 1), {"CUDA_VISIBLE_DEVICES": "GPU-cc", **NO_PREFIX}),
    ]
    body = job(GPU_ENV, parts, [29611], uses_devices=True)
    check(backends.build(Backend.torchrun, GPU), Backend.torchrun, GPU_ENV, body)


def test_deepspeed_on_cpus() -> None:
    world = base64.urlsafe_b64encode(b'{"0:me@a":["-1","-1"],"1:b":["-1"]}').decode()
    parts = [
        part("me@a", 2, deepspeed(0, world), {"LOCAL_WORLD_SIZE": "2"}),
        part("b", 1, deepspeed(1, world), {"LOCAL_WORLD_SIZE": "1"}),
    ]
    body = job(CPU_ENV, parts, PORTS, uses_devices=False)
    check(backends.build(Backend.deepspeed, CPU), Backend.deepspeed, CPU_ENV, body)


def test_deepspeeds_local_ranks_get_the_planned_devices() -> None:
    """Its LOCAL_RANK is the rank modulo the ranks of the host, and CUDA_VISIBLE_DEVICES is indexed by that."""
    hosts = (
        HostShare(name="a", processes=1, device_ids=("GPU-0",)),
        HostShare(name="b", processes=3, device_ids=("GPU-1", "GPU-2", "GPU-3")),
        HostShare(name="c", processes=2, device_ids=("GPU-4", "GPU-5")),
    )
    spec = replace(GPU, hosts=hosts, num_nodes=3, processes_per_node=3)
    described = loads(backends.build(Backend.deepspeed, spec).files[0].text)
    (flag,) = [word for word in described.parts[0].argv if word.startswith("--world_info=")]
    world = json.loads(base64.urlsafe_b64decode(flag.partition("=")[2]))
    rank = 0
    for visible in world.values():
        for _ in range(len(visible)):
            assert visible[rank % len(visible)] == f"GPU-{rank}"
            rank += 1
    assert rank == 6


def test_one_other_host_is_reached_through_ssh_too() -> None:
    spec = replace(CPU, hosts=HOSTS[1:], num_nodes=1, processes_per_node=1)
    assert not spec.is_here
    assert "launch.fan_out" in backends.build(Backend.torchrun, spec).argv
    here = replace(CPU, hosts=(HostShare(name="localhost", processes=2),), num_nodes=1)
    assert here.is_here
    assert "launch.fan_out" not in backends.build(Backend.torchrun, here).argv


def test_the_file_of_the_hosts_reads_back() -> None:
    text = backends.build(Backend.torchrun, GPU).files[0].text
    assert dumps(loads(text)) == text
    for broken in ("", "[]", "{}", '{"schema": 2}', text.replace("argv", "args")):
        with pytest.raises(LaunchError, match="damaged or from another version"):
            loads(broken)


def test_ports_lie_outside_those_the_kernel_hands_out() -> None:
    seen = {port for number in range(0, 2_000_000, 997) for port in candidate_ports(number)}
    assert min(seen) >= 20_000
    assert max(seen) < 30_000
    assert all(len(set(candidate_ports(number))) == 8 for number in range(500))
    assert not set(candidate_ports(7)) & set(candidate_ports(8))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hosts": (*HOSTS, HostShare(name="b", processes=1)), "num_nodes": 3}, "host b given twice"),
        ({"hosts": (HostShare(name="-oProxy=x", processes=2), HOSTS[1])}, "host '-oProxy=x'"),
        ({"hosts": (HostShare(name="a;b", processes=2), HOSTS[1])}, "host 'a;b'"),
        ({"hosts": (HostShare(name="localhost", processes=2), HOSTS[1])}, "localhost among 2"),
        ({"hosts": HOSTS[:1]}, "1 hosts with [2] ranks"),
        ({"hosts": (HOSTS[0], HostShare(name="b", processes=0))}, "no ranks on host 'b'"),
        ({"hosts": (HOSTS[0], HostShare(name="b", processes=1, device_ids=("GPU-a", "GPU-b")))}, "2 device ids for 1"),
        ({"join_seconds": 0}, "join_seconds = 0"),
    ],
)
def test_hosts_that_cannot_be(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(LaunchError) as caught:
        replace(CPU, **changes)
    assert word in caught.value.found
    assert caught.value.remedy


def test_nameless_hosts_need_slurm() -> None:
    nameless = tuple(replace(host, name="") for host in HOSTS)
    with pytest.raises(LaunchError, match=r"launch\.hosts="):
        backends.build(Backend.torchrun, replace(CPU, hosts=nameless))
