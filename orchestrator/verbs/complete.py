"""What the TAB key may mean: verbs, groups and their options, keys, values, run directories and files.

A shell asks `trainmaster --complete`, so that the words are always those of the installed version. Nothing of Hydra is
imported: keys come from the configuration's types, options from the names of files.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

from orchestrator.compose import groups
from orchestrator.config import Fault, RunConfig
from orchestrator.experiments import FOLDER
from orchestrator.hydra_words import OPTIONS
from orchestrator.verbs.table import VERBS, Needs

_FLAGS: Final = ("--help", "--version", "--completion")
_VERB_FLAGS: Final = {
    "--help": "keys and groups",
    "--cfg": "print the configuration",
    "-m": "sweep",
    "--multirun": "sweep",
    "--info": "how the configuration is put together",
}
_AFTER_FLAG: Final = {
    "--cfg": ("job", "hydra", "all"),
    "-c": ("job", "hydra", "all"),
    "--completion": ("bash", "zsh", "fish"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
_PATH_GROUPS: Final = frozenset({"model", "data", "topology", "experiment"})
_PATH_KEYS: Final = frozenset(
    {"save", "save_readings", "picture", "calibration", "launch.hostfile", "launch.template", "launch.venv"}
    | {"launch.container", "route.export", "monitor.replay"}
)
_RUN_KEYS: Final = frozenset({"resume", "run_dir"})
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "adapter.targets": ("all-linear",),
    "calibration": ("auto", "none"),
    "faults.only": ("all", *(fault.value for fault in Fault if fault is not Fault.none)),
    "monitor.report_to": ("none", "tensorboard", "wandb", "mlflow"),
    "report_to": ("none", "tensorboard", "wandb", "mlflow"),
    "resume": ("true",),
}
_KEYS_OF_A_RUN: Final = ("run_dir", "format", "save", "follow")
_FAULTS_WORDS: Final = ("list", "run")
_MOST_FILES: Final = 500


class Candidate(typing.NamedTuple):
    """A word that TAB may make of what is typed, and what is said beside it."""

    text: str
    about: str = ""


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Return what the last word may become.

    Args:
        words: those after the command's name, up to the cursor; the last one is the one that is typed, perhaps empty.
    """
    typed = words[-1] if words else ""
    found = _of(words[:-1], typed)
    return sorted({one.text: one for one in found if one.text.startswith(typed)}.values())


def _of(before: Sequence[str], typed: str) -> Iterator[Candidate]:
    if before and before[-1] in _AFTER_FLAG:
        yield from map(Candidate, _AFTER_FLAG[before[-1]])
        return
    if not before:
        yield from (Candidate(verb.name, verb.text) for verb in VERBS)
        yield from map(Candidate, _FLAGS)
        return
    verb = next((verb for verb in VERBS if verb.name == before[0]), None)
    if verb is None:
        return
    if typed.startswith("-"):
        yield from (Candidate(flag, about) for flag, about in _VERB_FLAGS.items())
        return
    key, equals, value = typed.partition("=")
    if equals:
        yield from _values(key, value)
        return
    if len(before) == 1:
        if verb.needs is Needs.RUN or verb.name == "train":
            yield from _runs(typed)
        if verb.name == "faults":
            yield from map(Candidate, _FAULTS_WORDS)
    if verb.needs is Needs.RUN:
        yield from (Candidate(f"{key}=") for key in _KEYS_OF_A_RUN)
    else:
        yield from _keys(typed, sweeps=verb.name == "train")


def _keys(typed: str, *, sweeps: bool) -> Iterator[Candidate]:
    """Keys and groups, a level at a time: `adapter=`, `adapter.`, and after the dot `adapter.rank=`."""
    head, dot, _ = typed.lstrip("+").rpartition(".")
    sign = typed[: len(typed) - len(typed.lstrip("+"))]
    for key in key_types():
        if key.startswith(head + dot):
            inner, more, _ = key[len(head + dot) :].partition(".")
            yield Candidate(f"{sign}{head}{dot}{inner}{more or '='}")
    if not dot:
        yield from (Candidate(f"{sign}{group}=", "group") for group in groups())
        yield Candidate(f"{sign}report_to=", "trackers")
        if sweeps:
            yield from (Candidate(f"{group}=", "of a sweep") for group in OPTIONS)


def _values(key: str, value: str) -> Iterator[Candidate]:
    """Values of a key; after a comma the next one of a list or a sweep."""
    bare = key.lstrip("+")
    before, comma, last = value.rpartition(",")
    if not comma and value.startswith("["):
        before, comma, last = "", "[", value[1:]
    start = f"{key}={before}{comma}"
    taken = set(before.strip("[").split(",")) if comma else set()
    for word in _words(bare):
        if word not in taken:
            yield Candidate(start + word)
    if bare in _RUN_KEYS:
        yield from (Candidate(start + one.text, one.about) for one in _runs(last))
    if bare in _PATH_GROUPS or bare in _PATH_KEYS or bare.endswith("path"):
        wanted = (".yaml", ".yml", "/") if bare == "experiment" else ("",)
        yield from (Candidate(start + path) for path in _files(last) if path.endswith(wanted))


def _words(key: str) -> Iterable[str]:
    options = {**groups(), **OPTIONS}
    if key == "experiment":
        return [*options[key], *(path.stem for path in Path(FOLDER).glob("*.yaml"))]
    if key in options:
        return options[key]
    if key in _ALSO:
        return _ALSO[key]
    if key == "bench.only":
        return _bench_parts()
    return _words_of_type(key_types().get(key))


def _bench_parts() -> Iterable[str]:
    from orchestrator.measure.parts import PARTS

    return ("all", *(part.name for part in PARTS))


def _words_of_type(hint: Any) -> Iterable[str]:  # noqa: ANN401 - any type of a field
    if isinstance(hint, types.UnionType):
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return ("auto", *_words_of_type(inner))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [str(member.value) for member in hint]
    return ("true", "false") if hint is bool else ()


def key_types(cls: type = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Return the type of every key, `adapter.rank` and the like."""
    hints = typing.get_type_hints(cls)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        name, hint = prefix + field.name.removesuffix("_"), hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found |= key_types(hint, name + ".")
        else:
            found[name] = hint
    return found


def _runs(typed: str) -> Iterator[Candidate]:
    """Run directories: those below what is typed, and at the start those in runs/."""
    folders = list(_files(typed, only_folders=True))
    folders += list(_files("runs/", only_folders=True)) if not typed or "runs/".startswith(typed) else []
    for folder in folders:
        if (Path(folder).expanduser() / "plan.json").exists():
            yield Candidate(folder.rstrip("/"), "run")
        else:
            yield Candidate(folder)


def _files(typed: str, *, only_folders: bool = False) -> Iterator[str]:
    """Files and folders (with a slash) whose names go on from what is typed."""
    head, slash, name = typed.rpartition("/")
    try:
        entries = sorted(Path(head + slash or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return
    shown = [one for one in entries if one.name.startswith(name) and (name.startswith(".") or one.name[0] != ".")]
    for entry in shown[:_MOST_FILES]:
        if entry.is_dir():
            yield f"{head}{slash}{entry.name}/"
        elif not only_folders:
            yield f"{head}{slash}{entry.name}"
