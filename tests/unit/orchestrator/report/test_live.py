"""A run as it stands, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from orchestrator.report.live import (
    Live,
    bottleneck,
    duration,
    event_words,
    headroom,
    lines_of,
    pace,
    plain_line,
)

RANK = RankReading(
    time=1.0,
    rank=0,
    host=0,
    step=9,
    step_seconds=2.0,
    busy_seconds=1.5,
    communication_seconds=0.4,
    prefetch_seconds=0.1,
)
LIVE = Live(
    status="running",
    attempt=2,
    step=30,
    num_steps=120,
    phase="training",
    left_seconds=3725.0,
    loss=1.23456,
    eval_loss=2.0,
    tokens_per_second=12345.6,
    headroom="3.0 GiB free on rank 0's device",
    bottleneck="computing 75%",
    told=("fault detected: rank 1 was ended by SIGKILL",),
)


def test_a_screenful() -> None:
    lines = lines_of(LIVE)
    assert lines[0] == "running, attempt 2, training"
    assert lines[1] == "step 30/120 [########......................]  1:02:05 left"
    assert lines[2] == "loss 1.2346  held-out 2.0000  12,346 tokens/s"
    assert lines[-1] == LIVE.told[0]
    assert lines_of(LIVE, colour=True)[-1].startswith("\x1b[33m")


def test_before_anything_is_known() -> None:
    live = Live(status="running", attempt=1, step=0)
    assert lines_of(live) == ["running, attempt 1"]
    assert plain_line(live) == "running, step 0"


def test_more_steps_than_were_planned_keep_the_bar_whole() -> None:
    assert "[##############################]" in lines_of(replace(LIVE, step=999))[1]


def test_a_line_for_a_log() -> None:
    assert plain_line(LIVE) == "running, step 30/120  loss 1.2346  12,346 tokens/s  1:02:05 left"


def test_what_a_step_goes_to() -> None:
    assert bottleneck([RANK]) == "computing 75%, waiting for gradients 20%, waiting for layers 5%"
    slow = replace(RANK, rank=1, busy_seconds=1.9, communication_seconds=0.0, prefetch_seconds=None)
    found = bottleneck([replace(RANK, busy_seconds=0.95), slow])
    assert found.endswith("the others wait for rank 1 (2.0 times as long)")
    assert bottleneck([]) == ""
    assert bottleneck([replace(RANK, busy_seconds=None)]) == ""


def test_where_memory_is_least() -> None:
    device = DeviceReading(time=1.0, device="gpu0", host=0, memory_used_bytes=20 * 2**30)
    fuller = replace(device, device="gpu1", memory_used_bytes=23 * 2**30)
    host = HostReading(time=1.0, host=0, memory_available_bytes=5 * 2**30)
    assert headroom([RANK], [device, fuller], [host], 24 * 2**30) == "1.0 GiB free on gpu1"
    assert headroom([RANK], [], [host], None) == "5.0 GiB free on host 0"
    unread = headroom([replace(RANK, reserved_bytes=22 * 2**30)], [], [host], 24 * 2**30)
    assert unread == "2.0 GiB free on rank 0's device"
    assert headroom([], [], [], None) == ""


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "fault_detected", "evidence": "rank 1 hangs"}, "fault detected: rank 1 hangs"),
        ({"event": "decided", "decision": "restart", "why": "going on"}, "decided: going on"),
        ({"event": "decided", "decision": "finish", "why": "done"}, ""),
        ({"event": "replanned", "changes": ["ranks 2 -> 1"]}, "replanned: ranks 2 -> 1"),
        ({"event": "resumed", "step": 4}, "resumed: at step 4"),
        ({"event": "fault_injected", "fault": "hang", "step": 4}, "fault injected: hang at step 4"),
        ({"event": "checkpoint", "step": 4}, ""),
        ({"event": "finding"}, ""),
        ({}, ""),
    ],
)
def test_events(event: dict[str, Any], words: str) -> None:
    assert event_words(event) == words


def test_pace_is_that_of_the_newest_steps() -> None:
    metrics = [{"step_seconds": 100.0}] * 5 + [{"step_seconds": 2.0}] * 16 + [{"eval_loss": 1.0}]
    assert pace(metrics) == 2.0
    assert pace([]) is None


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 3600, -5)] == ["0:00", "1:00", "1:00:00", "0:00"]
