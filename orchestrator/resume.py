"""`resume=RUN_DIR` alone is enough: the saved configuration stands in for what is not repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.compose import groups
from orchestrator.overrides import quote
from orchestrator.run_dir import saved_config

# These belong to one command, not to the run.
_OF_THE_COMMAND = frozenset({"resume", "run_dir", "dry_run", "format", "save", "picture"})


def with_saved_config(arguments: Sequence[str]) -> list[str]:
    """Put the saved values of the run to resume before the user's own overrides, which win."""
    given = dict(item.split("=", 1) for item in arguments if "=" in item)
    resume = given.get("resume", "")
    if resume.lower() in {"", "true", "false"}:
        return list(arguments)
    chosen_groups = set(given) & set(groups())
    leaves = {
        key: value
        for key, value in _leaves(saved_config(Path(resume).expanduser()))
        if key not in _OF_THE_COMMAND and key.split(".", 1)[0] not in chosen_groups
    }
    return [*(f"{key}={_text(value)}" for key, value in leaves.items()), *arguments]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found.extend(_leaves(value, f"{prefix}{key}."))
        else:
            found.append((prefix + key, value))
    return found


def _text(value: object) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return quote(",".join(str(item) for item in value))
    return quote(value) if isinstance(value, str) else str(value)
