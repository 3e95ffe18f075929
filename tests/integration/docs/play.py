"""Runs the commands of a page in a folder that holds what the pages take as given."""

from __future__ import annotations

import atexit
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.integration.docs.pages import ROOT, Block, Command, PageError, unmatched

# One more than these in a page needs a directive: it may not run as it stands.
HARMLESS = frozenset(
    ("trainmaster", "python", "cat", "ls", "head", "tail", "cp", "mkdir", "touch", "echo", "grep", "test", "torchrun")
)
LIMIT_SECONDS = 240
SHOWN_CHARACTERS = 6000
# What a training of a page is cut down to, where the page does not set it itself.
SHORT = {
    "batch.max_steps": "2",
    "batch.global": "4",
    "data.max_rows": "24",
    "data.max_eval_rows": "4",
    "checkpoint.every": "1",
}
LONG_VERBS = ("bench", "faults run")
# Verbs that start no ranks: they run in children of a process that has everything imported (`server.py`).
_SERVED = frozenset({"probe", "route", "estimate", "plan", "doctor"})
_SHELL = re.compile(r"[|<>&;$`*?~]|^[A-Z_]+=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command of a page came to."""

    command: str
    code: int
    printed: str


class Server:
    """A process that has imported what plans need, and forks for each of them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.docs.server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, argv: list[str], folder: Path, env: dict[str, str]) -> dict[str, Any]:
        """Run one command; returns its exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"cwd": str(folder), "env": env, "argv": argv}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it: its input has an end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@cache
def _server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server


