"""Lines of a run directory on a disk that takes no more."""

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.train.run_files import EventLog, append_json_line, read_json_lines, sparing_full_disk

FULL = OSError(errno.ENOSPC, "No space left on device")


class FullDisk(io.BytesIO):
    """Takes the first bytes of a line, then none."""

    def __init__(self, path: Path, takes: int) -> None:
        super().__init__()
        self._path, self._takes = path, takes

    def write(self, data: Any) -> int:
        if not self._takes:
            raise FULL
        with self._path.open("ab") as stream:
            return stream.write(data[: self._takes])


@pytest.mark.parametrize("takes", [0, 5])
def test_a_full_disk_costs_lines_alone(
    tmp_path: Path, takes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    append_json_line(path, {"step": 1})
    with monkeypatch.context() as patch:
        plain = Path.open
        patch.setattr(
            Path,
            "open",
            lambda self, mode="r", **kw: FullDisk(path, takes) if mode == "ab" and kw else plain(self, mode, **kw),
        )
        for step in (2, 3):
            append_json_line(path, {"step": step})
    append_json_line(path, {"step": 4})
    append_json_line(path, {"step": 5})
    assert [record["step"] for record in read_json_lines(path)] == [1, 4, 5]
    assert capsys.readouterr().err.count("takes no more lines") == 1


def test_a_file_that_is_written_anew_is_done_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sparing_full_disk(tmp_path / "samples.md"):
        raise FULL
    assert "takes no new" in capsys.readouterr().err
    with pytest.raises(OSError, match="denied"), sparing_full_disk(tmp_path):
        raise OSError(errno.EACCES, "denied")


def test_other_errors_are_told(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        append_json_line(tmp_path, {"step": 1})


def test_events_are_lines(tmp_path: Path) -> None:
    EventLog(tmp_path, enabled=False).add("nothing")
    EventLog(tmp_path, enabled=True).add("checkpoint", step=3)
    body = json.loads((tmp_path / "events.jsonl").read_text())
    assert (body["event"], body["step"]) == ("checkpoint", 3)
