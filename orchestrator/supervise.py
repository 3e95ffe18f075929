"""One attempt of a run: write the plan, start the ranks, pass on what they say, read the result."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launch.backends import build, slurm
from launch.errors import LaunchError
from launch.execute import Outcome, execute, free_port
from launch.lock import run_lock
from launch.request import FileToWrite, Request, render
from launch.spec import Backend, LaunchSpec
from orchestrator.blame import failed
from orchestrator.config import LaunchConfig
from orchestrator.environment.harm import Harm, harms
from orchestrator.environment.lever import Lever, levers
from orchestrator.environment.present import levers_json, levers_text
from orchestrator.environment.read import read_user_environment
from orchestrator.errors import ExitCode, Problem, RunFailed, RunStopped, UserError
from orchestrator.launch_inputs import (
    as_user_error,
    check_keys,
    joined_errors,
    named_hosts,
    slurm_options,
    template_text,
    told_error,
)
from orchestrator.lower import deepspeed_json, launch_backend, launch_spec
from orchestrator.planner.plan import Plan, dumps
from orchestrator.run_dir import RunDir, read_json
from topology.codec import to_json
from topology.model import Topology

PREPARE = "orchestrator.train.prepare"
MEASURE, COMPARE = "orchestrator.slurm_node", "orchestrator.slurm_check"  # of a batch job
STOP_FILE = "stop"
_KEPT_LINES = 60  # torchrun's own report of the failure comes after the ranks' words
_STOP_GRACE_SECONDS = 120.0  # a step and a checkpoint must fit in
# torch kills ranks this long after SIGTERM by default; a checkpoint may take more than its 30 s.
_TORCHRUN_GRACE = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The two commands of an attempt, exactly as they are run: first `prepare`, then `launch`.

    A batch job prepares by itself. `processes` are the ranks of each host.
    """

    prepare: Request | None
    launch: Request
    processes: tuple[int, ...] = (1,)
    levers: tuple[Lever, ...] = ()
    harms: tuple[Harm, ...] = ()


def make_attempt(
    plan: Plan,
    topology: Topology,
    run: RunDir,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> Attempt:
    """Build the requests of an attempt; nothing is written or started.

    NCCL's own files of settings are read, and the hostfile or template that the user names.
    """
    backend, launch = launch_backend(plan), plan.run_config.launch
    check_keys(launch)
    users = read_user_environment(environ, network=plan.chosen.strategy.num_nodes > 1)
    found = levers(topology, plan.chosen.strategy.device_ids, users)
    files = _files(plan, topology, run, numbered=backend is not Backend.slurm)
    try:
        spec = launch_spec(
            plan,
            str(run.path),
            python,
            attempt=run.attempt,
            levers=found,
            topology=topology,
            named=named_hosts(launch),
        )
        if backend is Backend.deepspeed and spec.is_here and spec.master_port is None:
            spec = replace(spec, master_port=free_port())
        if backend in {Backend.torchrun, Backend.slurm}:
            spec = replace(spec, env=(*spec.env, _TORCHRUN_GRACE))
        if backend is Backend.slurm:
            prepare, launched = None, _batch_job(spec, launch, run.attempt, files)
        else:
            launched = build(backend, spec)
            prepare = replace(build(Backend.local, _prepare_spec(spec)), files=files)
    except LaunchError as error:
        raise as_user_error(error) from error
    return Attempt(
        prepare=prepare,
        launch=launched,
        processes=tuple(share.processes for share in spec.shares),
        levers=found,
        harms=harms(users, ports=[nic.name for nic in topology.nics]),
    )


def _batch_job(spec: LaunchSpec, launch: LaunchConfig, attempt: int, files: tuple[FileToWrite, ...]) -> Request:
    request = slurm.build(
        spec,
        slurm_options(launch),
        prepare=PREPARE,
        measure=MEASURE,
        compare=COMPARE,
        first_attempt=attempt,
        template=template_text(launch),
    )
    return replace(request, files=(*files, *request.files))


def _prepare_spec(spec: LaunchSpec) -> LaunchSpec:
    return replace(
        spec,
        module=PREPARE,
        processes_per_node=1,
        num_nodes=1,
        hosts=(),
        device_ids=spec.device_ids[:1],
        name=f"{spec.name}-prepare",
    )


def _files(plan: Plan, topology: Topology, run: RunDir, *, numbered: bool) -> tuple[FileToWrite, ...]:
    texts = {
        "plan.json": dumps(plan),
        "topology.json": json.dumps(to_json(topology), indent=2) + "\n",
        "config.yaml": _yaml(plan.config),
    }
    if numbered:  # a batch job numbers its attempts when they start
        texts[f"plan.{run.attempt}.json"] = dumps(plan)
    if plan.chosen.strategy.zero3 is not None:
        texts["deepspeed.json"] = json.dumps(deepspeed_json(plan), indent=2) + "\n"
    return tuple(FileToWrite(path=str(run.path / name), text=text) for name, text in texts.items())


def _yaml(config: Any) -> str:  # noqa: ANN401 - a plain mapping
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def run_attempt(attempt: Attempt, run: RunDir, say: Callable[[str], None]) -> dict[str, Any]:
    """Run both commands and return the summary that rank 0 wrote.

    Raises:
        UserError: what the ranks found wrong with the user's input.
        RunStopped: the run was asked to stop and has a checkpoint.
        RunFailed: anything else.
    """
    _make_folder(run.path)
    try:
        with run_lock(str(run.path)), _restored_on_refusal(run):
            for name in ("summary.json", STOP_FILE):
                (run.path / name).unlink(missing_ok=True)
            _tell(attempt, say)
            say("preparing the rows (loading the tokenizer's libraries takes some seconds)")
            if attempt.prepare is not None:
                _run(attempt.prepare, run, say, what="preparing the rows")
            say(f"starting the ranks ({attempt.launch.backend.value})")
            outcome = _run(attempt.launch, run, say, what="the run", processes=attempt.processes)
            return _result(outcome, run)
    except LaunchError as error:
        raise as_user_error(error) from error
    except RunFailed as error:
        _write_failure(run, error)
        raise


def _tell(attempt: Attempt, say: Callable[[str], None]) -> None:
    """Say which of the user's settings stand in place of a lever, and which are known to hurt."""
    for lever in attempt.levers:
        if lever.overridden_by and lever.applies:
            say(f"yours stands: {lever.overridden_by}, not {lever.name}={lever.value}")
    for harm in attempt.harms:
        say(f"warning: {harm}")


@contextmanager
def _restored_on_refusal(run: RunDir) -> Iterator[None]:
    """Put back what an attempt has overwritten when it turns out to be refused: the run stays resumable."""
    kept = {
        path: path.read_bytes()
        for path in (run.path / name for name in ("plan.json", "config.yaml", "topology.json", "summary.json"))
        if path.is_file()
    }
    number = run.attempt
    try:
        yield
    except UserError as error:
        if error.exit_code is ExitCode.BAD_INPUT and kept:
            for path, content in kept.items():
                path.write_bytes(content)
            (run.path / f"plan.{number}.json").unlink(missing_ok=True)
        raise


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            Problem(
                where=f"run_dir={path}",
                found=f"cannot write there: {error.strerror}",
                remedy="Give a run_dir that you may write to.",
            )
        ) from error


