"""XID errors out of the kernel log, each counted once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.monitor.readings import Xid
from orchestrator.monitor.xid_log import KernelLog, XidMerger, with_xids, xid_of
from tests.unit.orchestrator.monitor import drawn

NAMES = {"0000:18:00.0": "a/gpu0", "0001:2a:00.0": "a/gpu1"}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "3,1187,88;NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            Xid(
                time=5.0,
                device="a/gpu0",
                number=79,
                words="pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
        ),
        ("4,1,1;NVRM: Xid (PCI:0001:2A:00.0): 31", Xid(time=5.0, device="a/gpu1", number=31)),
        ("4,1,1;NVRM: Xid (PCI:0000:99:00): 79, GPU of another run", None),
        ("4,1,1;NVRM: Xid (PCI:zz): 79", None),
        ("4,1,1;oom-kill: constraint=CONSTRAINT_MEMCG", None),
    ],
)
def test_a_line_of_the_kernel_log(line: str, wanted: Xid | None) -> None:
    assert xid_of(line, 5.0, NAMES) == wanted


def test_only_what_comes_later_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("4,1,1;NVRM: Xid (PCI:0000:18:00): 13, of an older run\n")
    log = KernelLog(NAMES, path)
    assert log.read(1.0) == []
    with path.open("a") as stream:
        stream.write("4,2,2;NVRM: Xid (PCI:0000:18:00): 94, Contained\n")
    assert log.read(2.0) == [Xid(time=2.0, number=94, device="a/gpu0", words="Contained")]
    log.close()
    assert log.read(3.0) == []


def test_a_log_that_may_not_be_read_says_why(tmp_path: Path) -> None:
    log = KernelLog(NAMES, tmp_path / "none")
    assert log.refusal == os.strerror(2)
    assert log.read(1.0) == []


def test_an_error_that_both_tell_counts_once_whoever_is_first() -> None:
    driver, kernel = Xid(time=1.0, number=79, device="a"), Xid(time=1.5, number=79, device="a", words="off the bus")
    together = XidMerger()
    assert together.take([driver], [kernel]) == [kernel]
    assert together.take([driver], []) == []
    later = XidMerger()
    assert later.take([driver], []) == [driver]
    assert later.take([], [kernel]) == []


def test_the_same_error_twice_counts_twice() -> None:
    merger = XidMerger()
    first = Xid(time=1.0, number=13, device="a", words="one")
    assert merger.take([], [first, Xid(time=1.1, number=13, device="a", words="two")])[0] == first
    assert len(merger.take([], [Xid(time=1.2, number=13, device="a", words="three")])) == 1
    assert len(merger.take([Xid(time=60.0, number=13, device="a")], [])) == 1


def test_errors_stand_in_the_reading_of_their_device_or_in_one_of_their_own() -> None:
    mine, gone = Xid(time=1.0, number=31, device="a/gpu0"), Xid(time=1.0, number=79, device="a/gpu1")
    readings = [drawn.device(1.0), drawn.device(2.0)]
    found = with_xids(readings, [mine, gone], time=3.0, host=0)
    assert found == [
        drawn.device(1.0, xids=(mine,)),
        drawn.device(2.0),
        drawn.device(3.0, "a/gpu1", xids=(gone,)),
    ]
