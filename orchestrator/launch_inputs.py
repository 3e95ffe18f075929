"""What a launch reads besides the plan: template, the options of a batch job; and errors that ranks tell."""

from __future__ import annotations

import json
from dataclasses import fields

from launch.facts import ERROR_PREFIX
from launch.slurm_options import ContainerRuntime, SlurmOptions
from orchestrator.config import Backend, LaunchConfig
from orchestrator.errors import ExitCode, Problem, RunFailed, UserError
from orchestrator.named_hosts import as_user_error, named_hosts, text_of

__all__ = [
    "ERROR_PREFIX",
    "as_user_error",
    "check_keys",
    "joined_errors",
    "named_hosts",
    "slurm_options",
    "template_text",
    "told_error",
]

_NONE = ("none",)
_OVER_SSH = ("hosts", "hostfile", "ssh")
_COMMON = frozenset({"backend", "master_port", "interface", "join_seconds", *_OVER_SSH})
_OF_A_JOB = tuple(field.name for field in fields(LaunchConfig) if field.name not in _COMMON)


def check_keys(launch: LaunchConfig) -> None:
    """Refuse keys that say nothing to the launcher chosen.

    Raises:
        UserError: naming each of them.
    """
    over_ssh = launch.backend in {Backend.torchrun, Backend.deepspeed}
    idle: tuple[str, ...] = () if over_ssh else _OVER_SSH
    idle += () if launch.backend is Backend.slurm else _OF_A_JOB
    default = LaunchConfig()
    found = [name for name in idle if getattr(launch, name) != getattr(default, name)]
    if found:
        keys = ", ".join(f"launch.{name}" for name in found)
        remedy = "Use launch=slurm, or leave them out." if over_ssh else "Leave them out."
        raise UserError(Problem(where=keys, found=f"launch={launch.backend.value} does not use them", remedy=remedy))


def template_text(launch: LaunchConfig) -> str:
    """Return the user's template, or an empty text for ours."""
    return text_of(launch.template, "launch.template") if launch.template else ""


def slurm_options(launch: LaunchConfig) -> SlurmOptions:
    """Return what the batch job asks for. Raises LaunchError for what sbatch would misread."""
    return SlurmOptions(
        job_name=launch.job_name,
        partition=launch.partition,
        account=launch.account,
        qos=launch.qos,
        constraint=launch.constraint,
        reservation=launch.reservation,
        nodelist=launch.nodelist,
        exclude=launch.exclude,
        gres=launch.gres,
        cpus=launch.cpus,
        memory=launch.memory,
        time=launch.time,
        exclusive=launch.exclusive,
        array=launch.array,
        mail=launch.mail,
        mail_on=launch.mail_on,
        extra=_listed(launch.extra),
        modules=_listed(launch.modules),
        conda=launch.conda,
        venv=launch.venv,
        container=launch.container,
        container_runtime=ContainerRuntime(launch.container_runtime.value),
        mounts=_listed(launch.mounts),
        signal_seconds=launch.signal_seconds,
        max_requeues=launch.max_requeues,
    )


def told_error(line: str) -> UserError | None:
    """Return the user's error that a rank or a host tells in a line of its output.

    A line that was cut, or that others have written into, is a failed run with what is left of it.
    """
    if not line.startswith(ERROR_PREFIX):
        return None
    text = line.removeprefix(ERROR_PREFIX)
    try:
        body = json.loads(text)
        problems = [Problem(**problem) for problem in body["problems"]]
        error = UserError(*problems)
        error.exit_code = ExitCode(body["exit_code"])
    except (ValueError, LookupError, TypeError, AttributeError):
        problems = []
    return error if problems else _unreadable(text)


def _unreadable(text: str) -> RunFailed:
    found = f"an error was told that cannot be read: {text.strip() or 'an empty line'}"
    return RunFailed(Problem(where="the ranks", found=found, remedy="The logs of the run have the rest."))


def joined_errors(errors: list[UserError]) -> UserError:
    """Return one error with what all of them tell, each thing once."""
    problems = dict.fromkeys(problem for error in errors for problem in error.problems)
    joined = UserError(*problems)
    joined.exit_code = errors[0].exit_code
    return joined


def _listed(values: tuple[str, ...]) -> tuple[str, ...]:
    return () if values == _NONE else values
