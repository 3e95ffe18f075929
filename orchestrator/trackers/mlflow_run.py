"""MLflow, by its client. Without `MLFLOW_TRACKING_URI` runs go to `mlflow.db` (SQLite) beside the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from orchestrator.trackers.records import Point, flat, numbers_of
from orchestrator.trackers.tracker import About, Tracker

_BATCH: Final = 100  # MLflow takes that many parameters in a request, and ten times as many metrics
_VALUE_LETTERS: Final = 500
_TERMINATED: Final = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_SECONDS: Final = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
_Item = TypeVar("_Item")


class MlflowRun(Tracker):
    """One run of MLflow; one that is resumed has the same id."""

    name = "mlflow"

    def __init__(self) -> None:
        """Open nothing yet."""
        self._client: Any = None
        self._run_id, self._uri = "", ""

    def open(self, about: About) -> Mapping[str, str]:
        """Begin the run, or set the known one running again."""
        for name, value in _SECONDS.items():  # a server that is away shall not be waited for by the default of minutes
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        own = f"sqlite:///{about.run_dir.parent / 'mlflow.db'}"
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or about.known.get("tracking_uri") or own
        self._client = MlflowClient(tracking_uri=self._uri)
        if about.known.get("run_id") and about.known.get("tracking_uri") == self._uri:
            self._run_id = about.known["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = self._new(about)
            params = [Param(name, str(value)[:_VALUE_LETTERS]) for name, value in flat(about.config)]
            for part in _parts(params, _BATCH):
                self._client.log_batch(self._run_id, params=part)
        return {"run_id": self._run_id, "tracking_uri": self._uri}

    def _new(self, about: About) -> str:
        project = about.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "trainmaster"
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(project)
        return str(self._client.create_run(experiment, run_name=about.run_dir.name).info.run_id)

    def log(self, points: Sequence[Point]) -> None:
        """Take numbers."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(1e3 * (point.time or time.time())), point.step)
            for point in points
            for name, value in point.values
        ]
        for part in _parts(metrics, 10 * _BATCH):
            self._client.log_batch(self._run_id, metrics=part)

    def close(self, status: str, summary: Mapping[str, Any]) -> str:
        """End the run."""
        from mlflow.entities import Metric, RunTag

        now = round(1e3 * time.time())
        metrics = [Metric(f"summary/{name}", value, now, 0) for name, value in numbers_of(summary).items()]
        for part in _parts(metrics, 10 * _BATCH):
            self._client.log_batch(self._run_id, metrics=part)
        self._client.log_batch(self._run_id, tags=[RunTag("trainmaster.status", status)])
        self._client.set_terminated(self._run_id, _TERMINATED[status])
        return f"run {self._run_id}; look at it with: mlflow ui --backend-store-uri {self._uri}"


def _parts(items: Sequence[_Item], size: int) -> Iterator[list[_Item]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
