"""Weights & Biases, by its own library. Without a network or a key the run is kept on disk, to be synced later."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.trackers.records import Point, flat
from orchestrator.trackers.tracker import About, Tracker

_OPEN_SECONDS: Final = 30.0


class WandbRun(Tracker):
    """One run of W&B; one that is resumed has the same id."""

    name = "wandb"

    def __init__(self) -> None:
        """Open nothing yet."""
        self._run: Any = None
        self._offline = False

    def open(self, about: About) -> Mapping[str, str]:
        """Begin the run; offline where the server cannot be reached."""
        run_id = about.known.get("id") or uuid.uuid4().hex[:12]
        try:
            self._run = self._init(about, run_id, os.environ.get("WANDB_MODE"))
        except Exception as error:  # noqa: BLE001 - no key, no network, a proxy: all mean that it stays here
            print(f"wandb: {error}; the run is kept offline", flush=True)
            self._run = self._init(about, run_id, "offline")
        self._offline = bool(self._run.settings._offline)  # noqa: SLF001 - it has no public name
        # Steps are an axis of ours: W&B's own counter refuses what a resumed run tells again.
        self._run.define_metric("*", step_metric="step")
        return {"id": run_id}

    def _init(self, about: About, run_id: str, mode: Any) -> Any:  # noqa: ANN401 - of the library
        import wandb

        settings = wandb.Settings(silent=True, console="off", init_timeout=_OPEN_SECONDS)
        return wandb.init(
            project=about.project or os.environ.get("WANDB_PROJECT") or "trainmaster",
            id=run_id,
            name=about.run_dir.name,
            dir=os.environ.get("WANDB_DIR") or str(about.run_dir),
            config=dict(about.config),
            resume="allow",
            mode=mode,
            settings=settings,
        )

    def log(self, points: Sequence[Point]) -> None:
        """Take numbers."""
        for point in points:
            self._run.log({"step": point.step, **dict(point.values)})

    def close(self, status: str, summary: Mapping[str, Any]) -> str:
        """End the run."""
        self._run.summary.update({"status": status, **dict(flat(summary))})
        where, url = self._run.settings.sync_dir, self._run.url
        self._run.finish(exit_code=1 if status == "failed" else 0)
        return f"kept offline; send it with: wandb sync {where}" if self._offline else str(url or where)
