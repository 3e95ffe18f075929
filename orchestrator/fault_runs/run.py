"""The runs of `trainmaster faults run`, one after the other, and the files of their table."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.config import Backend, Fault, RunConfig
from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, RunFailed, UserError
from orchestrator.fault_runs.outside import Job, has_own_network, own_namespace, run_job, small_disk
from orchestrator.fault_runs.present import Matrix, to_json, to_markdown
from orchestrator.fault_runs.row import Left, Row, row
from orchestrator.fault_runs.scheduler import Scheduler
from orchestrator.faults.fault import KINDS, Facts, Who, why_not
from orchestrator.outputs import write_whole
from orchestrator.run_dir import folder_of, read_json

_OWN: Final = frozenset(
    {"run_dir", "save", "format", "picture", "faults", "faults.name", "faults.only", "faults.limit_seconds"}
)
_LIMIT_FACTOR: Final = 4.0
_LIMIT_SECONDS: Final = 300.0  # of the slowest way to start again, beside the work itself
_DISK_FACTOR: Final = 3
_DISK_BYTES: Final = 8 << 20
_COMMANDS: Final = ("sbatch", "scontrol")

Say = Callable[[str], None]


def run_matrix(arguments: Sequence[str], config: RunConfig, say: Say) -> tuple[Path, Matrix]:
    """Run without a fault, then with each; returns the folder of all runs, and the table.

    The table is written after each run, so that what was found is kept whatever comes.

    Args:
        arguments: what was typed after `faults run`.
        config: composed from it.
        say: takes lines of progress.

    Raises:
        UserError: what was asked makes no sense.
        RunFailed: the run without a fault was not done.
    """
    _check(config)
    wanted, skipped = _chosen(config, facts_of(config))
    folder = _folder(config.run_dir)
    words = tuple(item for item in arguments if item.lstrip("+").partition("=")[0] not in _OWN)
    say(f"without a fault, in {folder / 'baseline'}")
    limit = config.faults.limit_seconds
    baseline = run_job(
        Job(run_dir=folder / "baseline", words=(*words, "faults=none"), limit_seconds=limit or 3600.0 * 24)
    )
    if not baseline.is_done:
        found = f"it ended with exit code {baseline.code}: {baseline.words or 'no word of an error'}"
        raise RunFailed(Problem(where="the run without a fault", found=found, remedy=f"See {folder / 'baseline.log'}."))
    limit = limit or _LIMIT_FACTOR * baseline.seconds + _LIMIT_SECONDS
    plan = read_json(folder / "baseline" / "plan.json") or {}
    matrix = Matrix(
        asked=tuple(arguments),
        machine=str(plan.get("machine", "this machine")),
        world_size=int(baseline.summary.get("world_size", 1)),
        baseline=baseline,
        rows=(),
        skipped=tuple(skipped),
    )
    shared = _Shared(words=words, config=config, folder=folder, baseline=baseline, limit_seconds=limit)
    for fault in wanted:
        say(f"{fault.value}: {KINDS[fault].text}")
        found_row = _try(fault, shared, say)
        say(f"  {found_row.outcome.value}{f': {found_row.message}' if found_row.message else ''}")
        matrix = replace(matrix, rows=(*matrix.rows, found_row))
        _write(folder, matrix)
    _write(folder, matrix)
    return folder, matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What all runs have in common."""

    words: tuple[str, ...]
    config: RunConfig
    folder: Path
    baseline: Left
    limit_seconds: float


def _try(fault: Fault, shared: _Shared, say: Say) -> Row:
    """Run with one fault."""
    kind, run_dir = KINDS[fault], shared.folder / fault.value
    # What the scheduler does is done from here.
    name = Fault.none.value if kind.who is Who.scheduler else fault.value
    job = Job(
        run_dir=run_dir,
        words=(*shared.words, f"faults={name}"),
        limit_seconds=shared.limit_seconds,
        restarts=fault is Fault.kill_supervisor,
    )
    if fault is Fault.disk_full:
        nbytes = _DISK_FACTOR * _size(shared.folder / "baseline" / "checkpoints") + _DISK_BYTES
        job = replace(job, prefix=small_disk(own_namespace(), run_dir, nbytes))
    if kind.who is not Who.scheduler:
        return row(fault, run_job(job), shared.baseline)
    scheduler = Scheduler(shared.config.faults, fault, run_dir)
    try:
        return row(fault, run_job(job, scheduler.look), shared.baseline)
    finally:
        left = scheduler.mend()
        if left:
            say(f"  {left}")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write(folder: Path, matrix: Matrix) -> None:
    body = to_json(matrix)
    write_whole(folder / "faults.json", json.dumps(body, indent=2) + "\n", "run_dir")
    write_whole(folder / "faults.md", to_markdown(body), "run_dir")


def _check(config: RunConfig) -> None:
    problems = []
    if config.resume.strip().lower() not in {"", "false"}:
        problems.append(Problem(where="resume", found="faults run starts new runs", remedy="Leave it out."))
    if config.dry_run:
        remedy = "See `trainmaster train dry_run=true` and `trainmaster faults list`."
        problems.append(Problem(where="dry_run", found="faults run has none", remedy=remedy))
    if config.faults.name is not Fault.none:
        remedy = f"Write faults.only={config.faults.name.value}; the first run has no fault."
        problems.append(Problem(where="faults", found=f"found {config.faults.name.value}", remedy=remedy))
    if problems:
        raise UserError(*problems)


def _folder(run_dir: str) -> Path:
    path = folder_of(run_dir or time.strftime("runs/%Y%m%d-%H%M%S-faults"))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        found = "it is not an empty folder"
        raise UserError(Problem(where=f"run_dir={run_dir}", found=found, remedy="The runs begin in a new folder."))
    return path


def _chosen(config: RunConfig, facts: Facts) -> tuple[list[Fault], list[tuple[str, str]]]:
    """Return the faults to try, and those that cannot be tried with the reasons.

    Raises:
        UserError: for names that are none; for one that was named and cannot be tried.
    """
    if config.faults.only == ("all",):
        reasons = {fault: why_not(fault, config, facts) for fault in KINDS}
        skipped = [(fault.value, why) for fault, why in reasons.items() if why]
        return [fault for fault, why in reasons.items() if not why], skipped
    known = {fault.value: fault for fault in KINDS}
    problems = list(_problems(config, facts, known))
    if problems:
        raise UserError(*problems)
    return [known[name] for name in dict.fromkeys(config.faults.only)], []


def _problems(config: RunConfig, facts: Facts, known: dict[str, Fault]) -> Iterator[Problem]:
    for name in config.faults.only:
        if name not in known:
            yield Problem(where="faults.only", found=f"no fault {name!r}", remedy=nearest(name, (*known, "all")))
        elif why := why_not(known[name], config, facts):
            yield Problem(where=f"faults.only={name}", found=why, remedy="Leave it out, or give what it needs.")


def facts_of(config: RunConfig) -> Facts:
    """Look at this machine; nothing of it is changed."""
    launch = config.launch
    hosts = () if launch.hosts == ("none",) else launch.hosts
    return Facts(
        can_mount=bool(own_namespace()),
        has_network_namespaces=launch.backend is Backend.torchrun and has_own_network(launch.ssh, hosts),
        is_monitored=config.monitor.enabled,
        commands=frozenset(name for name in _COMMANDS if shutil.which(name)),
    )
