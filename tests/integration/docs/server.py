"""Runs commands that start no process of their own in children of one process that has everything imported.

Three quarters of a plan's time is imports; the pages have some hundred plans. Reads a JSON line (`cwd`, `env`, `argv`)
on standard input, and answers with one (`code`, `printed`). A child is the command as it is: `main` with these words,
in that folder and environment, both outputs into one file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

from orchestrator.cli import main

# What brings in most of what the verbs import.
_WARM = (
    ("plan", "model=llama-3-8b", "data=rows.jsonl", "topology=2x24gb-pcie"),
    ("plan", "model=llama-2-70b", "data=rows.jsonl", "topology=1x24gb", "engine=ddp"),
    ("route", "topology=dgx1_v100", "route.sizes=[64MiB]"),
)


def warm() -> None:
    """Import by doing, where nobody sees it."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(20)), encoding="utf-8")
        nowhere = io.StringIO()
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            for words in _WARM:
                main(words)
        os.chdir(here)


def child(request: dict[str, object], output: int) -> int:
    """Become the command; returns its exit code."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    code = main(request["argv"])  # type: ignore[arg-type]
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def serve() -> None:
    """Answer until standard input ends."""
    warm()
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if not pid:
                code = 1
                with contextlib.suppress(BaseException):
                    code = child(request, output.fileno())
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            printed = output.read().decode(errors="replace")
        print(json.dumps({"code": code, "printed": printed}), flush=True)


if __name__ == "__main__":
    serve()
