"""`resume=RUN_DIR` alone is enough: the saved configuration stands in for what is not repeated."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.compose import groups
from orchestrator.overrides import quote
from orchestrator.run_dir import OF_THE_COMMAND, folder_of, leaves, saved_config


def with_saved_config(arguments: Sequence[str]) -> list[str]:
    """Put the saved values of the run to resume before the user's own overrides, which win."""
    given = dict(item.split("=", 1) for item in arguments if "=" in item)
    resume = given.get("resume", "").strip("'\"")
    if resume.lower() in {"", "true", "false"}:
        return list(arguments)
    chosen_groups = set(given) & set(groups())
    kept = {
        key: value
        for key, value in leaves(saved_config(folder_of(resume)))
        if key not in OF_THE_COMMAND and key.split(".", 1)[0] not in chosen_groups
    }
    return [*(f"{key}={_text(value)}" for key, value in kept.items()), *arguments]


def _text(value: object) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return quote(",".join(str(item) for item in value))
    return quote(value) if isinstance(value, str) else str(value)
