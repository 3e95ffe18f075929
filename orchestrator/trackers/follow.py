"""Passes a run on to trackers: `python -m orchestrator.trackers.follow RUN_DIR wandb mlflow`, a process of its own.

Rank 0 starts it and holds its standard input; when that is closed, by the end of the rank or with the rank itself, what
is left is passed on and the trackers' runs are ended. Nobody else ends this process, so it has a bound of its own. It
imports no torch. Whatever a tracker raises is one warning: that tracker ends, and the run goes on.
`RUN_DIR/trackers.json` keeps under which ids, and how far.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from orchestrator.config_codec import dump_config
from orchestrator.planner.plan import loads
from orchestrator.trackers.records import Reached, point_of
from orchestrator.trackers.tracker import About, Tracker
from orchestrator.trackers.tracker_lines import Lines

FILE: Final = "trackers.json"
_EVERY_SECONDS: Final = 2.0
_LEFT_SECONDS: Final = 100.0  # after the end of its input; a rank that is still there ends it a little earlier
_LOCK_SECONDS: Final = 110.0  # for the process of the attempt before, which may still be sending
_NICE: Final = 10


class Followed:
    """One tracker of one run, and how far it was told."""

    def __init__(self, tracker: Tracker, about: About, reached: Reached) -> None:
        """Take a tracker that is open."""
        self.tracker, self.about, self.reached, self.ids = tracker, about, reached, dict(about.known)
        self.is_on = True

    def open(self) -> None:
        """Begin, or go on."""
        with self._warned("does not start"):
            self.ids = dict(self.tracker.open(self.about))

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Pass on what it has not been told yet."""
        points = [point for point in map(point_of, records) if point is not None and not self.reached.has(point)]
        if not self.is_on or not points:
            return
        with self._warned("takes no more numbers"):
            self.tracker.log(points)
            for point in points:
                self.reached = self.reached.after(point)

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        """End its run."""
        if self.is_on:
            with self._warned("does not end"):
                say(f"{self.tracker.name}: {self.tracker.close(status, summary)}")

    @contextlib.contextmanager
    def _warned(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a tracker may never end a run
            self.is_on = False
            words = (str(error).strip().splitlines() or [type(error).__name__])[0]
            say(f"warning: {self.tracker.name} {what} ({words}); the run goes on without it")


def say(line: str) -> None:
    """Tell rank 0, which prints it; it may be gone."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.__stdout__, flush=True)


def follow(run_dir: Path, names: Sequence[str]) -> None:
    """Pass a run on until standard input is closed."""
    plan = loads((run_dir / "plan.json").read_text(encoding="utf-8"))
    strategy = plan.chosen.strategy
    chosen = {"strategy": strategy.label, "engine": strategy.engine.value, "world_size": strategy.world_size}
    config = {**dump_config(plan.run_config), "plan": {**chosen, "machine": plan.machine}}
    kept = _kept(run_dir)
    followed = [_followed(name, run_dir, plan.run_config.monitor.project, config, kept) for name in names]
    for one in followed:
        one.open()
    _keep(run_dir, followed)
    lines = Lines(run_dir / "metrics.jsonl")
    is_open = True
    while is_open:
        is_open = not select.select([sys.stdin], [], [], _EVERY_SECONDS)[0]
        records = lines.read()
        for one in followed:
            one.log(records)
        if records:
            _keep(run_dir, followed)
    summary = _summary(run_dir)
    for one in followed:
        one.close(str(summary.get("status", "failed")), summary)


def _followed(name: str, run_dir: Path, project: str, config: Mapping[str, Any], kept: Mapping[str, Any]) -> Followed:
    known = kept.get(name, {})
    reached = Reached(**{key: int(known.get("reached", {}).get(key, -1)) for key in ("train", "eval")})
    ids = {key: str(value) for key, value in known.items() if key != "reached"}
    return Followed(_made(name), About(run_dir=run_dir, project=project, config=config, known=ids), reached)


def _made(name: str) -> Tracker:
    if name == "wandb":
        from orchestrator.trackers.wandb_run import WandbRun

        return WandbRun()
    if name == "mlflow":
        from orchestrator.trackers.mlflow_run import MlflowRun

        return MlflowRun()
    from orchestrator.trackers.tensorboard_run import TensorboardRun

    return TensorboardRun()


def _summary(run_dir: Path) -> dict[str, Any]:
    """What the run left; a status that is none of an end counts as failed."""
    try:
        body = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        body = {}
    found = body if isinstance(body, dict) else {}
    return {**found, "status": found.get("status") if found.get("status") in {"done", "stopped"} else "failed"}


def _kept(run_dir: Path) -> dict[str, Any]:
    try:
        body = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): one for name, one in body.items() if isinstance(one, dict)} if isinstance(body, dict) else {}


def _keep(run_dir: Path, followed: Sequence[Followed]) -> None:
    body = _kept(run_dir) | {one.tracker.name: {**one.ids, "reached": asdict(one.reached)} for one in followed}
    path = run_dir / FILE
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk costs a repeated curve
        temporary.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Wait for the process of the attempt before, for a while."""
    with contextlib.suppress(OSError), (run_dir / "logs" / "trackers.lock").open("w") as lock:
        until = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.5)
        yield


def _end_late() -> None:
    """End this process some time after its input, whatever a library waits for: a killed rank can end nothing."""
    select.select([sys.stdin], [], [])
    time.sleep(_LEFT_SECONDS)
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Follow a run; the terminal's Ctrl-C is for the launcher."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    threading.Thread(target=_end_late, daemon=True, name="bound").start()
    run_dir, *names = arguments
    # What libraries print goes to the log; rank 0 reads our own lines alone.
    with contextlib.redirect_stdout(sys.stderr), _alone(Path(run_dir)):
        follow(Path(run_dir), names)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Libraries keep threads that wait for the network.
    os._exit(code)
