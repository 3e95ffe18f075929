"""A host's memory, ports and limits."""

from __future__ import annotations

from pathlib import Path

import psutil

from orchestrator.monitor.host import HostMeter


def test_a_reading_of_this_host() -> None:
    before = psutil.net_io_counters(pernic=True)
    reading = HostMeter(3).read(9.5)
    assert (reading.host, reading.time) == (3, 9.5)
    assert reading.memory_used_bytes is not None
    assert reading.memory_available_bytes is not None
    total = psutil.virtual_memory().total
    assert 0 < reading.memory_used_bytes < total
    assert 0 < reading.memory_available_bytes <= total
    for name, sent, received in reading.network:
        if name in before:
            assert (sent, received) >= (before[name].bytes_sent, 0)


def test_a_limit_of_the_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("3000\n")
    (group / "memory.stat").write_text("inactive_file 500\n")
    assert HostMeter(0, tmp_path).read(1.0).memory_available_bytes == 2500


def test_ports_that_go_past_the_kernel_are_counted(tmp_path: Path) -> None:
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_xmit_data").write_text("250\n")
    (counters / "port_rcv_data").write_text("1000\n")
    silent = tmp_path / "sys/class/infiniband/mlx5_1/ports/1/counters"
    silent.mkdir(parents=True)
    assert HostMeter(0, tmp_path).read(1.0).network[-1] == ("mlx5_0/1", 1000, 4000)
