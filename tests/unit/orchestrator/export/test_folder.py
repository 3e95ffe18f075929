"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.export.folder import check_room, new_folder


def test_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with new_folder(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in target.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_what_is_there_stays(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="Nothing is overwritten"), new_folder(target):
        pass
    assert os.path.lexists(target)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_appears_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def race() -> None:
        with new_folder(target):
            target.mkdir()
            (target / "mine").touch()

    with pytest.raises(UserError, match="Nothing is overwritten"):
        race()
    assert [path.name for path in target.iterdir()] == ["mine"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("x"), OSError(errno.ENOSPC, "No space left")])
def test_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("1")
            raise error

    with pytest.raises((KeyboardInterrupt, RuntimeError, UserError)):
        fail()
    assert not list(tmp_path.iterdir())


def test_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from orchestrator.export.folder import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1
    with new_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_one_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as first:
        (first / "a").touch()
        from orchestrator.export.folder import _sweep

        _sweep(tmp_path / "out")
        assert (first / "a").exists()


def test_a_full_disk_is_told_before(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="GiB free"):
        check_room(tmp_path / "not" / "yet", 2**60)
