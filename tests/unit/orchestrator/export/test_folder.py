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
    assert len(list(tmp_path.iterdir())) == 2  # the folder and its lock
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


def test_a_name_with_brackets_is_that_name_alone(tmp_path: Path) -> None:
    for name in ("out[1]", "out1"):
        (tmp_path / f".{name}.incomplete-00").mkdir()
    with new_folder(tmp_path / "out[1]"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"out[1]", ".out1.incomplete-00"}


def test_a_folder_without_a_lock_and_a_lock_without_a_folder_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".out.incomplete-00").mkdir()
    (tmp_path / ".out.incomplete-00" / "half").touch()
    (tmp_path / ".out.incomplete-11.lock").touch()
    with new_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_number_that_another_process_had_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_folder(tmp_path / "out") as first:
        monkeypatch.setattr(os, "getpid", lambda: 7)
        with new_folder(tmp_path / "out") as second:  # of the same process, even
            assert first != second
        (tmp_path / "out").rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_lock_is_held_until_the_folder_has_its_name_and_is_never_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    rename = Path.rename

    def watched(own: Path, to: Path) -> Path:
        seen.append({path.name for path in tmp_path.iterdir()})
        assert not any(path.name.endswith(".lock") for path in own.iterdir())
        return rename(own, to)

    monkeypatch.setattr(Path, "rename", watched)
    with new_folder(tmp_path / "out") as folder:
        (folder / "a").touch()
    assert seen == [{folder.name, f"{folder.name}.lock"}]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EACCES, "Permission denied", "/the/base/LICENSE"), r"^/the/base/LICENSE: (?!cannot write)"),
        (OSError(errno.ENOSPC, "No space left", "/the/base/LICENSE"), "cannot write"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot write"),
    ],
)
def test_what_cannot_be_read_is_not_told_as_a_failure_to_write(tmp_path: Path, error: OSError, told: str) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out"):
            raise error

    with pytest.raises(UserError, match=told):
        fail()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_in_the_folder_is_told_as_that(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "not" / "there").write_text("x")

    with pytest.raises(UserError, match="cannot write"):
        fail()
