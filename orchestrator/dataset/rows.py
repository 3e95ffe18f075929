"""One row of a user's file, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.dataset.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a file holds at one place.

    Attributes:
        path: the file.
        line: 1-based line, or row number where the format has no lines.
        unit: what `line` counts.
        fields: the columns or keys; values are plain JSON values.
    """

    path: Path
    line: int
    unit: str = "line"
    fields: Mapping[str, object]

    def error(self, problem: str, remedy: str) -> DataError:
        """A problem at this row."""
        return DataError(path=self.path, line=self.line, unit=self.unit, problem=problem, remedy=remedy)
