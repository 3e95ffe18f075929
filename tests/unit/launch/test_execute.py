"""Running small commands: files, output, environment, exit codes, leftovers; and the lock of a run directory."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.errors import LaunchError
from launch.execute import Outcome, execute, free_port
from launch.lock import run_lock
from launch.request import FileToWrite, Request
from launch.spec import RUN_MARK, Backend


def request_for(run_dir: Path, code: str, **changes: object) -> Request:
    fields = {
        "argv": (sys.executable, "-u", "-c", code),
        "env": (),
        "cwd": str(run_dir),
        "log_path": str(run_dir / "logs" / "a.log"),
        "backend": Backend.local,
        **changes,
    }
    return Request(**fields)  # type: ignore[arg-type]


def run(request: Request, user_env: dict[str, str] | None = None) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    return execute(request, user_env=user_env or {}, on_line=lines.append), lines


def test_output_reaches_both_the_log_and_the_caller(tmp_path: Path) -> None:
    code = "import sys; print('out\\r\\n\\nthird'); print('no newline', end='', file=sys.stderr); sys.exit(3)"
    outcome, lines = run(request_for(tmp_path, code))
    assert lines == ["out", "", "third", "no newline"]
    assert Path(outcome.log_path).read_bytes() == b"out\r\n\nthird\nno newline"
    assert (outcome.returncode, outcome.stopped_by_signal, outcome.leftovers) == (3, None, ())


def test_much_output_is_complete_and_the_log_is_appended(tmp_path: Path) -> None:
    request = request_for(tmp_path, "print('\\n'.join(str(i) for i in range(100_000)))")
    for _ in range(2):
        _, lines = run(request)
        assert lines == [str(i) for i in range(100_000)]
    assert len(Path(request.log_path).read_text().splitlines()) == 200_000


def test_files_exist_before_the_start(tmp_path: Path) -> None:
    file = FileToWrite(path=str(tmp_path / "deep" / "hosts"), text="a slots=2\n", mode=0o600)
    outcome, lines = run(request_for(tmp_path, "print(open('deep/hosts').read())", files=(file,)))
    assert lines[0] == "a slots=2"
    assert Path(file.path).stat().st_mode & 0o777 == 0o600
    assert outcome.returncode == 0


def test_the_users_environment_wins_and_the_log_says_so(tmp_path: Path) -> None:
    request = request_for(tmp_path, "import os; print(os.environ['A'], os.environ['B'])", env=(("A", "1"), ("B", "2")))
    outcome, lines = run(request, {"B": "mine"})
    assert lines == ["B: the user's value 'mine' is used, not '2'", "1 mine"]
    assert [override.name for override in outcome.overrides] == ["B"]


def test_a_command_ended_by_a_signal_has_a_negative_code(tmp_path: Path) -> None:
    outcome, _ = run(request_for(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert outcome.returncode == -9


def test_a_missing_program_is_a_launch_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no-such-program"):
        run(request_for(tmp_path, "", argv=("/no-such-program",)))


def test_a_process_in_a_session_of_its_own_is_found_and_killed(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys;"
        "print(subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True).pid)"
    )
    outcome, lines = run(request_for(tmp_path, code))
    assert outcome.returncode == 0
    assert [leftover.split()[0] for leftover in outcome.leftovers] == lines
    assert not is_alive(int(lines[0]))


def test_a_process_marked_before_the_start_is_left_alone(tmp_path: Path) -> None:
    # As the shell of a batch job, in which this very process runs.
    older = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={RUN_MARK: str(tmp_path)})
    try:
        wait_for_mark(older.pid, str(tmp_path))
        outcome, _ = run(request_for(tmp_path, "pass"))
        assert outcome.leftovers == ()
        assert older.poll() is None
    finally:
        older.communicate(b"\n")


def test_nothing_survives_an_error_in_the_callers_code(tmp_path: Path) -> None:
    pids = []

    def fail(line: str) -> None:
        pids.append(int(line))
        raise ValueError(line)

    code = "import os, signal; print(os.getpid()); signal.pause()"
    with pytest.raises(ValueError, match=r"\d+"):
        execute(request_for(tmp_path, code), user_env={}, on_line=fail)
    assert not is_alive(pids[0])


def test_a_free_port_can_be_bound() -> None:
    assert 1024 <= free_port() <= 65535


def test_a_second_holder_of_the_lock_is_told_who_has_it(tmp_path: Path) -> None:
    with run_lock(str(tmp_path)), pytest.raises(LaunchError, match=r"in use by pid \d+"), run_lock(str(tmp_path)):
        pass
    with run_lock(str(tmp_path)):
        pass


def test_the_lock_is_not_inherited_by_what_we_start(tmp_path: Path) -> None:
    with run_lock(str(tmp_path)):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        # The parent goes on a moment before the kernel closes the child's descriptors.
        deadline = time.monotonic() + 10
        while is_locked(tmp_path):
            assert time.monotonic() < deadline
        assert child.poll() is None
    finally:
        child.communicate(b"\n")


def is_locked(folder: Path) -> bool:
    try:
        with run_lock(str(folder)):
            return False
    except LaunchError:
        return True


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for_mark(pid: int, mark: str) -> None:
    # Until its exec a new process still shows this one's environment.
    deadline = time.monotonic() + 10
    while psutil.Process(pid).environ().get(RUN_MARK) != mark:
        assert time.monotonic() < deadline
