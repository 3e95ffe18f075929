"""What `train` shows: a view below its messages on a terminal, plain lines elsewhere."""

import io
import time
from pathlib import Path

import pytest

from orchestrator import live_view
from orchestrator.live_view import viewed
from orchestrator.report.live import Live


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class OneRun:
    def __init__(self, run_dir: Path) -> None:
        if not run_dir.exists():
            raise FileNotFoundError(run_dir)

    def look(self) -> Live:
        return Live(status="running", attempt=1, step=3, num_steps=8, loss=4.2, left_seconds=9.0)


STEP = "step 3/8  loss 4.2000  lr 1.00e-04  900 tokens/s  0.30 s/step  0:09 left"


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_log_has_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal() if ci else io.StringIO()
    with viewed(tmp_path, out) as say:
        say("loading the base")
        say(STEP)
    assert out.getvalue() == f"loading the base\n{STEP}\n"


def test_a_terminal_has_the_view_in_place_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live_view, "Watch", OneRun)
    out = Terminal()
    run_dir = tmp_path / "run"
    with viewed(run_dir, out, every_seconds=0.001) as say:
        say("loading the base")
        run_dir.mkdir()
        until = time.monotonic() + 20
        while "loss 4.2000" not in out.getvalue() and time.monotonic() < until:
            time.sleep(0.001)
        say(STEP)
        say("held-out loss 4.1")
    text = out.getvalue()
    assert "step 3/8 [###########" in text
    assert "0:09 left" in text
    assert "s/step" not in text
    assert text.index("loading the base") < text.index("step 3/8") < text.index("held-out loss 4.1")
    assert text.endswith("\x1b[J"), "the view is taken away at the end"
