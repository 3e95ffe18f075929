"""Rules of the monitor's keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from orchestrator.config_around import MonitorConfig
from orchestrator.errors import Problem

TRACKERS: Final = ("none", "tensorboard", "wandb", "mlflow")


def check_trackers_named(config: MonitorConfig) -> Iterator[Problem]:
    """Yield one problem for each tracker that there is not."""
    for name in config.report_to:
        if name not in TRACKERS:
            close = difflib.get_close_matches(name.lower(), TRACKERS, n=1, cutoff=0.55)
            remedy = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(TRACKERS)}."
            yield Problem(where="monitor.report_to", found=f"no tracker {name!r}", remedy=remedy)
    if "none" in config.report_to and len(config.report_to) > 1:
        yield Problem(where="monitor.report_to", found="none stands beside others", remedy="Take it away.")
