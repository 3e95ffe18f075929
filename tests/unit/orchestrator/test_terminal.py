"""When there are colours and views, by the conventions of the environment."""

import io
import re

import pytest

from orchestrator.cli import main
from orchestrator.errors import Problem
from orchestrator.report.panel import Panel
from orchestrator.terminal import Style, is_live, paint, wants_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "terminal", "wanted"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0", "TERM": "xterm"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "CI": "true"}, True, True),
    ],
)
def test_colours(environ: dict[str, str], terminal: bool, wanted: bool) -> None:
    assert wants_colour(Terminal() if terminal else io.StringIO(), environ) is wanted


def test_a_view_is_for_people() -> None:
    assert is_live(Terminal(), {"TERM": "xterm"})
    assert not is_live(io.StringIO(), {"TERM": "xterm"})
    assert not is_live(Terminal(), {"TERM": "xterm", "CI": "true"})
    assert not is_live(Terminal(), {"TERM": "dumb"})
    closed = Terminal()
    closed.close()
    assert not wants_colour(io.TextIOWrapper(io.BytesIO()), {"TERM": "xterm"})


def test_an_error_has_the_same_letters_with_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["plann"]) == 2
    plain = capsys.readouterr().err
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["plann"]) == 2
    coloured = capsys.readouterr().err
    assert plain == "error: plann: no such verb. Did you mean 'plan'?\n"
    assert coloured.startswith("\x1b[1;31merror:\x1b[0m ")
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_what_a_name_holds_colours_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["\x1b[31mplan"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_paint() -> None:
    assert paint("a", Style.remedy, colour=False) == "a"
    assert paint("a", Style.remedy, colour=True) == "\x1b[32ma\x1b[0m"
    assert str(Problem(where="a", found="b.", remedy="C")) == "a: b. C."


def screen(text: str) -> list[str]:
    """What a terminal shows after this."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token == "\x1b[J":
            lines[row:] = [""]
        elif token.endswith("A"):
            row -= int(token[2:-1])
        elif token != "\r":
            lines[row] = token
    return lines[:-1] if not lines[-1] else lines


def test_lines_are_said_above_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = Terminal()
    panel = Panel(out)
    panel.say("loading")
    panel.show(["step 1/8", "loss 4.0", "memory " + "x" * 60])
    panel.say("held-out loss 4.1")
    panel.show(["step 2/8"])
    panel.say("saved")
    assert screen(out.getvalue()) == ["loading", "held-out loss 4.1", "saved", "step 2/8"]
    panel.clear()
    assert screen(out.getvalue()) == ["loading", "held-out loss 4.1", "saved"]
    assert max(len(line) for line in screen(out.getvalue())) < 30
