"""Hydra's flags on our command line: which there are, and which words belong to them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError
from orchestrator.overrides import known_keys

SWEEP_FLAGS: Final = ("-m", "--multirun")
COMPLETION_FLAGS: Final = ("--shell-completion", "-sc")
INFO_FLAGS: Final = ("--info", "-i")
_HELP_FLAGS: Final = ("--help", "-h", "--hydra-help")
_CONFIG_FLAGS: Final = ("--cfg", "-c")
_PACKAGE_FLAGS: Final = ("--package", "-p")
_INFO_VALUES: Final = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
# Flags that take a word, with the words they take; none listed: any.
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(_CONFIG_FLAGS, ("job", "hydra", "all")),
    **dict.fromkeys((*_PACKAGE_FLAGS, *COMPLETION_FLAGS), ()),
}
_REFUSED: Final = frozenset(
    {"--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--experimental-rerun", "--run", "-r"}
)
KNOWN: Final = (
    *(*SWEEP_FLAGS, *_CONFIG_FLAGS, *_HELP_FLAGS, *INFO_FLAGS, *_PACKAGE_FLAGS, *COMPLETION_FLAGS),
    *("--resolve", "--version"),
)


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether these words start a sweep, rather than ask Hydra for something."""
    flags = {flag.split("=")[0] for flag in split_flags(arguments)[1]}
    asks = {*_CONFIG_FLAGS, *_HELP_FLAGS, *INFO_FLAGS, *COMPLETION_FLAGS}
    return not flags.isdisjoint(SWEEP_FLAGS) and flags.isdisjoint(asks)


def shows_config(flags: Collection[str]) -> bool:
    """Whether the configuration is to be printed."""
    return any(flag.split("=")[0] in _CONFIG_FLAGS for flag in flags)


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell flags and their values from overrides: the value of --cfg is a word of its own."""
    overrides: list[str] = []
    flags: list[str] = []
    before = ""
    for item in arguments:
        is_value = before in _VALUES or (before in INFO_FLAGS and item in _INFO_VALUES)
        if item.startswith("-") or is_value:
            flags.append(item)
        else:
            overrides.append(item)
        before = "" if is_value and not item.startswith("-") else item
    return overrides, flags


def check_flags(flags: Sequence[str]) -> None:
    """Look at flags and their values before Hydra does, which answers with pages of usage.

    Raises:
        UserError: with one problem for each that is wrong.
    """
    problems: list[Problem] = []
    for at, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if not name.startswith("-"):
            continue  # the value of the one before
        if name in _REFUSED:
            remedy = "Set single keys with KEY=VALUE, or pick options of the groups that VERB --help lists."
            problems.append(Problem(where=flag, found="the configuration lies in the package", remedy=remedy))
        elif name not in KNOWN:
            problems.append(Problem(where=flag, found="no such flag", remedy=_instead_of(name)))
        elif name in _VALUES:
            given = value if equals else flags[at + 1] if at + 1 < len(flags) else ""
            words = _VALUES[name]
            if not given or given.startswith("-") or (words and given not in words):
                remedy = f"Write {name} {words[0]}." if not given and words else nearest(given, words or ("PACKAGE",))
                problems.append(Problem(where=name, found=f"found {given or 'nothing after it'}", remedy=remedy))
    if problems:
        raise UserError(*problems)


def _instead_of(flag: str) -> str:
    """What is written where others have flags: keys."""
    key = flag.lstrip("-").replace("-", "_")
    known = known_keys()
    if key in known:
        return f"Write {key}=VALUE."
    ends = sorted(name for name in known if name.rpartition(".")[2] == key)
    if ends:
        return f"Write {' or '.join(f'{name}=VALUE' for name in ends)}."
    return nearest(flag, [name for name in KNOWN if name.startswith("--")])
