"""Lines for the one who waits."""

from __future__ import annotations

import io

import pytest

from orchestrator.doctor.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_at_once_and_once() -> None:
    stream = Terminal()
    progress = Progress(stream, clock=lambda: 0.0)
    progress.step("first")
    progress.tick()
    progress.step("second")
    assert stream.getvalue() == "first\nsecond\n"


def test_elsewhere_only_a_long_wait_is_told() -> None:
    now, stream = [0.0], io.StringIO()
    progress = Progress(stream, clock=lambda: now[0])
    progress.step("first")
    progress.step("second")
    progress.tick()
    assert stream.getvalue() == ""
    now[0] = 2.0
    progress.tick()
    progress.tick()
    assert stream.getvalue() == "second\n"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_closed_stream_stops_nothing(is_open: bool) -> None:
    stream = Terminal()
    if not is_open:
        stream.close()
    Progress(stream).step("first")
