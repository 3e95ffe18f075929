"""The kernel's counters of processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.recovery.kernel_oom import MACHINE, read_counters, was_oom_kill


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _version_2(root: Path, kills: int) -> None:
    _write(root, "proc/self/cgroup", "0::/job/step\n")
    for level in ("", "job/", "job/step/"):
        text = f"low 0\nhigh 0\nmax 7\noom 1\noom_kill {kills}\noom_group_kill 0\n"
        _write(root, f"sys/fs/cgroup/{level}memory.events", text)


def _version_1(root: Path, kills: int) -> None:
    _write(root, "proc/self/cgroup", "5:memory:/job\n2:cpu:/\n0::/\n")
    _write(root, "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    text = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
    _write(root, "sys/fs/cgroup/memory/job/memory.oom_control", text)


@pytest.mark.parametrize("version", [_version_1, _version_2])
def test_a_kill_in_the_group_is_seen(tmp_path: Path, version: object) -> None:
    assert callable(version)
    version(tmp_path, 2)
    before = read_counters(tmp_path)
    assert sum(before.values()) > 0
    assert not was_oom_kill(before, read_counters(tmp_path))
    version(tmp_path, 3)
    assert was_oom_kill(before, read_counters(tmp_path))


def test_the_machine_counts_where_no_group_does(tmp_path: Path) -> None:
    _write(tmp_path, "proc/vmstat", "nr_free_pages 5\noom_kill 4\n")
    assert read_counters(tmp_path) == {MACHINE: 4}
    _version_2(tmp_path, 0)
    assert MACHINE not in read_counters(tmp_path)


def test_nothing_to_read_says_nothing(tmp_path: Path) -> None:
    assert read_counters(tmp_path) == {}
    assert not was_oom_kill({}, {"a": 5})
    _write(tmp_path, "proc/self/cgroup", "0::/\n")
    _write(tmp_path, "sys/fs/cgroup/memory.events", "oom_kill many\n")
    assert read_counters(tmp_path) == {}


def test_this_machine_can_be_read() -> None:
    counters = read_counters()
    assert all(count >= 0 for count in counters.values())
    assert not was_oom_kill(counters, counters)
