"""XIDs in lines of the kernel's log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.monitor.kernel_log import xid_of


@pytest.mark.parametrize(
    ("line", "number", "device", "words"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
            79,
            "0000:3b:00.0",
            "pid=1234, name=python, GPU has fallen off the bus.",
        ),
        ("[ 1234.567890] NVRM: Xid (PCI:0000:3B:00): 31, Ch 00000010", 31, "0000:3b:00.0", "Ch 00000010"),
        ("4,77,5000000,-;NVRM: Xid (PCI:0008:01:00): 119, pid='<unknown>', Timeout", 119, "0008:01:00.0", None),
        ("Nov 01 10:00:00 node1 kernel: NVRM: Xid (0000:0a:00): 62, 0cb5(2b4c)", 62, "0000:0a:00.0", None),
        ("NVRM: Xid (PCI:0000:83:00): 48", 48, "0000:83:00.0", ""),
        (
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            154,
            "0000:01:00.0",
            "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        ),
    ],
)
def test_lines_as_drivers_write_them(line: str, number: int, device: str, words: str | None) -> None:
    found = xid_of(line, 100.0)
    assert found is not None
    assert (found.number, found.device, found.time) == (number, device, 100.0)
    assert words is None or found.words == words


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00)",
        "an Xid 79 was mentioned",
    ],
)
def test_other_lines_tell_of_none(line: str) -> None:
    assert xid_of(line, 0.0) is None


def test_a_time_in_the_line_counts_where_the_start_of_the_host_is_known() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    times = [xid_of(f"{front}{line}", 9.0, 1000.0) for front in ("[   12.500000] ", "4,7,12500000,-;", "kernel: ")]
    assert [xid.time for xid in times if xid] == [1012.5, 1012.5, 9.0]


def test_words_cannot_move_the_cursor_of_a_terminal() -> None:
    found = xid_of("NVRM: Xid (PCI:0000:3b:00): 13, \x1b[2Jx", 0.0)
    assert found is not None
    assert found.words.isprintable()


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    xid_of(text, 0.0, 1.0)
    xid_of(f"NVRM: Xid (PCI:{text}", 0.0, 1.0)
    xid_of(f"NVRM: Xid (PCI:0000:3b:00): {text}", 0.0, 1.0)
