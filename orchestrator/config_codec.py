"""Plain mappings (Hydra, plan.json) to and from the typed configuration, all problems at once."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.config_rules import check_rules
from orchestrator.errors import Problem, UserError

_AUTO = ("auto", "", None)
_MISSING = object()


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """Return a hint naming the closest known name, or the whole list when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."


def parse_config(raw: Mapping[str, Any]) -> RunConfig:
    """Build the typed configuration.

    Raises:
        UserError: with one problem for each wrong key or value.
    """
    problems: list[Problem] = []
    config = _parse_dataclass(RunConfig, raw, "", problems)
    if not problems and isinstance(config, RunConfig):
        problems.extend(check_rules(config))
    if problems or not isinstance(config, RunConfig):
        raise UserError(*problems)
    return config


def dump_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any of our config dataclasses
    """Return the plain mapping that `parse_config` reads back to an equal value."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value = dump_config(value)
        elif isinstance(value, Enum):
            value = value.value
        elif isinstance(value, tuple):
            value = [_dump_item(item) for item in value]
        out[_key(field.name)] = value
    return out


def _dump_item(item: Any) -> Any:  # noqa: ANN401 - of any tuple in the configuration
    if dataclasses.is_dataclass(item):
        return dump_config(item)
    if not isinstance(item, tuple):
        return item
    return f"{item[0]}:{item[1].value}" if isinstance(item[1], Enum) else f"{item[0]}:{item[1]:g}"


def _key(field_name: str) -> str:
    return field_name.removesuffix("_")  # `global` is a keyword of the language


def _parse_dataclass(cls: type, raw: object, path: str, problems: list[Problem]) -> object:
    if not isinstance(raw, Mapping):
        problems.append(Problem(where=path, found=f"found {raw!r}", remedy="Give a group of keys here."))
        return None
    hints = typing.get_type_hints(cls)
    known = {_key(field.name): field for field in dataclasses.fields(cls)}
    for key in raw:
        if key not in known:
            remedy = nearest(str(key), known)
            problems.append(Problem(where=f"{path}{key}", found="no such key", remedy=remedy))
    values: dict[str, Any] = {}
    before = len(problems)
    for key, field in known.items():
        value = raw.get(key, _MISSING)
        if path == "data." and key == "path" and value in (_MISSING, "???") and raw.get("sources"):
            value = ""
        if value is _MISSING or value == "???":
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                problems.append(_required(path + key))
            continue
        values[field.name] = _parse_value(hints[field.name], value, path + key, problems)
    return cls(**values) if len(problems) == before else None


def _required(where: str) -> Problem:
    if where.startswith("data.sources["):
        return Problem(where=where, found="no value given", remedy="Give one: {path: rows.jsonl, weight: 2}.")
    example = {"model.path": "model=./my-llama or model=org/name", "data.path": "data=rows.jsonl"}
    return Problem(
        where=where,
        found="no value given",
        remedy=f"Give one, for example {example.get(where, where + '=VALUE')}.",
    )


def _parse_value(hint: Any, value: object, path: str, problems: list[Problem]) -> object:  # noqa: ANN401
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _parse_dataclass(hint, value, path + ".", problems)
    if isinstance(hint, types.UnionType):  # `int | None`: None stands for "auto"
        if value in _AUTO:
            return None
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return _parse_scalar(hint, value, path, problems, also=" or auto")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _parse_enum(hint, value, path, problems)
    if typing.get_origin(hint) is tuple:
        return _parse_items(typing.get_args(hint)[0], value, path, problems)
    return _parse_scalar(hint, value, path, problems)


def _parse_items(item: Any, value: object, path: str, problems: list[Problem]) -> object:  # noqa: ANN401 - a type
    if dataclasses.is_dataclass(item) and isinstance(item, type):
        return _parse_list(item, value, path, problems)
    if typing.get_origin(item) is tuple and (kind := typing.get_args(item)[1]) is not float:
        return _parse_kinds(kind, value, path, problems)
    if typing.get_origin(item) is tuple:
        parse: Callable[[object, str, list[Problem]], object] = _parse_pairs
    else:
        parse = _parse_numbers if item is float else _parse_names
    return parse(value, path, problems)


def _parse_list(item: type, value: object, path: str, problems: list[Problem]) -> tuple[object, ...]:
    """Read a list of groups of keys, each with a path; a text by itself is the path."""
    if value in (None, "", "none", "???"):
        return ()
    items = value.split(",") if isinstance(value, str) else [value] if isinstance(value, Mapping) else value
    if not isinstance(items, (list, tuple)):
        remedy = "Give a list, such as [{path: a.jsonl, weight: 2}, {path: b.jsonl}]."
        problems.append(Problem(where=path, found=f"found {value!r}", remedy=remedy))
        return ()
    groups = [{"path": each.strip()} if isinstance(each, str) else each for each in items]
    return tuple(_parse_dataclass(item, group, f"{path}[{at}].", problems) for at, group in enumerate(groups))


def _parse_enum(hint: type[Enum], value: object, path: str, problems: list[Problem]) -> object:
    text = "none" if value is None else str(value).lower()
    for member in hint:
        if member.value == text:
            return member
    known = [str(member.value) for member in hint]
    near = nearest(text, known)
    remedy = f"{near} " if near.startswith("Did you mean") else ""
    remedy += f"Use one of {', '.join(known)}."
    problems.append(Problem(where=path, found=f"found {value!r}", remedy=remedy))
    return None


def _parse_names(value: object, path: str, problems: list[Problem]) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(items, (list, tuple)):
        names = tuple(str(item).strip() for item in items if str(item).strip())
        if names:
            return names
    problems.append(Problem(where=path, found=f"found {value!r}", remedy="Give names separated by commas."))
    return ()


def _parse_numbers(value: object, path: str, problems: list[Problem]) -> tuple[float, ...]:
    """Read a list of numbers; nothing in it where the planner is to choose."""
    if value in _AUTO:
        return ()
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    found = [_as_number(item) for item in items]
    if None in found:
        remedy = "Give a list of numbers, such as [70,30], or auto."
        problems.append(Problem(where=path, found=f"found {value!r}", remedy=remedy))
    return tuple(number for number in found if number is not None)


def _parse_pairs(value: object, path: str, problems: list[Problem]) -> tuple[tuple[str, float], ...]:
    """Read numbers by pattern: a mapping, or texts `PATTERN:NUMBER`; nothing where there are none."""
    found = [(name, _as_number(item)) for name, item in _split_pairs(value)]
    if any(number is None or not name or "," in name for name, number in found):
        remedy = "Give PATTERN:NUMBER, separated by commas (q_proj:64,down_proj:8), no comma within a pattern."
        problems.append(Problem(where=path, found=f"found {value!r}", remedy=remedy))
        return ()
    return tuple((name, number) for name, number in found if number is not None)


def _split_pairs(value: object) -> list[tuple[str, object]]:
    """Patterns with what stands behind each; an empty pattern for what is no such list."""
    if value in (None, "", "none", "auto") or value == ["none"]:
        return []
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(items, Mapping):
        return [(str(name), item) for name, item in items.items()]
    if isinstance(items, (list, tuple)):
        return [(name.strip(), item.strip()) for name, _, item in (str(each).rpartition(":") for each in items)]
    return [("", None)]


def _parse_kinds(kind: type[Enum], value: object, path: str, problems: list[Problem]) -> tuple[tuple[str, object], ...]:
    """Read words by pattern: a mapping, or texts `PATTERN:WORD`; nothing where there are none."""
    pairs = _split_pairs(value)
    if any(not name or "," in name for name, _ in pairs):
        first = next(iter(kind)).value
        remedy = f"Give PATTERN:KIND, separated by commas (q_proj:{first}), no comma within a pattern."
        problems.append(Problem(where=path, found=f"found {value!r}", remedy=remedy))
        return ()
    return tuple((name, _parse_enum(kind, item, path, problems)) for name, item in pairs)


def _as_number(item: object) -> float | None:
    if isinstance(item, str):
        try:
            item = float(item)
        except ValueError:
            return None
    number = _as_scalar(float, item)
    return number if isinstance(number, float) else None


def _parse_scalar(hint: type, value: object, path: str, problems: list[Problem], also: str = "") -> object:
    found = _as_scalar(hint, value)
    if found is None:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        remedy = f"Give {kinds.get(hint, hint)}{also}."
        problems.append(Problem(where=path, found=f"found {value!r}", remedy=remedy))
    return found


def _as_scalar(hint: type, value: object) -> object:
    """Return the value as the type, or None where that would lose something."""
    if isinstance(value, bool):
        return value if hint is bool else str(value).lower() if hint is str else None
    if hint is str:
        return "" if value is None else str(value) if isinstance(value, (str, int, float)) else None
    if hint is int and isinstance(value, (int, float)) and float(value).is_integer():
        return int(value)
    if hint is float and isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None
