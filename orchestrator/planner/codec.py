"""Frozen dataclasses to plain JSON values and back, exactly. Field names are the keys."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, Final

ADDED: Final = MappingProxyType({"added": True})
"""Metadata of a field with a default that older files do not have: written only where it says something."""


class MalformedError(ValueError):
    """JSON values that are not of the wanted type; the message says where."""


def encode(value: Any) -> Any:  # noqa: ANN401 - any of our values
    """Return `value` as dicts, lists, strings and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            field.name: encode(entry)
            for field, entry in own.items()
            if field.metadata != ADDED or entry != field.default
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(entry) for entry in value]
    return value


def decode(hint: Any, value: Any, path: str) -> Any:  # noqa: ANN401 - a type and JSON
    """Return `value` as the type `hint`.

    Raises:
        MalformedError: with the path of the first value that does not fit.
    """
    if hint is Any:
        return value
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        rest = next(option for option in typing.get_args(hint) if option is not types.NoneType)
        return None if value is None else decode(rest, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(path, value, "a list")
        return tuple(decode(typing.get_args(hint)[0], entry, f"{path}[{at}]") for at, entry in enumerate(value))
    if origin is not None:
        return _mapping(value, path)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, _mapping(value, path), path)
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:  # noqa: ANN401
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _built(hint, path, value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise _wrong(path, value, hint.__name__)
    return value


def _mapping(value: Any, path: str) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        raise _wrong(path, value, "an object")
    return value


def _dataclass(hint: Any, value: dict[str, Any], path: str) -> Any:  # noqa: ANN401
    hints = _hints(hint)
    if odd := (set(value) ^ set(hints)) - (_added(hint) - set(value)):
        msg = f"{path}: keys missing or unknown: {', '.join(sorted(odd))}"
        raise MalformedError(msg)
    fields = {name: decode(kind, value[name], f"{path}.{name}") for name, kind in hints.items() if name in value}
    return _built(hint, path, **fields)


def _built(hint: Any, path: str, *args: Any, **fields: Any) -> Any:  # noqa: ANN401
    try:
        return hint(*args, **fields)
    except ValueError as error:
        msg = f"{path}: {error}"
        raise MalformedError(msg) from error


@cache
def _hints(hint: Any) -> dict[str, Any]:  # noqa: ANN401
    known = typing.get_type_hints(hint)
    return {field.name: known[field.name] for field in dataclasses.fields(hint)}


@cache
def _added(hint: Any) -> frozenset[str]:  # noqa: ANN401
    return frozenset(field.name for field in dataclasses.fields(hint) if field.metadata == ADDED)


def _wrong(path: str, value: object, wanted: str) -> MalformedError:
    return MalformedError(f"{path}: {value!r} is not {wanted}")
