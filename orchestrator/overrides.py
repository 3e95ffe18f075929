"""Command-line overrides before Hydra sees them: bare paths, group values that are paths, typos."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence

from orchestrator.config import RunConfig
from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError

# Groups where a value that is no option is a path or a hub id: group -> option that takes it.
_NAME_LISTS = frozenset(
    (
        *("adapter.targets", "adapter.rank_pattern", "adapter.alpha_pattern", "adapter.modules_to_save"),
        *("adapter.resize.at", "base.quant_pattern"),
        "data.sources",
        *("eval.metrics", "eval.lm_eval", "eval.keywords"),
        *("bench.only", "faults.only", "launch.extra", "launch.hosts", "launch.modules", "launch.mounts"),
        "monitor.report_to",
    )
)
_PATHS = frozenset({"save", "resume", "allocator", "calibration", "monitor.replay", "export.to", "report.against"}) | {
    "eval.refusals",
    "eval.lm_eval_folder",
}
# Values with patterns in them: Hydra's grammar would read a colon or an asterisk its own way.
_PATTERNS = frozenset({"adapter.rank_pattern", "adapter.alpha_pattern", "adapter.resize.at", "base.quant_pattern"})
PATH_GROUPS = {"model": "local", "data": "file", "topology": "file"}
# Keys that are typed without their group.
ALIASES = {"report_to": "monitor.report_to"}
# Groups whose options are names of machines, which people spell in many ways.
_SPELLED_GROUPS = frozenset({"topology"})
_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@:-]*)(?:=(?P<value>.*))?$", re.DOTALL)


def rewrite(arguments: Sequence[str], groups: Mapping[str, Sequence[str]], *, sweep: bool = False) -> list[str]:
    """Return overrides that Hydra understands.

    Args:
        arguments: what the user typed after the verb, without flags.
        groups: option names of each config group.
        sweep: whether commas separate alternatives.

    Raises:
        UserError: naming each override that can mean nothing, with the nearest valid name.
    """
    known = known_keys()
    problems: list[Problem] = []
    out: list[str] = []
    for index, given in enumerate(arguments):
        argument = _without_alias(given)
        match = _OVERRIDE.match(argument)
        if match is None or (match["value"] is None and match["sign"] != "~"):
            if index == 0 and not argument.startswith("-"):
                out.append(f"run_dir={quote(argument)}")
                continue
            before = arguments[index - 1] if index else ""
            problems.append(_no_assignment(argument, before, {*known, *groups, *ALIASES}))
            continue
        key, value = match["key"], match["value"] or ""
        if match["sign"] == "~":
            remedy = f"Give {key} the value you want: {key}=VALUE."
            problems.append(Problem(where=argument, found="keys cannot be taken out", remedy=remedy))
            continue
        if key in PATH_GROUPS and not value:
            problems.append(Problem(where=key, found="no value given", remedy=f"Give a path: {key}=PATH."))
            continue
        if key.startswith("hydra"):
            out.append(argument)
        elif key in groups:
            out.extend(_group_override(key, value, groups[key], argument, problems, sweep=sweep))
        elif key in known:
            out.append(_value_override(argument, key, value, sweep=sweep))
        else:
            remedy = nearest_key(key, known, groups)
            problems.append(Problem(where=key, found="no such key or group", remedy=remedy))
    if problems:
        raise UserError(*problems)
    return out


def _without_alias(argument: str) -> str:
    key, equals, value = argument.partition("=")
    bare = key.lstrip("+")
    return f"{key[: len(key) - len(bare)]}{ALIASES[bare]}{equals}{value}" if equals and bare in ALIASES else argument


def _no_assignment(argument: str, before: str, names: Collection[str]) -> Problem:
    """Say how a word is to be written, as far as can be guessed."""
    remedy = "Write key=value."
    if argument in names:
        remedy = f"Write {argument}=VALUE."
    elif before in names:
        remedy = f"Write {before}={argument}."
    return Problem(where=argument, found="not of the form key=value", remedy=remedy)


def quote(text: str) -> str:
    """Quote a text for Hydra's override grammar, interpolations included: a path means itself."""
    text = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", text)
    escaped = re.sub(r"(\\*)'", lambda m: m[1] * 2 + "\\'", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


def _value_override(argument: str, key: str, value: str, *, sweep: bool) -> str:
    if key in _NAME_LISTS and "," in value and not sweep and value[0] not in "{['\"":
        # Hydra would take the commas for a sweep over the names.
        return f"{argument.split('=', 1)[0]}={quote(value)}"
    if key in _PATTERNS and value and value[0] not in "{['\"":
        return f"{argument.split('=', 1)[0]}={quote(value)}"
    # Paths may hold characters that mean something in Hydra's grammar.
    is_path = key.endswith(("path", "_dir")) or key in _PATHS
    if is_path and not value.startswith(("'", '"', "${")):
        return argument.split("=", 1)[0] + "=" + quote(value)
    return argument


def _group_override(
    key: str,
    value: str,
    options: Sequence[str],
    argument: str,
    problems: list[Problem],
    *,
    sweep: bool,
) -> list[str]:
    if value in options:
        return [argument]
    choices = value.split(",") if sweep else [value]
    if key in _SPELLED_GROUPS:
        choices = [_spelled(choice, options) for choice in choices]
    if choices != [value] and all(choice in options for choice in choices):
        return [f"{argument.split('=', 1)[0]}={','.join(choices)}"]
    if all(choice in options for choice in choices):
        return [argument]
    if key in PATH_GROUPS and value and not value.startswith(("'", '"')):
        quoted = ",".join(quote(choice) for choice in choices)
        return [f"{key}={PATH_GROUPS[key]}", f"{key}.path={quoted}"]
    if key in PATH_GROUPS and value:
        return [f"{key}={PATH_GROUPS[key]}", f"{key}.path={value}"]
    wrong = next(choice for choice in choices if choice not in options)
    problems.append(Problem(where=key, found=f"no option {wrong!r}", remedy=nearest(wrong, options)))
    return []


def _spelled(value: str, options: Sequence[str]) -> str:
    """Return the option that a name means in another spelling (DGX-H100); paths are left alone."""
    if "/" in value or "." in value:
        return value
    plain = re.sub(r"[^a-z0-9+]", "", value.lower())
    return next((option for option in options if re.sub(r"[^a-z0-9+]", "", option) == plain), value)


def nearest_key(key: str, known: Collection[str], groups: Iterable[str]) -> str:
    """Return a hint for a key that is none: one that ends so (`lr`), or one that is written nearly so."""
    hint = nearest(key, [*known, *groups, *ALIASES])
    if "." in key and hint.startswith("Did you mean"):
        return hint
    last = key.rpartition(".")[2]
    if ends := sorted(name for name in known if name.rpartition(".")[2] == last):
        return f"Did you mean {' or '.join(map(repr, ends))}?"
    return hint if hint.startswith("Did you mean") else "`trainmaster VERB --cfg job` prints all keys."


def known_keys(cls: type = RunConfig, prefix: str = "") -> set[str]:
    """Return every key, `adapter.rank` and the like."""
    hints = typing.get_type_hints(cls)
    keys: set[str] = set()
    for field in dataclasses.fields(cls):
        name = prefix + field.name.removesuffix("_")
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            keys |= known_keys(hint, name + ".")
        else:
            keys.add(name)
    return keys
