"""What the user said about one source of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.dataset.messages import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """What the user said about the data.

    Attributes:
        path: a file, or a directory with train.* and perhaps eval|validation|test.*.
        eval_path: a separate eval file; wins over a directory's own and over a split.
        shape: the shape of the rows; None to recognise it.
        eval_fraction: share of the rows to hold out when there is no eval file.
        eval_count: or how many. Without either, or with a fraction of 0, there is no evaluation.
        max_rows: use only the first training rows; 0 for all. Alike max_eval_rows.
        seed: of the split.
        name: of the source in a mixture; empty: its path.
        weight, share: how often its rows are seen in an epoch (`mixture.Part`).
        key: of the configuration, for messages.
    """

    path: Path
    eval_path: Path | None = None
    shape: Shape | None = None
    eval_fraction: float | None = None
    eval_count: int | None = None
    max_rows: int = 0
    max_eval_rows: int = 0
    seed: int = 0
    name: str = ""
    weight: float = 1.0
    share: float = 0.0
    key: str = "data"

    @property
    def title(self) -> str:
        """What to call it."""
        return self.name or self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """All of the data.

    Attributes:
        sources: at least one.
        is_mixture: they were given as a list, so each has a name and a part of an epoch.
        deduplicate: leave out training rows that stand further up already, or among the held-out rows.
        max_eval_rows: of all sources together, in proportion to what each holds out; 0 for all.
    """

    sources: tuple[DataSource, ...]
    is_mixture: bool = False
    deduplicate: bool = False
    max_eval_rows: int = 0


def spec_of(data: DataSource | DataSpec) -> DataSpec:
    """One source by itself is all of the data."""
    return data if isinstance(data, DataSpec) else DataSpec(sources=(data,))
