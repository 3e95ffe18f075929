"""`hydra/sweeper=optuna`: trials chosen by Optuna to minimise the held-out loss.

Not Hydra's plugin: that one needs Optuna 2 (2022), whose storage fails with the present SQLAlchemy, so that no study
could be kept; and it ends the whole sweep at the first trial that fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.plugins.sweeper import Sweeper

from orchestrator.errors import Problem, UserError

_SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "qmc": "QMCSampler"}
_WHERE = "hydra/sweeper=optuna"
RESULTS = "optimization_results.yaml"


class OptunaTrials(Sweeper):  # type: ignore[misc]  # Hydra has no types here
    """Asks Optuna for trials, has them launched, and tells it their losses."""

    __module__ = "hydra_plugins.trainmaster"

    def __init__(
        self,
        *,
        n_trials: int,
        n_jobs: int,
        sampler: Mapping[str, Any],
        study_name: str,
        storage: str | None,
        params: Mapping[str, Any] | None,
    ) -> None:
        """Take the keys of `hydra.sweeper`."""
        self.num_trials, self.num_jobs, self.sampler = n_trials, n_jobs, dict(sampler)
        self.study_name, self.storage, self.params = study_name, storage or "", dict(params or {})
        self.launcher: Any = None
        self.sweep_state: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:  # noqa: ANN401
        """Make the launcher."""
        from hydra.core.plugins import Plugins

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.sweep_state = task_function.sweep

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials; the study and its best trial stay in the folder of the sweep."""
        fixed, space = search_space([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        if not space:
            remedy = "Sweep over at least one key: optimizer.lr='tag(log, interval(1e-4, 1e-2))'."
            raise UserError(Problem(where=_WHERE, found="nothing to choose", remedy=remedy))
        self._check_numbers()
        study = self._study(self.sweep_state.folder)
        done = 0
        while done < self.num_trials and not self.sweep_state.signals.count:
            asked = [study.ask(space) for _ in range(min(self.num_jobs, self.num_trials - done))]
            overrides = [(*fixed, *(f"{key}={value}" for key, value in one.params.items())) for one in asked]
            returns = self.launcher.launch(overrides, initial_job_idx=done)
            done += len(asked)
            self._tell(study, asked, [one.return_value for one in returns])
            self._keep(study)

    def _check_numbers(self) -> None:
        wrong = {"n_trials": self.num_trials, "n_jobs": self.num_jobs}
        problems = [
            Problem(where=f"hydra.sweeper.{key}", found=f"found {value}", remedy="Give a whole number from 1 on.")
            for key, value in wrong.items()
            if not isinstance(value, int) or value < 1
        ]
        if problems:
            raise UserError(*problems)

    def _study(self, folder: Path) -> Any:  # noqa: ANN401 - Optuna is imported where it is used
        try:
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        except ImportError as error:
            remedy = "Install it: pip install 'trainmaster[sweeps]'."
            raise UserError(Problem(where=_WHERE, found="Optuna is not installed", remedy=remedy)) from error
        name = str(self.sampler.get("name"))
        if name not in _SAMPLERS:
            remedy = f"Known: {', '.join(_SAMPLERS)}."
            raise UserError(Problem(where="hydra.sweeper.sampler.name", found=f"found {name}", remedy=remedy))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        path = self.storage or str(folder / "optuna.log")
        storage = path if "://" in path else JournalStorage(JournalFileBackend(path))
        return optuna.create_study(
            study_name=self.study_name,
            storage=storage,
            sampler=getattr(optuna.samplers, _SAMPLERS[name])(seed=self.sampler.get("seed")),
            direction="minimize",
            load_if_exists=True,
        )

    def _tell(self, study: Any, asked: Sequence[Any], losses: Sequence[float | None]) -> None:  # noqa: ANN401
        from optuna.trial import TrialState

        for trial, loss in zip(asked, losses, strict=True):
            if loss is None:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, loss)

    def _keep(self, study: Any) -> None:  # noqa: ANN401
        """Write the best so far, under the names that Hydra's plugin uses (JSON is YAML)."""
        from optuna.trial import TrialState

        if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            return
        best = {"name": "optuna", "best_evaluated_params": study.best_params, "best_value": study.best_value}
        (self.sweep_state.folder / RESULTS).write_text(json.dumps(best, indent=2) + "\n", encoding="utf-8")


def search_space(arguments: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Tell overrides that stand fast from those to choose: `a,b`, `choice`, `range`, `interval`, `tag(log, interval)`.

    Raises:
        UserError: for a sweep that is none of these.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    fixed: dict[str, str] = {}
    space: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key = override.get_key_element()
        if override.is_sweep_override():
            fixed.pop(key, None)
            space[key] = _distribution(override)
        else:
            space.pop(key, None)
            fixed[key] = f"{key}={override.get_value_element_as_str()}"
    return tuple(fixed.values()), space


def _distribution(override: Any) -> Any:  # noqa: ANN401 - Hydra's and Optuna's own types
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    except ImportError as error:
        remedy = "Install it: pip install 'trainmaster[sweeps]'."
        raise UserError(Problem(where=_WHERE, found="Optuna is not installed", remedy=remedy)) from error
    from hydra.core.override_parser.types import Transformer

    try:
        if not override.is_interval_sweep():
            return CategoricalDistribution(list(override.sweep_iterator(transformer=Transformer.encode)))
        interval = override.value()
        ends, is_log = (interval.start, interval.end), "log" in interval.tags
        if all(isinstance(end, int) for end in ends):
            return IntDistribution(*ends, log=is_log)
        return FloatDistribution(float(ends[0]), float(ends[1]), log=is_log)
    except ValueError as error:
        remedy = "Write the smaller end first, above 0 for a logarithmic one."
        raise UserError(Problem(where=override.input_line, found=str(error), remedy=remedy)) from error
