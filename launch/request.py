"""Exactly what will be written and run. The dry run prints it; `execute` obeys it."""

import shlex
from dataclasses import dataclass
from pathlib import PurePath

from launch.spec import Backend

__all__ = ["FileToWrite", "Request", "render"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToWrite:
    """A text file that must exist before the start."""

    path: str
    """Absolute."""
    text: str
    mode: int = 0o644
    """Permission bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One command with its files and environment."""

    files: tuple[FileToWrite, ...] = ()
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Only what we set; the rest comes from the user's environment, see `environment.merge`."""
    cwd: str
    log_path: str
    """Receives the combined output of the command, appended."""
    backend: Backend


def render(request: Request) -> str:
    """Print a request as a shell script that does the same: directories, files, environment, command.

    A variable that the user has set already is replaced by this script, while `execute` keeps the user's value
    (reserved names excepted) and reports it.
    """
    folders = {request.cwd, *(str(PurePath(path).parent) for path in (request.log_path, *_paths(request)))}
    lines = [f"# backend: {request.backend.value}", f"# output:  {shlex.quote(request.log_path)}"]
    lines += [f"mkdir -p {shlex.quote(folder)}" for folder in sorted(folders)]
    for file in request.files:
        path = shlex.quote(file.path)
        # printf rather than a here-document: exact also without a newline at the end, and for any text.
        lines += [f"printf %s {shlex.quote(file.text)} > {path}", f"chmod {file.mode:04o} {path}"]
    lines.append(f"cd {shlex.quote(request.cwd)}")
    words = [f"{name}={shlex.quote(value)}" for name, value in request.env]
    command = " ".join(shlex.quote(word) for word in request.argv)
    lines.append(" \\\n    ".join(["env", *words, command]))
    return "\n".join(lines) + "\n"


def _paths(request: Request) -> tuple[str, ...]:
    return tuple(file.path for file in request.files)
