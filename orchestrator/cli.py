"""`trainmaster VERB [overrides]`: the one place where results are printed and exit codes chosen."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ExitCode, UserError
from orchestrator.outputs import check_can_save, write_and_say, write_whole

if TYPE_CHECKING:
    from orchestrator.config import RunConfig

VERSION = "0.1.0"

_HELP = """\
trainmaster plans, launches and watches QLoRA fine-tunes.

Usage: trainmaster VERB [KEY=VALUE ...]

Verbs
  probe      what this machine is: devices, links, islands
  route      which way collectives take, how near the bound they come, what limits them
  doctor     what is wrong with this machine or its software, and what to do
  estimate   memory and step time of the configuration, term by term
  plan       every strategy, ranked, with the reason for each rejection
  train      plan, launch, watch and report
  bench      what this machine reaches; later plans use it
  status     how far a run is, here or under SLURM
  logs       what a run prints
  watch      a run as it goes on: progress, time left, loss, memory, what holds it back
  cancel     end a run with a checkpoint
  faults     does harm to a training on purpose, and shows what came of it

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
  trainmaster bench save=calibration.json
  trainmaster train -m experiment=demo optimizer.lr=1e-3,4e-3
  trainmaster train -m experiment=demo hydra/sweeper=optuna optimizer.lr='tag(log, interval(1e-4, 1e-2))'

Keys       trainmaster VERB --cfg job   prints all of them with their values
           trainmaster VERB --help      lists the config groups