def furnish(folder: Path) -> None:
    """Put a model, rows and descriptions of machines where the pages have them."""
    shutil.copytree(ROOT / "examples" / "base", folder / "my-llama")
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, source, count in (("rows", "train", 64), ("eval", "eval", 16)):
        lines = (ROOT / "examples" / "data" / f"{source}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(lines[:count]), encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """Variables of the commands: our `trainmaster`, a cache of their own, nothing from the network."""
    cache = folder.parent / f"{folder.name}-cache"
    cache.mkdir(exist_ok=True)
    extensions = Path(os.environ.get("XDG_CACHE_HOME", "")) / "torch_extensions"
    if extensions.is_dir() and not (cache / "torch_extensions").exists():
        (cache / "torch_extensions").symlink_to(extensions.resolve())
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(cache),
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "COLUMNS": "200",
    }


def trains(command: Command) -> bool:
    """Whether a command starts ranks or runs for long."""
    words = command.text.split()
    if words[:1] in (["torchrun"], ["deepspeed"], ["accelerate"]) or "orchestrator.train.worker" in words:
        return True
    is_train = words[:2] == ["trainmaster", "train"] or command.text.startswith("trainmaster faults run")
    return is_train and "dry_run=true" not in words and "--cfg" not in words


def first_slow(blocks: tuple[Block, ...]) -> int:
    """Index of the first block that the quick test leaves out, and with it all that come after it."""
    for at, block in enumerate(blocks):
        commands = (*block.commands, *(Command(text=text, line=0) for text in block.before))
        lasts = any(trains(one) for one in commands) and not block.skip
        lasts = lasts and not block.words & {"quick", "dry_run", "plan-only"}
        if lasts or "slow" in block.words:
            return at
    return len(blocks)


def play(blocks: tuple[Block, ...], folder: Path, *, slow: bool) -> list[str]:
    """Run a page's commands in order.

    Args:
        blocks: of the page.
        folder: where they run.
        slow: whether to run those, too, that the quick test only checks.

    Returns:
        What went otherwise than the page says, one text for each command.
    """
    furnish(folder)
    env = environment(folder)
    end = len(blocks) if slow else first_slow(blocks)
    complaints: list[str] = []
    for at, block in enumerate(blocks):
        is_run = at < end and not block.skip
        for text in block.before if is_run else ():
            done = _run(text, folder, env)
            complaints += [f"before: {done.command}: exit code {done.code}\n{done.printed}"] if done.code else []
        for command in block.commands:
            told = _played(command, block, folder, env) if is_run else _checked(command, folder, env)
            complaints += [f"line {command.line}: {told}"] if told else []
        if complaints:  # what follows builds on it
            break
    return complaints


def _played(command: Command, block: Block, folder: Path, env: dict[str, str]) -> str:
    first = command.text.split()[0]
    if first == "export":
        for word in shlex.split(command.text)[1:]:
            name, _, value = word.partition("=")
            env[name] = os.path.expandvars(value)
        return ""
    if first not in HARMLESS:
        raise PageError(f"line {command.line}: {first} is none of the commands that are run; add `skip: REASON`")
    is_long = command.text.removeprefix("trainmaster ").startswith(LONG_VERBS) and "--help" not in command.text
    if is_long and not block.extra:
        raise PageError(f"line {command.line}: this takes minutes; add `with KEY=VALUE` or `skip: REASON`")
    done = _run(_as_run(command, block), folder, env)
    if done.code != command.code:
        printed = done.printed[-SHOWN_CHARACTERS:]
        return f"{done.command}\nexit code {done.code}, the page says {command.code}\n{printed}"
    if block.shows:
        line = unmatched(command.output, done.printed, numbers_vary="numbers vary" in block.words)
        if line:
            told = "the page shows a line that was not printed there:"
            return f"{done.command}\n{told}\n{line}\n--- printed:\n{done.printed[:SHOWN_CHARACTERS]}"
    return ""


def _as_run(command: Command, block: Block) -> str:
    """The command as the test runs it: shortened, or with what the directives add."""
    text = _whole(command.text)
    if not text.startswith("trainmaster "):
        return text
    extra = list(block.extra)
    if "plan-only" in block.words:
        text = text.replace("trainmaster train", "trainmaster plan", 1)
    if "dry_run" in block.words:
        extra.append("dry_run=true")
    if trains(Command(text=text, line=0)) and not block.words & {"as-written", "dry_run", "plan-only"}:
        given = {word.split("=")[0] for word in (*text.split(), *extra)}
        resumes = "resume" in given and "resume=true" not in text.split()
        # The rows of a mixture are counted by each of its sources.
        own = {*given, *({"data.max_rows"} if re.search(r" data=\S+\.yaml| data\.sources=", text) else ())}
        extra += [] if resumes else [f"{key}={value}" for key, value in SHORT.items() if key not in own]
    head, pipe, tail = text.partition(" | ")
    return " ".join([head, *extra]) + pipe + tail


def _whole(text: str) -> str:
    """`...` stands for a model and rows."""
    return re.sub(r" \.\.\.(?= |$)", " model=./my-llama data=rows.jsonl", text)


def _checked(command: Command, folder: Path, env: dict[str, str]) -> str:
    """Whether a command that is not run has keys and values that there are."""
    words = shlex.split(_whole(command.text).split(" | ")[0].split(" > ")[0].removesuffix(" &"))
    if words[:1] != ["trainmaster"] or len(words) == 1:
        return ""
    verb, rest = words[1], words[2:]
    if "--cfg" in rest or "--help" in rest or verb.startswith("-"):
        return ""
    if verb == "faults":
        verb, rest = "train", rest[1:]
    flags = [word for word in rest if word.startswith("-")]
    rest = [word for word in rest if not word.startswith("-")]
    if rest and "=" not in rest[0]:
        rest[0] = f"run_dir={rest[0]}"
    # Sweeps are checked with the first of their values; resume= and its like are values as all others.
    sweeps = "-m" in flags or "--multirun" in flags
    rest = [_first_value(word) if sweeps else word for word in rest if not word.startswith("hydra")]
    has_job = any(word.startswith(("resume=", "experiment=")) for word in rest)
    needs_job = verb in {"plan", "train", "estimate"} and not has_job
    given = {word.split("=")[0].removesuffix(".path").removesuffix(".sources") for word in rest}
    job = [w for w in ("model=./my-llama", "data=rows.jsonl") if needs_job and w.split("=")[0] not in given]
    done = _run(shlex.join(["trainmaster", verb, *rest, *job, "--cfg", "job"]), folder, env)
    wrong = done.code not in {0, command.code}
    return f"{done.command}\nexit code {done.code}: a key or value there is none\n{done.printed}" if wrong else ""


def _first_value(word: str) -> str:
    key, equals, value = word.partition("=")
    choices = re.split(r",(?![^\[(]*[\])])", value)
    if value.startswith(("tag(", "interval(", "range(", "choice(")):
        numbers = re.findall(r"[\d.]+(?:e-?\d+)?", value)
        return f"{key}={numbers[0]}" if numbers else word
    return key + equals + choices[0]


def _run(text: str, folder: Path, env: dict[str, str]) -> Done:
    words = [] if _SHELL.search(text) else shlex.split(text)
    if words[:1] == ["trainmaster"] and ("--cfg" in words or _SERVED.intersection(words[1:2])) and "-m" not in words:
        return Done(command=text, **_server().ask(words[1:], folder, env))
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        printed += f"\n(ended after {LIMIT_SECONDS} s)"
    return Done(command=text, code=process.returncode, printed=printed)
