"""Experiments of the user: `experiment=FILE.yaml` counts like an option of the group, in sweeps too.

A file holds what a command line could: keys, nested or with dots, and options of groups (`engine: zero3`). The command
line wins over it. `experiment=NAME` also means `experiments/NAME.yaml`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError
from orchestrator.overrides import ALIASES, PATH_GROUPS, known_keys, nearest_key, quote

GROUP: Final = "experiment"
FOLDER: Final = "experiments"  # of the user, below the working directory
_SUFFIXES: Final = frozenset({".yaml", ".yml"})


def with_own_experiments(
    arguments: Sequence[str], groups: Mapping[str, Sequence[str]], *, sweep: bool
) -> tuple[list[str], dict[str, Sequence[str]]]:
    """Make Hydra know the files that `experiment=` names.

    Args:
        arguments: what the user typed after the verb.
        groups: option names of each config group.
        sweep: whether commas separate alternatives.

    Returns:
        The arguments, with each file as an option that Hydra takes, and the groups with these options.

    Raises:
        UserError: a file is missing or holds what no command line could, with the place in it.
    """
    words: list[str] = []
    added: list[str] = []
    problems: list[Problem] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key.lstrip("+") != GROUP or not equals:
            words.append(argument)
            continue
        choices = value.split(",") if sweep else [value]
        found = [_option(choice, groups, problems) for choice in choices]
        added += found
        words.append(f"{key}={','.join(found)}")
    if problems:
        raise UserError(*problems)
    return words, {**groups, GROUP: [*groups.get(GROUP, ()), *added]}


def _option(choice: str, groups: Mapping[str, Sequence[str]], problems: list[Problem]) -> str:
    """The option that a choice means; a file is registered by its path from here."""
    name = choice.strip("'\"")
    if name in groups.get(GROUP, ()):
        return choice
    path = Path(name).expanduser()
    if path.suffix not in _SUFFIXES:
        path = Path(FOLDER) / f"{name}.yaml"
        if not path.is_file():
            known = [*groups.get(GROUP, ()), *(one.stem for one in Path(FOLDER).glob("*.yaml"))]
            remedy = f"{nearest(name, known)} A file of your own is named by its path: {GROUP}=FILE.yaml."
            problems.append(Problem(where=GROUP, found=f"no option {name!r}", remedy=remedy))
            return choice
    try:
        _register(os.path.relpath(path), _node(path, groups))
    except UserError as error:
        problems += error.problems
    return quote(os.path.relpath(path))


def _register(name: str, node: dict[str, Any]) -> None:
    from hydra.core.config_store import ConfigStore

    group, _, option = f"{GROUP}/{name}".rpartition("/")
    ConfigStore.instance().store(group=group, name=option, node=node, package="_global_", provider="trainmaster")


def _node(path: Path, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what Hydra takes: keys as a tree, and options of groups as its own list of defaults."""
    raw = _read(path)
    problems: list[Problem] = []
    tree: dict[str, Any] = {}
    chosen: list[Any] = list(raw.get("defaults") or ())
    known = known_keys()
    for name, value in _leaves(raw, known):
        key, place = ALIASES.get(name, name), f"{path}: {name}"
        if key == "hydra":
            tree[key] = value
        elif key in groups and key != GROUP and not isinstance(value, Mapping):
            option, inner = _choice(key, str(value), groups[key], place, problems)
            chosen.append({f"override /{key}": option})
            for inner_key, text in inner.items():
                _put(tree, inner_key, text)
        elif key in known:
            _put(tree, key, value)
        else:
            problems.append(Problem(where=place, found="no such key or group", remedy=nearest_key(key, known, groups)))
    if problems:
        raise UserError(*problems)
    return {**({"defaults": chosen} if chosen else {}), **tree}


def _read(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf

    where = f"{GROUP}={path}"
    try:
        raw = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except FileNotFoundError as error:
        near = nearest(path.name, [one.name for one in path.parent.glob("*.y*ml")]) if path.parent.is_dir() else ""
        remedy = near if near.startswith("Did") else "Give the path of a YAML file."
        raise UserError(Problem(where=where, found="no such file", remedy=remedy)) from error
    except OSError as error:
        remedy = "Give the path of a YAML file."
        raise UserError(Problem(where=where, found=error.strerror or str(error), remedy=remedy)) from error
    except Exception as error:  # the YAML reader and OmegaConf have many, each with the place in its text
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        found = ", ".join(lines[:2] + [line for line in lines[2:] if line.startswith("in ")][-1:])
        raise UserError(Problem(where=where, found=f"not readable as YAML: {found}", remedy="Mend it.")) from error
    if not isinstance(raw, dict):
        raise UserError(Problem(where=where, found="no keys in it", remedy="Write KEY: VALUE, a line each."))
    return {str(key): value for key, value in raw.items()}


def _leaves(raw: Mapping[str, Any], known: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield key and value, without Hydra's own `defaults`; a mapping that is the value of a key stays whole."""
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if key == "defaults":
            continue
        if isinstance(value, Mapping) and key != "hydra" and key not in known:
            yield from _leaves(value, known, f"{key}.")
        else:
            yield key, value


def _choice(
    group: str, value: str, options: Sequence[str], place: str, problems: list[Problem]
) -> tuple[str, dict[str, str]]:
    """Return the option of a group that a value means, and keys that go with it: a path is the value of one."""
    if value in options:
        return value, {}
    if group in PATH_GROUPS and value:
        return PATH_GROUPS[group], {f"{group}.path": value}
    problems.append(Problem(where=place, found=f"no option {value!r}", remedy=nearest(value, options)))
    return value, {}


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    *groups, last = key.split(".")
    for name in groups:
        tree = tree.setdefault(name, {})
    tree[last] = value
