"""The command that starts a run again: what its configuration sets otherwise than the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.overrides import quote

_PLAIN: Final = re.compile(r"[A-Za-z_/.][\w./:@%+-]*")
# Words that Hydra would not read as text.
_WORDS: Final = frozenset({"null", "true", "false", "nan", "inf", "yes", "no", "on", "off"})
# The same within lists and mappings, where a colon ends a key.
_PLAIN_ITEM: Final = re.compile(r"[A-Za-z_/.][\w./@%+-]*")
_FIRST: Final = ("model.path", "data.path")


def command_of(saved: Mapping[str, Any], defaults: Mapping[str, Any], without: frozenset[str]) -> str:
    """Return the command, a setting on each line.

    Args:
        saved: `key: value` of the run.
        defaults: the same of a command that names nothing but model and data.
        without: keys that belong to one command, not to the run.
    """
    changed = [key for key in saved if key not in without and key not in _FIRST and _differs(key, saved, defaults)]
    words = [
        # A mixture has no path of its own.
        f"{_typed(key, saved[key])}={written(saved[key])}"
        for key in (*(k for k in _FIRST if saved.get(k)), *changed)
    ]
    return " \\\n    ".join(["trainmaster train", *map(shlex.quote, words)])


def _differs(key: str, saved: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """A key that this version does not know cannot be given."""
    return key in defaults and defaults[key] != saved[key]


def _typed(key: str, value: object) -> str:
    """A path stands for the group itself: `model=./base`; a name could be an option of it."""
    return key.removesuffix(".path") if key in _FIRST and "/" in str(value) else key


def written(value: object) -> str:
    """Return a value of a saved configuration as Hydra's grammar takes it on a command line."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(_item, value)) + "]"
    return _text(value, _PLAIN) if isinstance(value, str) else str(value)


def _item(value: object) -> str:
    """An entry of a list; of a group of keys, what is given."""
    if isinstance(value, Mapping):
        given = ((key, each) for key, each in value.items() if each not in (None, ""))
        return "{" + ",".join(f"{key}:{_item(each)}" for key, each in given) + "}"
    return _text(value, _PLAIN_ITEM) if isinstance(value, str) else written(value)


def _text(value: str, plain: re.Pattern[str]) -> str:
    is_plain = plain.fullmatch(value) is not None and value.lower() not in _WORDS
    return value if is_plain else quote(value)
