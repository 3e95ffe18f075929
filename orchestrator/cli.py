"""`trainmaster VERB [overrides]`: finds the verb in `verbs.table`, and chooses the exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.terminal import Style, paint, wants_colour
from orchestrator.verbs.table import VERBS, Needs, Verb

_HELP = """\
trainmaster plans, launches and watches QLoRA fine-tunes.

Usage: trainmaster VERB [KEY=VALUE ...]

Verbs
{verbs}

Examples
  trainmaster train experiment=demo
  trainmaster probe picture=topology.svg
  trainmaster probe topology=dgx_h100 nodes=16
  trainmaster plan model=./my-llama data=rows.jsonl data.seq_len=2048 picture=plan.svg
  trainmaster plan -m model=./my-llama data=rows.jsonl adapter.rank=8,16,64 data.seq_len=2048,8192
  trainmaster train model=org/name data=rows.jsonl engine=zero3 run_dir=runs/first
  trainmaster train resume=runs/first
  trainmaster train ... launch.hosts=[a,b] devices=4
  trainmaster train ... launch=slurm launch.partition=gpu launch.time=4:00:00 launch.submit=true
  trainmaster status runs/first
  trainmaster report runs/first
  trainmaster bench save=calibration.json
  trainmaster train -m experiment=demo optimizer.lr=1e-3,4e-3
  trainmaster train -m experiment=demo hydra/sweeper=optuna optimizer.lr='tag(log, interval(1e-4, 1e-2))'

Keys       trainmaster VERB --cfg job   prints all of them with their values
           trainmaster VERB --help      lists the config groups
Shell      trainmaster --completion bash|zsh|fish   prints what makes TAB complete; how to install it stands in it
           trainmaster --version        of trainmaster and of the libraries below it
Output     format=json prints one JSON document; save=FILE writes it
           NO_COLOR=1 takes the colours away, FORCE_COLOR=1 keeps them in a pipe
Exit code  0 done, 2 bad input, 3 nothing fits, 4 the run failed, 75 stopped and resumable
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(_help(), end="")
        return 0 if argv else int(ExitCode.BAD_INPUT)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`)
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        code = _flag(argv[0], argv[1:]) if argv[0].startswith("-") else _dispatch(argv[0], argv[1:])
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a user never sees a traceback
        return _told(error)
    return code


def _told(error: BaseException) -> int:
    """Say what went wrong in lines a user can act on; returns the exit code."""
    if isinstance(error, UserError):
        for problem in error.problems:
            _say_error(problem)
        return int(error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, BrokenPipeError):  # the reader (head, less) has left
        _discard_output()
        return 0
    if isinstance(error, OSError):
        where, found = error.filename or "working directory or output", error.strerror or str(error)
        _say_error(Problem(where=str(where), found=found, remedy="Check the path and its permissions."))
        _discard_output()
        return int(ExitCode.BAD_INPUT)
    # A fault of ours: the traceback goes where a report of it can take it from.
    path = _keep_traceback(error)
    found = f"{type(error).__name__}: {error}"
    _say_error(Problem(where="trainmaster itself failed", found=found, remedy=f"Please report {path}."))
    return 1


def _say_error(problem: Problem) -> None:
    """One line on standard error; with colours it has the same letters as without."""
    from topology.checks import printable

    colour = wants_colour(sys.stderr)
    parts = problem.parts()
    styles = (Style.place, None, Style.remedy)
    said = [
        text if style is None else paint(text, style, colour=colour)
        for text, style in zip(map(printable, parts), styles, strict=True)
    ]
    print(f"{paint('error:', Style.error, colour=colour)} {said[0]}: {said[1]}. {said[2]}", file=sys.stderr)


def _discard_output() -> None:
    """Keep the interpreter from failing again on what could not be printed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_traceback(error: BaseException) -> str:
    import tempfile
    import traceback

    from orchestrator.versions import VERSION

    with tempfile.NamedTemporaryFile("w", prefix="trainmaster-", suffix=".txt", delete=False) as file:
        file.write(f"trainmaster {VERSION}\n{''.join(traceback.format_exception(error))}")
        return file.name


def _help() -> str:
    return _HELP.replace("{verbs}", "\n".join(f"  {verb.name:10} {verb.text}" for verb in VERBS))


def _flag(flag: str, arguments: list[str]) -> int:
    """What is asked of the command itself rather than of a verb."""
    if flag in {"-V", "--version"}:
        from orchestrator.verbs.about import version

        return version(arguments)
    if flag == "--completion":
        from orchestrator.verbs.about import completion

        return completion(arguments)
    if flag in {"--complete", "--complete-line"}:
        from orchestrator.verbs.about import main_of_completion

        return main_of_completion(flag, arguments)
    from orchestrator.config_codec import nearest

    remedy = nearest(flag, ["--help", "--version", "--completion"])
    found = "a verb comes first" if flag in {"-m", "--multirun", "--cfg", "-c"} else "no such flag"
    raise UserError(Problem(where=flag, found=found, remedy=remedy))


def _dispatch(name: str, arguments: list[str]) -> int:
    verb = _verb_named(name)
    module = import_module(f"orchestrator.verbs.{verb.module}")
    if verb.first:
        code: int | None = getattr(module, verb.first)(arguments)
        if code is not None:
            return code
    from orchestrator.compose import compose
    from orchestrator.hydra_run import run_hydra

    if any(item.startswith("-") for item in arguments):
        finish = getattr(module, verb.finish) if verb.finish else None
        return run_hydra(verb.name, arguments, needs_job=verb.needs is Needs.JOB, finish=finish)
    from orchestrator.inputs import located
    from orchestrator.outputs import check_can_save
    from orchestrator.resume import with_saved_config

    own = arguments if verb.needs is Needs.RUN else with_saved_config(arguments)
    config, _ = compose(own, needs_job=verb.needs is Needs.JOB)
    if verb.needs is Needs.MACHINE and config.run_dir:
        remedy = f"Write topology={config.run_dir}." if verb.name == "probe" else "Take it away."
        raise UserError(Problem(where=config.run_dir, found=f"{verb.name} has no run directory", remedy=remedy))
    check_can_save(config)
    result: int = getattr(module, verb.function or verb.name)(located(config) if verb.needs is Needs.JOB else config)
    return result


def _verb_named(name: str) -> Verb:
    for verb in VERBS:
        if verb.name == name:
            return verb
    from orchestrator.config_codec import nearest

    remedy = nearest(name, [verb.name for verb in VERBS])
    raise UserError(Problem(where=name, found="no such verb", remedy=remedy))


if __name__ == "__main__":
    sys.exit(main())
