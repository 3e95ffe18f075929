"""The whole lines of a file that grows, as records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Lines:
    """Reads what was added; a file that became shorter is read again from its start."""

    def __init__(self, path: Path) -> None:
        """Begin at the start of the file, which need not be there yet."""
        self._path, self._offset = path, 0

    def read(self) -> list[Mapping[str, Any]]:
        """Return the records since the last call; a line that is being written comes next time."""
        try:
            if self._path.stat().st_size < self._offset:
                self._offset = 0
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                text = stream.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        found: list[Mapping[str, Any]] = []
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
        return found
