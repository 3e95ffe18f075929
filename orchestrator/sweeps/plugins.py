"""Hydra's launchers, as far as sweeps of `train` are concerned: which trials, in which folder, and who starts them.

Hydra instantiates plugins only from modules named `hydra_plugins`; these classes carry such a name and are registered
by hand, so that no package of that name need be installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from orchestrator.errors import Problem, UserError
from orchestrator.report.trained import TrainTrial
from orchestrator.sweeps.allot import Room
from orchestrator.sweeps.batch import Jobs
from orchestrator.sweeps.needs import Needs, room_for
from orchestrator.sweeps.processes import start_process
from orchestrator.sweeps.running import Runner, Say, Signals
from orchestrator.sweeps.trial import TrialJob

MODULE = "hydra_plugins.trainmaster"
# Launcher of Hydra -> the class that stands in for it.
LAUNCHERS = {"basic": "HereLauncher", "submitit_local": "LocalJobsLauncher", "submitit_slurm": "ArrayLauncher"}


@dataclass(slots=True, kw_only=True)
class Sweep:
    """A sweep under way: where it lives, what it may use, and the trials that have ended."""

    folder: Path
    parallel: int | None
    say: Say
    swept: tuple[str, ...] = ()
    results: list[TrainTrial] = field(default_factory=list)
    signals: Signals = field(default_factory=Signals)


class _Trials(Launcher):  # type: ignore[misc]  # Hydra has no types here
    """Runs trials and gives their held-out losses back to the sweeper (None: there is none)."""

    def __init__(self, **params: Any) -> None:  # noqa: ANN401 - the keys of Hydra's launcher
        from omegaconf import OmegaConf

        plain = {key: OmegaConf.to_container(x) if OmegaConf.is_config(x) else x for key, x in params.items()}
        self.params: dict[str, Any] = plain
        self.sweep: Sweep | None = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:  # noqa: ANN401
        """Take the sweep that the task function carries."""
        self.sweep = task_function.sweep

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """Run these trials to their ends."""
        sweep = self.sweep
        if sweep is None:
            raise RuntimeError("launch before setup")
        jobs = [
            TrialJob(number=initial_job_idx + at, overrides=tuple(one), folder=sweep.folder, swept=sweep.swept)
            for at, one in enumerate(job_overrides)
        ]
        trials = self.runner(sweep, jobs).run(jobs)
        returns = []
        for trial in trials:
            done = JobReturn(overrides=trial.overrides, status=JobStatus.COMPLETED)
            done.return_value = trial.loss
            returns.append(done)
        return returns

    def runner(self, sweep: Sweep, jobs: Sequence[TrialJob]) -> Runner:
        """Return who runs them."""
        raise NotImplementedError


class HereLauncher(_Trials):
    """Processes of this host, side by side where devices allow."""

    __module__ = MODULE

    def runner(self, sweep: Sweep, jobs: Sequence[TrialJob]) -> Runner:
        """Return a runner of processes."""
        room = room_for(sweep.parallel, jobs[0].asked)
        return Runner(room, Needs(room.machine), start_process, sweep.say, sweep.signals, sweep.results)


class LocalJobsLauncher(_Trials):
    """Jobs of submitit on this host: as processes, with submitit's logs and notice before the time limit."""

    __module__ = MODULE

    def runner(self, sweep: Sweep, jobs: Sequence[TrialJob]) -> Runner:
        """Return a runner of local jobs."""
        room = room_for(sweep.parallel, jobs[0].asked)
        start = Jobs("local", self.params).start
        return Runner(room, Needs(room.machine), start, sweep.say, sweep.signals, sweep.results)


class ArrayLauncher(_Trials):
    """A job array of SLURM, which gives each trial its devices."""

    __module__ = MODULE

    def runner(self, sweep: Sweep, jobs: Sequence[TrialJob]) -> Runner:
        """Submit the array; return a runner that watches its jobs."""
        if sweep.parallel is not None:
            remedy = "Set hydra.launcher.array_parallelism=N, and leave sweep.parallel out."
            raise UserError(Problem(where="sweep.parallel", found="SLURM places the trials", remedy=remedy))
        sweep.folder.mkdir(parents=True, exist_ok=True)
        array = Jobs("slurm", self.params)
        sweep.say(f"job array {array.submit(jobs)}: {len(jobs)} trials")
        room = Room(limit=len(jobs) + 1, elsewhere=True)  # more than one: lines of several would mix
        return Runner(room, Needs(None), array.start, sweep.say, sweep.signals, sweep.results)


def register() -> None:
    """Make Hydra know the launchers and the sweeper, by names that it takes and can import."""
    from hydra.core.plugins import Plugins

    from orchestrator.sweeps.optimise import OptunaTrials

    module, plugins = ModuleType(MODULE), Plugins.instance()
    for plugin in (HereLauncher, LocalJobsLauncher, ArrayLauncher, OptunaTrials):
        setattr(module, plugin.__name__, plugin)
        plugins.register(plugin)
    package, _, name = MODULE.partition(".")
    try:
        parent = importlib.import_module(package)
    except ModuleNotFoundError:  # no plugin of anybody's is installed
        parent = sys.modules[package] = ModuleType(package)
        parent.__path__ = []
    setattr(parent, name, module)
    sys.modules[MODULE] = module
