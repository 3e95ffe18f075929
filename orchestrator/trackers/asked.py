"""Whether the trackers that are asked for are installed, seen before a run starts and without importing them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final

from orchestrator.errors import Problem, UserError

_INSTALL: Final = {
    "tensorboard": "pip install tensorboard",
    "wandb": "pip install 'trainmaster[wandb]'",
    "mlflow": "pip install 'trainmaster[mlflow]'",
}
# MLflow's SQLite store needs these; its small distribution does not bring them.
_MODULES: Final = {"mlflow": ("mlflow", "sqlalchemy", "alembic")}


def check_trackers(names: Sequence[str]) -> None:
    """See that each tracker can be used.

    Raises:
        UserError: with one problem for each package that is missing.
    """
    problems = [
        Problem(
            where=f"monitor.report_to={name}",
            found=f"the package {missing} is not installed",
            remedy=f"Install it ({_INSTALL[name]}), or leave {name} out.",
        )
        for name in names
        if name in _INSTALL
        for missing in [next((one for one in _MODULES.get(name, (name,)) if not _is_there(one)), None)]
        if missing is not None
    ]
    if problems:
        raise UserError(*problems)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
