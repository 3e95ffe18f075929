"""Whether what is asked of the monitor can be done, looked at before a run starts."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config import MonitorConfig
from orchestrator.errors import Problem, UserError
from orchestrator.monitor.replay import read_replay
from orchestrator.monitor.scalars import check_tensorboard


def check_monitor(config: MonitorConfig) -> None:
    """See that TensorBoard is installed and a replay can be read, where they are asked for.

    Raises:
        UserError: with all that is wrong.
    """
    problems: list[Problem] = []
    if not config.enabled:
        return
    try:
        check_tensorboard(wanted=config.tensorboard)
    except UserError as error:
        problems += error.problems
    try:
        if config.replay:
            read_replay(Path(config.replay), began=0.0)
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(*problems)
