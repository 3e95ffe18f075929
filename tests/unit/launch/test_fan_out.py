"""The launching side of several hosts: who is blamed when a start fails."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.fan_out import main
from launch.host_job import HostJob, HostPart, dumps
from launch.on_host import READY

ERROR = "trainmaster-error: "


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """`main` takes the signals of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _problems(tmp_path: Path, capfd: pytest.CaptureFixture[str], **hosts: str) -> tuple[int, list[dict[str, Any]]]:
    """Start hosts whose connection does as these lines of shell say."""
    parts = tuple(HostPart(name=name, processes=1, argv=("true",)) for name in hosts)
    path, ssh = tmp_path / "job.json", tmp_path / "ssh"
    path.write_text(dumps(HostJob(name="j", run_dir=str(tmp_path), parts=parts, env=())))
    cases = "\n".join(f"{name}) {line};;" for name, line in hosts.items())
    ssh.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\n')
    ssh.chmod(0o755)
    code = main([str(path), sys.executable, str(ssh)])
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith(ERROR)]
    return code, [problem for line in lines for problem in json.loads(line.removeprefix(ERROR))["problems"]]


def _cut_off(name: str, first: str) -> str:
    problem = {
        "where": f"host {name}",
        "found": f"is cut off from the first host {first} (timed out)",
        "remedy": "Look.",
    }
    body = json.dumps({"exit_code": 2, "problems": [problem]})
    return f"echo {READY}; echo '{ERROR}{body}'; exit 2"


def test_a_connection_that_never_comes_about_is_told_with_what_others_say(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.fan_out._SILENT_SECONDS", 0.5)
    began = time.monotonic()
    code, problems = _problems(tmp_path, capfd, a="exec sleep 60", b=_cut_off("b", "a"))
    assert time.monotonic() - began < 20
    assert code == 2
    assert [problem["where"] for problem in problems] == ["host b", "host a"]
    assert problems[1]["found"].startswith("nothing could be started there: no word from it")


def test_a_host_that_is_at_work_gets_its_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.fan_out._SILENT_SECONDS", 0.1)
    saved = tmp_path / "saved"
    code, problems = _problems(
        tmp_path, capfd, a=f"echo {READY}; cat > /dev/null; sleep 1; touch {saved}", b=_cut_off("b", "a")
    )
    assert code == 2
    assert [problem["where"] for problem in problems] == ["host b"]
    assert saved.exists(), "its input was closed, and it could end by itself"
