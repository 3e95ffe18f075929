"""TensorBoard's curves of the whole run, beside those of ranks and devices that the sampler writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.monitor.store import folder_of
from orchestrator.trackers.records import Point, numbers_of
from orchestrator.trackers.tracker import About, Tracker


class TensorboardRun(Tracker):
    """Scalars of a run; a resumed one adds a file to the same folder."""

    name = "tensorboard"

    def __init__(self) -> None:
        """Open nothing yet."""
        self._writer: Any = None
        self._last = 0

    def open(self, about: About) -> Mapping[str, str]:
        """Open a file of events."""
        from tensorboard.summary import Writer

        folder = folder_of(about.run_dir) / "tensorboard" / "run"
        self._writer = Writer(str(folder))
        return {"folder": str(folder)}

    def log(self, points: Sequence[Point]) -> None:
        """Take numbers."""
        for point in points:
            for name, value in point.values:
                self._writer.add_scalar(name, value, point.step, wall_time=point.time)
            self._last = point.step
        self._writer.flush()

    def close(self, status: str, summary: Mapping[str, Any]) -> str:
        """Write what is left."""
        for name, value in numbers_of(summary).items():
            self._writer.add_scalar(f"summary/{name}", value, self._last)
        self._writer.close()
        return "tensorboard --logdir RUN_DIR/telemetry"
