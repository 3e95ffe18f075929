"""A LaunchSpec that exists is valid, and one error names all that is wrong."""

import os
from dataclasses import FrozenInstanceError, replace

import pytest

from launch.errors import LaunchError
from launch.spec import DeviceKind, LaunchSpec

VALID = LaunchSpec(
    module="orchestrator.train.worker",
    run_dir="/runs/a",
    processes_per_node=2,
    python="/venv/bin/python",
    name="a-1",
    device_kind=DeviceKind.gpu,
    device_ids=("GPU-aa", "GPU-bb"),
)


def test_world_size_counts_all_nodes() -> None:
    assert replace(VALID, num_nodes=3).world_size == 6


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        VALID.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"module": "a b"}, "module"),
        ({"module": "-c"}, "module"),
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"run_dir": "runs/a"}, "run_dir"),
        ({"python": ""}, "python"),
        ({"python": "bin/python"}, "python"),
        ({"args": ("a\0b",)}, "NUL"),
        ({"num_nodes": 0}, "num_nodes"),
        ({"processes_per_node": 0, "device_ids": ()}, "processes_per_node"),
        ({"threads_per_process": 0}, "threads_per_process"),
        ({"master_port": 0}, "master_port"),
        ({"master_port": 65536}, "master_port"),
        ({"env": (("A-B", "1"),)}, "A-B"),
        ({"env": (("A", "1"), ("A", "2"))}, "twice"),
        ({"env": (("RANK", "1"),)}, "RANK"),
        ({"env": (("CUDA_VISIBLE_DEVICES", "1"),)}, "CUDA_VISIBLE_DEVICES"),
        ({"device_ids": ("0", "1")}, "device id '0'"),
        ({"device_ids": ("GPU-aa",)}, "1 device ids for 2"),
        ({"device_ids": ("GPU-aa", "GPU-aa")}, "twice"),
        ({"device_kind": DeviceKind.cpu}, "on cpu"),
    ],
)
def test_each_problem_is_found_with_a_remedy(changes: dict[str, object], word: str) -> None:
    with pytest.raises(LaunchError) as caught:
        replace(VALID, **changes)  # type: ignore[arg-type]
    assert word in caught.value.found
    assert caught.value.remedy


def test_all_problems_come_at_once() -> None:
    with pytest.raises(LaunchError) as caught:
        replace(VALID, name="a b", num_nodes=0, device_ids=())
    assert "name 'a b'" in caught.value.found
    assert "num_nodes = 0" in caught.value.found
    assert os.linesep not in str(caught.value)
