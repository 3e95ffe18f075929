"""Words of Hydra's own groups on our command line, and what its errors mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from orchestrator.config_codec import nearest
from orchestrator.errors import Problem

# Group of Hydra -> its options here. Plugins of the user's own may add sweepers.
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "hydra/launcher": ("basic", "submitit_local", "submitit_slurm"),
    "hydra/sweeper": ("basic", "optuna"),
}
_NO_OPTION: Final = re.compile(r"Could not find '(?P<group>[\w/]+)/(?P<option>[^/']+)'")
_NO_OVERRIDE: Final = re.compile(r"Could not override '(?P<key>[^']+)'")
_NO_KEY: Final = re.compile(r"Key '(?P<key>[^']+)' is not in struct")
_FULL_KEY: Final = re.compile(r"full_key: (?P<key>\S+)")


def of_a_sweep_only(override: str) -> Problem | None:
    """Say that an override chooses who runs or samples a sweep, where there is none."""
    key = override.lstrip("+~").partition("=")[0]
    for group in OPTIONS:
        if key == group or key.startswith(group.replace("/", ".") + "."):
            remedy = "Add -m (trainmaster train -m ...), or leave it out."
            return Problem(where=override, found="it is for sweeps, and this is none", remedy=remedy)
    return None


def problem_of(message: str, remedy: str) -> Problem:
    """Say in a line what Hydra refuses.

    Args:
        message: of its exception.
        remedy: where nothing better is known.
    """
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()] or ["Hydra refuses it"]
    if match := _NO_OPTION.search(message):
        listed = lines[lines.index(head) + 1 :] if (head := _listing(lines)) else ()
        known = [line for line in listed if re.fullmatch(r"[\w.+-]+", line)] or list(OPTIONS.get(match["group"], ()))
        if known:
            remedy = nearest(match["option"], known)
        return Problem(where=match["group"], found=f"no option {match['option']!r}", remedy=remedy)
    if match := _NO_OVERRIDE.search(message):
        if match["key"].startswith("hydra"):
            remedy = "`trainmaster VERB --cfg hydra` prints the keys of Hydra."
        return Problem(where=match["key"], found="no such key", remedy=remedy)
    if match := _NO_KEY.search(message):
        full = _FULL_KEY.search(message)
        return Problem(where=full["key"] if full else match["key"], found="no such key", remedy=remedy)
    return Problem(where="configuration", found=lines[0], remedy=remedy)


def _listing(lines: list[str]) -> str | None:
    return next((line for line in lines if line.startswith("Available options")), None)