Output     format=json prints one JSON document; save=FILE writes it
Exit code  0 done, 2 bad input, 3 nothing fits, 4 the run failed, 75 stopped and resumable
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(_HELP, end="")
        return 0 if argv else int(ExitCode.BAD_INPUT)
    if argv[0] in {"-V", "--version"}:
        print(f"trainmaster {VERSION}")
        return 0
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`)
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        code = _dispatch(argv[0], argv[1:])
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a user never sees a traceback
        return _told(error)
    return code


def _told(error: BaseException) -> int:
    """Say what went wrong in lines a user can act on; returns the exit code."""
    if isinstance(error, UserError):
        from topology.checks import printable

        for problem in error.problems:
            print(f"error: {printable(str(problem))}", file=sys.stderr)
        return int(error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, BrokenPipeError):  # the reader (head, less) has left
        _discard_output()
        return 0
    if isinstance(error, OSError):
        where = error.filename or "working directory or output"
        print(f"error: {where}: {error.strerror or error}. Check the path and its permissions.", file=sys.stderr)
        _discard_output()
        return int(ExitCode.BAD_INPUT)
    # A fault of ours: the traceback goes where a report of it can take it from.
    path = _keep_traceback(error)
    print(f"error: trainmaster itself failed: {type(error).__name__}: {error}. Please report {path}.", file=sys.stderr)
    return 1


def _discard_output() -> None:
    """Keep the interpreter from failing again on what could not be printed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_traceback(error: BaseException) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="trainmaster-", suffix=".txt", delete=False) as file:
        file.write(f"trainmaster {VERSION}\n{''.join(traceback.format_exception(error))}")
        return file.name


def _dispatch(verb: str, arguments: list[str]) -> int:
    from orchestrator.config_codec import nearest
    from orchestrator.errors import Problem

    verbs: dict[str, Callable[[RunConfig], int]] = {
        "probe": _probe,
        "doctor": _doctor,
        "route": _route,
        "estimate": _estimate,
        "plan": _plan,
        "train": _train,
        "bench": _bench,
        "status": _status,
        "logs": _logs,
        "cancel": _cancel,
        "watch": _watch,
    }
    if verb == "faults":
        return _faults(arguments)
    if verb not in verbs:
        raise UserError(Problem(where=verb, found="no such verb", remedy=nearest(verb, [*verbs, "faults"])))
    if verb == "doctor":
        from orchestrator.doctor import check_arguments

        if problems := check_arguments(arguments):
            raise UserError(*problems)
    from orchestrator.compose import compose, is_sweep, run_hydra

    of_a_run = verb in {"status", "logs", "cancel", "watch"}
    needs_job = not of_a_run and verb not in {"probe", "route", "doctor", "bench"}
    if verb == "bench" and {"-h", "--help"}.intersection(arguments):
        from orchestrator.measure.bench import HELP

        print(HELP)
    if verb == "train" and is_sweep(arguments):
        from orchestrator.sweeps.run import run_sweep

        return run_sweep(arguments)
    if any(item.startswith("-") for item in arguments):
        return run_hydra(verb, arguments, needs_job=needs_job, finish=_compare if verb == "plan" else None)
    from orchestrator.inputs import located
    from orchestrator.resume import with_saved_config

    config, _ = compose(arguments if of_a_run else with_saved_config(arguments), needs_job=needs_job)
    if not needs_job and not of_a_run and config.run_dir:
        remedy = f"Write topology={config.run_dir}." if verb == "probe" else "Take it away."
        raise UserError(Problem(where=config.run_dir, found=f"{verb} has no run directory", remedy=remedy))
    check_can_save(config)
    return verbs[verb](located(config) if needs_job else config)


def _is_json(config: RunConfig) -> bool:
    return config.format.value == "json"


def _emit(config: RunConfig, body: dict[str, Any], text: str) -> None:
    """Print a result once, in the format asked for, and save it where asked."""
    document = json.dumps(body, indent=2) + "\n"
    if config.save:
        write_and_say(Path(config.save), document, "save")
    print(document if _is_json(config) else text, end="")


def _probe(config: RunConfig) -> int:
    from orchestrator.show import probe

    machine = None
    if config.launch.backend.value == "slurm" and not (config.topology.path or config.topology.preset):
        from orchestrator.slurm_probe import cluster, commands

        if config.dry_run:
            print(commands(config), end="")
            return 0
        machine = cluster(config, lambda line: print(line, file=sys.stderr, flush=True))
    shown = probe(config, machine)
    for key, path, text in shown.files:
        write_and_say(Path(path), text, key)
    print(shown.json if _is_json(config) else shown.text, end="")
    return 0


def _route(config: RunConfig) -> int:
    from orchestrator.route import route

    shown = route(config)
    for key, path, text in shown.files:
        write_and_say(Path(path), text, key)
    _emit(config, shown.body, shown.text)
    return 0


def _doctor(config: RunConfig) -> int:
    from orchestrator import doctor

    findings = doctor.examine(load=config.load)
    _emit(config, doctor.to_json(findings), doctor.to_text(findings))
    return 0


def _bench(config: RunConfig) -> int:
    from orchestrator.measure.bench import measure, store, to_json, to_text

    def say(line: str) -> None:
        print(f"bench: {line}", file=sys.stderr, flush=True)

    bench = measure(config, time.strftime("%Y-%m-%d"), say)
    stored = store(bench.calibration, os.environ, say, write_whole)
    _emit(config, to_json(bench, stored), to_text(bench, stored))
    return 0


def _made_plan(
    config: RunConfig, *, download: bool = False, by_name: bool = False, run_id: str = ""
) -> tuple[Any, Any]:
    from orchestrator.inputs import gather
    from orchestrator.planning import plan_of

    inputs = gather(config, download=download, by_name=by_name)
    plan = plan_of(config, inputs, run_id or f"plan-{time.strftime('%Y%m%d-%H%M%S')}", os.environ)
    for note in inputs.notes:
        print(f"note: {note}", file=sys.stderr)
    return plan, inputs


def _estimate(config: RunConfig) -> int:
    from orchestrator.planner.explain import explain_estimate
    from orchestrator.planner.plan import to_json

    plan, _ = _made_plan(config, by_name=True)
    whole = to_json(plan)
    _emit(config, {**whole["chosen"], "calibration": whole["calibration"]}, explain_estimate(plan))
    return 0


def _plan(config: RunConfig) -> int:
    from orchestrator import run_dir
    from orchestrator.planner.explain import explain
    from orchestrator.planner.plan import dumps, to_json

    run = run_dir.choose(config) if config.run_dir or config.resume else None
    plan, inputs = _made_plan(config, by_name=True, run_id=run.name if run else "")
    if config.picture:
        _draw(config, inputs, plan)
    if run is not None and not run.resuming:
        from topology.codec import to_json as machine_json

        write_whole(run.path / "plan.json", dumps(plan), "run_dir")
        # Ranks build the schedule of their gradients from it.
        write_whole(run.path / "topology.json", json.dumps(machine_json(inputs.topology), indent=2) + "\n", "run_dir")
    _emit(config, to_json(plan), explain(plan))
    return 0


def _draw(config: RunConfig, inputs: Any, plan: Any) -> None:  # noqa: ANN401 - imported where it is used
    from orchestrator.planner.solve import Asked
    from orchestrator.planner.view import view_of
    from orchestrator.report.plan_svg import plan_svg

    if not config.picture.lower().endswith(".svg"):
        from orchestrator.errors import Problem

        found = f"found {config.picture}"
        raise UserError(Problem(where="picture", found=found, remedy="Pictures are SVG: give a name in .svg."))
    view = view_of(Asked(config=config, topology=inputs.topology, model=inputs.model, data=inputs.data))
    if view is not None:
        write_and_say(Path(config.picture), plan_svg(plan, view), "picture")


def _compare(trials: Sequence[Any], folder: Path) -> None:
    """End a sweep of plans with one table, and leave it as CSV beside their results."""
    from orchestrator.report.sweep import csv_text, rows_of, table_text

    rows = rows_of(trials)
    path = folder / "sweep.csv"
    write_whole(path, csv_text(rows), "sweep")
    stream = sys.stderr if any(item == "format=json" for item in trials[0].overrides) else sys.stdout
    print(f"\n{table_text(rows)}\nThis table: {path}", file=stream)


def _train(config: RunConfig) -> int:
    from orchestrator import run_dir, supervise
    from orchestrator.planner.plan import to_json

    run = run_dir.choose(config)
    summary = run.summary if run.resuming else None
    if summary is not None and run_dir.is_finished(config, run, summary):
        print(f"already finished: {run.path}", file=sys.stderr)
        _emit(config, summary, f"Nothing to do. Adapter: {run.path / 'adapter'}\n")
        return 0
    plan, inputs = _made_plan(config, download=not config.dry_run, run_id=run.name)
    topology = inputs.topology
    if run.resuming:
        plan, topology = _resumed_plan(config, plan, inputs, run)
    attempt = supervise.make_attempt(plan, topology, run)
    if config.dry_run:
        _emit(config, {"plan": to_json(plan), **supervise.dry_run_json(attempt)}, supervise.dry_run_text(attempt))
        return 0
    return _run_and_report(config, plan, inputs, topology, attempt, run)


def _resumed_plan(config: RunConfig, plan: Any, inputs: Any, run: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """What the run has met before it was ended still counts: memory that ran out, devices that are left out."""
    from orchestrator.planner.plan import loads
    from orchestrator.quarantine import quarantined, words
    from orchestrator.replanning import resumed

    saved = loads((run.path / "plan.json").read_text(encoding="utf-8"))
    found = resumed(config, plan, inputs, saved, quarantined(run.path), os.environ)
    if found is None:
        return plan, inputs.topology
    for line in (*words(run.path), *found.changes):
        print(f"note: {line}", file=sys.stderr)
    return found.plan, found.topology


def _run_and_report(config: RunConfig, plan: Any, inputs: Any, topology: Any, attempt: Any, run: Any) -> int:  # noqa: ANN401
    from orchestrator.report.text import summary_text
    from orchestrator.supervisor import supervise

    stream = sys.stderr if _is_json(config) else sys.stdout

    def say(line: str) -> None:
        print(line, file=stream, flush=True)

    say(f"{plan.machine}\n{plan.workload.text}\nchosen: {plan.chosen.strategy.label}\nrun directory: {run.path}")
    if config.launch.backend.value == "slurm":
        from orchestrator.slurm_follow import run_as_job

        body = run_as_job(attempt.launch, run, say, submits=config.launch.submit, follows=config.launch.follow)
        if body["status"] != "done":
            _emit(config, body, "")
            return 0
    else:
        plan, body = supervise(config, plan, inputs, run, say, topology=topology)
    _emit(config, body, "\n" + summary_text(plan, body, run.path))
    return 0


def _status(config: RunConfig) -> int:
    from orchestrator import runs

    state = runs.state_of_run(runs.run_folder(config.run_dir, "status"))
    _emit(config, runs.to_json(state), runs.to_text(state))
    return 0


def _logs(config: RunConfig) -> int:
    from orchestrator import runs

    path = runs.run_folder(config.run_dir, "logs")
    if config.follow and not _is_json(config):
        for line in runs.followed_log(path):
            print(line, end="", flush=True)
        return 0
    parts = runs.log_text(path)
    if _is_json(config):
        _emit(config, {"schema": 1, "text": "".join(parts)}, "")
        return 0
    for part in parts:
        print(part, end="")
    return 0


def _watch(config: RunConfig) -> int:
    from dataclasses import asdict

    from orchestrator import runs, watch

    path = runs.run_folder(config.run_dir, "watch")
    try:
        live = watch.watch(path, sys.stderr if _is_json(config) else sys.stdout)
    except KeyboardInterrupt:
        print(f"The run goes on. See it again with: trainmaster watch {path}", file=sys.stderr)
        return 0
    if _is_json(config):
        _emit(config, {"schema": 1, **asdict(live)}, "")
    return 0


def _cancel(config: RunConfig) -> int:
    from orchestrator import runs

    path = runs.run_folder(config.run_dir, "cancel")
    done = runs.cancel(path)
    _emit(config, {"schema": 1, "run_dir": str(path), "done": done}, f"{done}\n")
    return 0


def _faults(arguments: list[str]) -> int:
    from orchestrator.compose import compose, run_hydra
    from orchestrator.fault_runs import command, present
    from orchestrator.faults.fault import listing
    from orchestrator.inputs import located

    what, rest = command.split(arguments)
    if what == "help":
        print(command.HELP, end="")
        return 0
    if any(item.startswith("-") for item in rest):
        return run_hydra("train", command.without_sweep(rest), needs_job=what == "run")
    config, _ = compose(rest, needs_job=what == "run")
    check_can_save(config)
    if what == "list":
        kinds = listing()
        _emit(config, {"schema": present.SCHEMA, "faults": kinds}, present.listing_text(kinds))
        return 0
    from orchestrator.fault_runs.run import run_matrix

    stream = sys.stderr if _is_json(config) else sys.stdout
    folder, matrix = run_matrix(rest, located(config), lambda line: print(line, file=stream, flush=True))
    _emit(config, present.to_json(matrix), f"\n{present.to_text(matrix)}This table: {folder / 'faults.md'}\n")
    return 0 if all(row.as_expected for row in matrix.rows) else int(ExitCode.RUN_FAILED)


if __name__ == "__main__":
    sys.exit(main())
