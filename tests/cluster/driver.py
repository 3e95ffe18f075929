"""Executes the request in the file it is given, so that a test can kill the launching side."""

import json
import os
import sys
from pathlib import Path

from launch.execute import execute
from launch.request import FileToWrite, Request
from launch.spec import Backend


def main(path: str) -> int:
    """Return 1 where the command failed."""
    body = json.loads(Path(path).read_text())
    request = Request(
        files=tuple(FileToWrite(**file) for file in body["files"]),
        argv=tuple(body["argv"]),
        env=tuple((name, value) for name, value in body["env"]),
        cwd=body["cwd"],
        log_path=body["log_path"],
        backend=Backend(body["backend"]),
    )
    return 1 if execute(request, user_env=os.environ, on_line=print).returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
