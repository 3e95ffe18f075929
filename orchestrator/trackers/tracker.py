"""What a tracker can do: one small class for each library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.trackers.records import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is known of a run when a tracker opens it.

    Attributes:
        run_dir: of the run; its name is that of the run.
        project: that it belongs to; empty: by the library's own variable, else `trainmaster`.
        config: the whole configuration, and the plan's choice below `plan`.
        known: what the tracker called the run before, empty for a new one.
    """

    run_dir: Path
    project: str
    config: Mapping[str, Any]
    known: Mapping[str, str]


class Tracker(ABC):
    """Takes the numbers of one run. Whatever it raises is a warning, never the end of the run."""

    name: str

    @abstractmethod
    def open(self, about: About) -> Mapping[str, str]:
        """Begin the run, or go on with it; returns what finds it again."""

    @abstractmethod
    def log(self, points: Sequence[Point]) -> None:
        """Take numbers, in the order of their steps."""

    @abstractmethod
    def close(self, status: str, summary: Mapping[str, Any]) -> str:
        """End the run (`done`, `stopped` or `failed`); returns where to look at it, in words."""
