"""A result, printed once in the format asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.outputs import write_and_say

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def is_json(config: RunConfig) -> bool:
    """Whether standard output holds one JSON document and nothing else."""
    return config.format.value == "json"


def stream_of(config: RunConfig) -> TextIO:
    """Return where lines of progress go."""
    return sys.stderr if is_json(config) else sys.stdout


def emit(config: RunConfig, body: dict[str, Any], text: str) -> None:
    """Print a result once, in the format asked for, and save it where asked."""
    document = json.dumps(body, indent=2) + "\n"
    if config.save:
        write_and_say(Path(config.save), document, "save")
    print(document if is_json(config) else text, end="")
