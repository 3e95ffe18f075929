"""Our variables, and how the user's own meet them."""

from dataclasses import replace

import pytest

from launch import environment
from launch.environment import Override
from launch.errors import LaunchError
from launch.spec import ATTEMPT_MARK, RESERVED_NAMES, RUN_MARK, DeviceKind, HostShare, LaunchSpec

CPU = LaunchSpec(
    module="m",
    run_dir="/runs/a",
    processes_per_node=2,
    python="python3",
    name="a",
    device_kind=DeviceKind.cpu,
    threads_per_process=3,
)


def test_spec_env_replaces_a_default() -> None:
    values = dict(environment.build(replace(CPU, env=(("OMP_NUM_THREADS", "9"), ("PYTORCH_ALLOC_CONF", "x:y")))))
    assert values["OMP_NUM_THREADS"] == "9"
    assert values["PYTORCH_ALLOC_CONF"] == "x:y"


def test_gpu_without_ids_leaves_the_choice_to_the_user() -> None:
    values = dict(environment.build(replace(CPU, device_kind=DeviceKind.gpu)))
    assert "CUDA_VISIBLE_DEVICES" not in values
    assert "DS_ACCELERATOR" not in values


def test_every_process_carries_the_mark_of_its_run() -> None:
    assert dict(environment.build(CPU))[RUN_MARK] == "/runs/a"


def test_the_number_of_the_start_is_told_where_it_is_known() -> None:
    assert dict(environment.build(replace(CPU, attempt=3)))[ATTEMPT_MARK] == "3"
    assert ATTEMPT_MARK not in dict(environment.build(CPU))
    with pytest.raises(LaunchError, match="attempt = -1"):
        replace(CPU, attempt=-1)


def test_the_user_wins_and_is_reported() -> None:
    merged, overridden = environment.merge(
        (("NCCL_ALGO", "Tree"), ("OMP_NUM_THREADS", "3"), ("SAME", "1")),
        {"NCCL_ALGO": "Ring", "HOME": "/home/u", "SAME": "1"},
    )
    assert merged == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "3", "SAME": "1", "HOME": "/home/u"}
    assert overridden == (Override(name="NCCL_ALGO", ours="Tree", users="Ring"),)
    assert str(overridden[0]) == "NCCL_ALGO: the user's value 'Ring' is used, not 'Tree'"


def test_identity_and_placement_stay_ours_and_are_reported() -> None:
    ours = tuple((name, "ours") for name in sorted(RESERVED_NAMES))
    merged, overridden = environment.merge(ours, dict.fromkeys(RESERVED_NAMES, "users"))
    assert merged == dict(ours)
    assert {override.kept for override in overridden} == {"ours"}
    assert len(overridden) == len(RESERVED_NAMES)
    assert str(overridden[0]) == f"{overridden[0].name}: the plan's value 'ours' is used, not 'users'"


def test_merge_changes_neither_input() -> None:
    users = {"A": "u"}
    environment.merge((("A", "o"), ("B", "o")), users)
    assert users == {"A": "u"}


def test_threads_that_differ_by_host_are_left_to_the_hosts() -> None:
    """Else a host would take those of the launching one for what the user has set."""
    hosts = (HostShare(name="a", processes=2, threads=1), HostShare(name="b", processes=1, threads=2))
    assert "OMP_NUM_THREADS" not in dict(environment.build(replace(CPU, num_nodes=2, hosts=hosts)))
    alike = tuple(replace(host, threads=2) for host in hosts)
    assert dict(environment.build(replace(CPU, num_nodes=2, hosts=alike)))["OMP_NUM_THREADS"] == "2"
