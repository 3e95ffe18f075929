"""`train -m`: Hydra chooses the trials, our launchers run them, and one table ends them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.compose import config_folder, interval_keys, register_resolvers, sweep_arguments, swept_keys
from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError
from orchestrator.hydra_run import errors_as_they_are, say_if_nothing_swept
from orchestrator.hydra_words import problem_of
from orchestrator.outputs import write_and_say, write_whole
from orchestrator.overrides import quote
from orchestrator.report.sweep import differing, unquoted
from orchestrator.report.trained import best_of, csv_text, exit_code_of, table_text, to_json
from orchestrator.reporting import leave_page
from orchestrator.run_dir import folder_of
from orchestrator.sweeps.needs import parallel_of
from orchestrator.sweeps.plugins import LAUNCHERS, MODULE, Sweep, register
from orchestrator.sweeps.trial import OF_THE_SWEEP

_TABLE = "sweep.csv"


def run_sweep(arguments: Sequence[str]) -> int:
    """Run a sweep of `train` and print its table; returns the exit code of the whole.

    Args:
        arguments: what stands after the verb, flags included.

    Raises:
        UserError: for flags, overrides and keys of the sweep that are wrong. Wrong trials are rows of the table.
    """
    flags, overrides = sweep_arguments(arguments)
    say_if_nothing_swept(overrides)
    own = _own_keys(overrides)
    _check_intervals(overrides)
    is_json = own.get("format", "text") == "json"
    folder = _folder(own.get("run_dir", ""))

    def say(text: str) -> None:
        print(text, file=sys.stderr if is_json else sys.stdout, flush=True)

    parallel = parallel_of(own.get("sweep.parallel", "auto"))
    sweep = Sweep(folder=folder, parallel=parallel, say=say, swept=swept_keys(overrides))
    asked = [item for item in overrides if item.lstrip("+").partition("=")[0] not in OF_THE_SWEEP]
    try:
        _hydra(sweep, [*flags, *asked, *_hydra_overrides(overrides, folder)])
    finally:
        if sweep.results:
            _report(sweep, own.get("save", ""), is_json=is_json)
    return exit_code_of(sweep.results)


def _own_keys(overrides: Sequence[str]) -> dict[str, str]:
    """The keys of the sweep itself. `resume` is none of a sweep's: its trials are runs like others."""
    pairs = [item.lstrip("+").partition("=")[::2] for item in overrides]
    if any(key == "resume" and unquoted(value).lower() not in {"", "false"} for key, value in pairs):
        remedy = "Continue a trial that was stopped with: trainmaster train resume=SWEEP/NUMBER."
        raise UserError(Problem(where="resume", found="a sweep starts new runs", remedy=remedy))
    return {key: unquoted(value) for key, value in pairs if key in OF_THE_SWEEP}


def _folder(run_dir: str) -> Path:
    """The folder of the sweep; a new one under runs/ unless the user names it."""
    if not run_dir:
        first = Path("runs").absolute() / time.strftime("train-sweep-%Y%m%d-%H%M%S")
        names = (first if at == 1 else first.with_name(f"{first.name}-{at}") for at in range(1, 1000))
        return next(path for path in names if not path.exists())
    path = folder_of(run_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        found = "it is not an empty folder"
        raise UserError(Problem(where=f"run_dir={run_dir}", found=found, remedy="A sweep begins in a new folder."))
    return path


def _hydra_overrides(overrides: Sequence[str], folder: Path) -> tuple[str, ...]:
    """What Hydra has to know besides: the folder, and our class in place of the launcher's own."""
    launcher = _chosen(overrides, "hydra/launcher")
    if launcher not in LAUNCHERS:
        found = f"no option {launcher!r}"
        raise UserError(Problem(where="hydra/launcher", found=found, remedy=nearest(launcher, LAUNCHERS)))
    if launcher.startswith("submitit"):
        _check_submitit(launcher)
    named = any(item.startswith("hydra.job.name=") for item in overrides)
    return (
        f"hydra.launcher._target_={MODULE}.{LAUNCHERS[launcher]}",
        f"hydra.sweep.dir={quote(str(folder))}",
        *(() if named else ("hydra.job.name=trainmaster",)),
    )


def _chosen(overrides: Sequence[str], group: str) -> str:
    values = [value for key, _, value in (item.partition("=") for item in overrides) if key == group]
    return unquoted(values[-1]) if values else "basic"


def _check_intervals(overrides: Sequence[str]) -> None:
    """Only a sweeper that chooses can take an interval."""
    if _chosen(overrides, "hydra/sweeper") == "basic" and (keys := interval_keys(overrides)):
        remedy = "Name the values, or add hydra/sweeper=optuna to have them chosen."
        raise UserError(*(Problem(where=key, found="an interval has no end of values", remedy=remedy) for key in keys))


def _check_submitit(launcher: str) -> None:
    import importlib.util

    needed = ("submitit", "hydra_plugins.hydra_submitit_launcher")
    try:
        missing = any(importlib.util.find_spec(name) is None for name in needed)
    except ModuleNotFoundError:
        missing = True
    if missing:
        remedy = "Install it: pip install 'trainmaster[sweeps]'."
        raise UserError(Problem(where=f"hydra/launcher={launcher}", found="submitit is not installed", remedy=remedy))


def _hydra(sweep: Sweep, words: Sequence[str]) -> None:
    """Let Hydra read the words and call our launcher.

    Raises:
        UserError: for what Hydra refuses.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    def task(_config: Any) -> None:  # noqa: ANN401 - our launchers take the sweep from it, and never call it
        raise NotImplementedError

    task.sweep = sweep  # type: ignore[attr-defined]
    register_resolvers()
    register()
    sys.argv = ["trainmaster train", *words]
    main = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(task)
    try:
        with errors_as_they_are():
            main()
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(problem_of(str(error), "`trainmaster train --help` lists keys and groups.")) from error
    except SystemExit as end:
        if end.code not in (0, None):
            found = "Hydra refused the command"
            raise UserError(Problem(where="train -m", found=found, remedy="See the lines above.")) from end


def _report(sweep: Sweep, save: str, *, is_json: bool) -> None:
    """End with one table, and leave it as CSV and JSON beside the runs."""
    trials = sorted(sweep.results, key=lambda trial: trial.number)
    document = json.dumps(to_json(trials, str(sweep.folder)), indent=2) + "\n"
    path = sweep.folder / _TABLE
    write_whole(path, csv_text(trials), "sweep")
    write_whole(path.with_suffix(".json"), document, "sweep")
    if save:
        write_and_say(Path(save), document, "save")
    best = best_of(trials)
    sweep.say(f"\n{table_text(trials)}")
    if best is not None and len(trials) > 1:
        told = differing([trial.overrides for trial in trials])[trials.index(best)]
        sweep.say(f"best: trial {best.number}, held-out loss {best.loss:.4f}: {told}")
        sweep.say(f"      its adapter: {Path(best.run_dir) / 'adapter'}")
    sweep.say(f"This table: {path}")
    page = leave_page(sweep.folder)
    if page is not None:
        sweep.say(f"report: {page}")
    if is_json:
        print(document, end="")
