"""Verbs for a run that is there, from another shell: `status`, `logs`, `watch`, `cancel`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orchestrator.verbs.emit import emit, is_json, stream_of

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def status(config: RunConfig) -> int:
    """Say how far it is."""
    from orchestrator import runs

    state = runs.state_of_run(runs.run_folder(config.run_dir, "status"))
    emit(config, runs.to_json(state), runs.to_text(state))
    return 0


def logs(config: RunConfig) -> int:
    """Print what it prints."""
    from orchestrator import runs

    path = runs.run_folder(config.run_dir, "logs")
    if config.follow and not is_json(config):
        for line in runs.followed_log(path):
            print(line, end="", flush=True)
        return 0
    parts = runs.log_text(path)
    if is_json(config):
        emit(config, {"schema": 1, "text": "".join(parts)}, "")
        return 0
    for part in parts:
        print(part, end="")
    return 0


def watch(config: RunConfig) -> int:
    """Show it as it goes on."""
    from dataclasses import asdict

    from orchestrator import runs
    from orchestrator import watch as live_view

    path = runs.run_folder(config.run_dir, "watch")
    try:
        live = live_view.watch(path, stream_of(config))
    except KeyboardInterrupt:
        print(f"The run goes on. See it again with: trainmaster watch {path}", file=sys.stderr)
        return 0
    if is_json(config):
        emit(config, {"schema": 1, **asdict(live)}, "")
    return 0


def cancel(config: RunConfig) -> int:
    """End it with a checkpoint."""
    from orchestrator import runs

    path = runs.run_folder(config.run_dir, "cancel")
    done = runs.cancel(path)
    emit(config, {"schema": 1, "run_dir": str(path), "done": done}, f"{done}\n")
    return 0