def _run(
    request: Request, run: RunDir, say: Callable[[str], None], *, what: str, processes: tuple[int, ...] = (1,)
) -> Outcome:
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    errors: list[UserError] = []

    def on_line(line: str) -> None:
        error = told_error(line)
        if error is not None:
            errors.append(error)
            return
        tail.append(line)
        # After a user's error the launcher only reports that a rank has ended.
        if not errors:
            say(line)

    outcome = execute(
        request,
        user_env=os.environ,
        on_line=on_line,
        grace_seconds=_STOP_GRACE_SECONDS,
        on_stop=lambda: _ask_to_stop(run, say),
    )
    if errors:
        raise joined_errors(errors)
    if outcome.stopped_by_signal is None and outcome.returncode != 0:
        raise failed(what, outcome, tail, processes)
    if outcome.stopped_by_signal is not None and what != "the run":
        raise RunStopped(_stopped(run, "before the first step"))
    return outcome


def _ask_to_stop(run: RunDir, say: Callable[[str], None]) -> None:
    say("stopping at the next step boundary, with a checkpoint (again: stop at once)")
    (run.path / STOP_FILE).touch()


def _write_failure(run: RunDir, error: RunFailed) -> None:
    """Leave a summary for scripts: the ranks could not write theirs."""
    reason = "; ".join(problem.found.split(". Last lines", maxsplit=1)[0] for problem in error.problems)
    body = {"schema": 1, "status": "failed", "reason": reason}
    (run.path / "summary.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def _stopped(run: RunDir, when: str) -> Problem:
    return Problem(
        where="stopped",
        found=when,
        remedy=f"Continue with: trainmaster train resume={run.path}",
    )


def _result(outcome: Outcome, run: RunDir) -> dict[str, Any]:
    summary = read_json(run.path / "summary.json")
    if summary is not None and summary.get("status") == "done":
        return summary
    if summary is not None and summary.get("status") == "stopped":
        raise RunStopped(_stopped(run, f"after step {summary['steps']} of {summary['planned_steps']}"))
    if outcome.stopped_by_signal is not None:
        raise RunStopped(
            _stopped(run, f"by {signal.Signals(outcome.stopped_by_signal).name}, before the ranks could save")
        )
    raise RunFailed(
        Problem(
            where="the run",
            found="ended without a result",
            remedy=f"The whole log is {outcome.log_path}.",
        )
    )


def dry_run_text(attempt: Attempt) -> str:
    """Return both requests as a shell script: files, environment and argv as they would be used."""
    first = "" if attempt.prepare is None else render(attempt.prepare)
    return (
        ("# 1. rows are tokenised once, before any rank starts\n" + first + "\n# 2. the ranks\n" if first else "")
        + render(attempt.launch)
        + "".join(f"# {line}\n" for line in levers_text(attempt.levers, attempt.harms).splitlines())
    )


def dry_run_json(attempt: Attempt) -> dict[str, Any]:
    """Return both requests as plain values."""
    return {
        name: asdict(request) | {"backend": request.backend.value}
        for name, request in (("prepare", attempt.prepare), ("launch", attempt.launch))
        if request is not None
    } | levers_json(attempt.levers, attempt.harms)
