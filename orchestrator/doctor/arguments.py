"""Which keys of the command line mean something to `doctor`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.errors import Problem

_KEYS: Final = ("load", "format", "save")


def check_arguments(arguments: Sequence[str]) -> list[Problem]:
    """Refuse keys that would silently do nothing: what follows the verb, as the user typed it.

    Flags (`--cfg job`), their values and `hydra.` keys are not looked at.

    Returns:
        One problem with every such key, or none.
    """
    foreign = [item for at, item in enumerate(arguments) if _is_foreign(item, is_first=at == 0)]
    if not foreign:
        return []
    found = "means nothing to doctor, which examines this very machine and installation"
    remedy = f"It takes {', '.join(f'{key}=' for key in _KEYS[:-1])} and {_KEYS[-1]}="
    if any(_key(item) == "topology" for item in foreign):
        remedy += "; `trainmaster probe topology=...` judges other machines"
    return [Problem(where=", ".join(foreign), found=found, remedy=remedy)]


def _is_foreign(item: str, *, is_first: bool) -> bool:
    if item.startswith("-") or not item:
        return False
    if "=" not in item:
        return is_first or item.startswith("~")  # a bare path can stand first only; elsewhere it is a flag's value
    key = _key(item)
    return key not in _KEYS and not key.startswith("hydra.")


def _key(item: str) -> str:
    return item.partition("=")[0].lstrip("+~")
