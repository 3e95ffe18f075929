"""Finds the checkpoint that all ranks go on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.train.checkpoint import Checkpoint, CheckpointStore, DamagedError, Skipped
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import EventLog


def open_newest(
    store: CheckpointStore, group: MetricsGroup, events: EventLog, *, is_main: bool, say: Callable[[str], None]
) -> tuple[Path, Checkpoint] | None:
    """Read the newest checkpoint that rank 0 finds whole and every rank can read; collective.

    Each one that is skipped gets one message and one event.

    Returns:
        The checkpoint and where it lies; None where the run begins anew.
    """
    unread: list[Path] = []
    told: set[Path] = set()
    while True:
        newest, skipped = store.newest_whole(unread) if is_main else (None, [])
        for item in skipped:
            if item.path not in told:
                _tell(item, events, say)
        told.update(item.path for item in skipped)
        path: Path | None = group.from_main(newest)
        if path is None:
            return None
        checkpoint, why = _read(store, path)
        reasons = [f"rank {rank}: {reason}" for rank, reason in enumerate(group.gather(why)) if reason]
        if checkpoint is not None and not reasons:
            return path, checkpoint
        _tell(Skipped(path=path, why="; ".join(reasons), kept_as=path), events, say)
        unread.append(path)


def _read(store: CheckpointStore, path: Path) -> tuple[Checkpoint | None, str]:
    try:
        return store.read(path), ""
    except DamagedError as error:
        return None, str(error)


def _tell(item: Skipped, events: EventLog, say: Callable[[str], None]) -> None:
    say(str(item))
    events.add("checkpoint_skipped", path=str(item.path), why=item.why, kept_as=str(item.kept_as))
