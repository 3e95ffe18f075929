"""The dry run: exact, and safe to paste into a shell."""

import subprocess
import sys
from pathlib import Path

from launch.request import FileToWrite, Request, render
from launch.spec import Backend

AWKWARD = 'it\'s $HOME `id`\n\\n "two"  spaces'


def test_render_prints_everything_quoted() -> None:
    request = Request(
        files=(FileToWrite(path="/runs/my run/hosts", text="a slots=2\nb's slots=2", mode=0o600),),
        argv=("/venv/bin/python", "-m", "mod", "--text=a b", ""),
        env=(("A", "1"), ("B", ""), ("C", "x y")),
        cwd="/runs/my run",
        log_path="/runs/my run/logs/a.log",
        backend=Backend.torchrun,
    )
    assert render(request) == (
        "# backend: torchrun\n"
        "# output:  '/runs/my run/logs/a.log'\n"
        "mkdir -p '/runs/my run'\n"
        "mkdir -p '/runs/my run/logs'\n"
        "printf %s 'a slots=2\nb'\"'\"'s slots=2' > '/runs/my run/hosts'\n"
        "chmod 0600 '/runs/my run/hosts'\n"
        "cd '/runs/my run'\n"
        "env \\\n    A=1 \\\n    B='' \\\n    C='x y' \\\n    /venv/bin/python -m mod '--text=a b' ''\n"
    )


def test_a_shell_reads_back_what_was_meant(tmp_path: Path) -> None:
    code = "import os, sys; print([sys.argv[1:], os.environ['V'], os.getcwd()])"
    request = Request(
        files=(FileToWrite(path=str(tmp_path / "a b" / "file"), text=AWKWARD, mode=0o640),),
        argv=(sys.executable, "-c", code, AWKWARD, "", "-x"),
        env=(("V", AWKWARD),),
        cwd=str(tmp_path / "a b"),
        log_path=str(tmp_path / "logs" / "log"),
        backend=Backend.local,
    )
    done = subprocess.run(["/bin/sh", "-c", render(request)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[[AWKWARD, '', '-x'], AWKWARD, request.cwd]}\n"
    assert (tmp_path / "a b" / "file").read_text() == AWKWARD
    assert (tmp_path / "a b" / "file").stat().st_mode & 0o777 == 0o640
