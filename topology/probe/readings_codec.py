"""JSON of dataclasses of readings, read back by the types of their fields: a fault is told with its path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from topology.reading import Reading

V = TypeVar("V")

_MAX_ITEMS: Final = 65536
_MAX_TEXT: Final = 65536  # characters; a list of MIG devices is the longest of all
_MAX_NUMBER: Final = 2**64
_MAX_SHOWN: Final = 80
_READING_KEYS: Final = frozenset({"source", "value", "error"})


class _Misfit(Exception):
    """A part of the JSON that does not fit; its faults are in the list of the decoder."""


def encode(value: Any) -> Any:  # noqa: ANN401 - any part of the readings, to any part of JSON
    """Turn dataclasses, readings and tuples into plain dicts and lists; a reading has its value or its error."""
    if isinstance(value, Reading):
        kept = {"value": encode(value.value)} if value.error is None else {"error": value.error}
        return kept | {"source": value.source}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if is_dataclass(value):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    return value


def decode(kind: type[V], data: object, limits: Mapping[str, int]) -> tuple[V | None, tuple[str, ...]]:
    """Build a `kind` of what `encode` wrote: the value, or None and every fault with its path.

    `limits` are the most entries a list may have, by the name of its field.
    """
    decoder = _Decoder(limits)
    try:
        value = decoder.build(kind, data, "$")
    except _Misfit:
        return None, tuple(decoder.problems)
    return value, ()


class _Decoder:
    def __init__(self, limits: Mapping[str, int]) -> None:
        self.problems: list[str] = []
        self._limits = limits
        self._hints: dict[type, dict[str, Any]] = {}

    def build(self, kind: Any, data: object, path: str, limit: int = _MAX_ITEMS) -> Any:  # noqa: ANN401
        """Build one part.

        Raises:
            _Misfit: if it does not fit; the reason is in `problems`.

        """
        origin = get_origin(kind)
        if origin is Reading:
            return self._reading(get_args(kind)[0], data, path, limit)
        if origin is tuple:
            return self._tuple(get_args(kind), data, path, limit)
        if origin is UnionType:
            rest = next(part for part in get_args(kind) if part is not NoneType)
            return None if data is None else self.build(rest, data, path)
        if is_dataclass(kind):
            return self._object(kind, data, path)
        return self._plain(kind, data, path)

    def _fault(self, path: str, message: str) -> _Misfit:
        self.problems.append(f"{path}: {message}")
        return _Misfit(path)

    def _object(self, kind: Any, data: object, path: str) -> Any:  # noqa: ANN401 - a dataclass
        if not isinstance(data, dict):
            raise self._fault(path, f"{_shown(data)} is no object")
        if kind not in self._hints:
            self._hints[kind] = get_type_hints(kind)
        hints = self._hints[kind]
        faults = len(self.problems)
        for key in data.keys() - hints.keys():
            self._fault(path, f"unknown key {_shown(key)}")
        parts: dict[str, Any] = {}
        for item in fields(kind):
            if item.name in data:
                where, limit = f"{path}.{item.name}", self._limits.get(item.name, _MAX_ITEMS)
                parts[item.name] = self._part(hints[item.name], data[item.name], where, limit)
            elif item.default is MISSING:
                self._fault(path, f"no {item.name}")
        if len(self.problems) > faults:
            raise _Misfit(path)
        return kind(**parts)

    def _part(self, kind: Any, data: object, path: str, limit: int = _MAX_ITEMS) -> Any:  # noqa: ANN401
        # One that does not fit leaves the others to be looked at too.
        try:
            return self.build(kind, data, path, limit)
        except _Misfit:
            return None

    def _reading(self, kind: Any, data: object, path: str, limit: int) -> Reading[Any]:  # noqa: ANN401
        is_reading = isinstance(data, dict) and isinstance(data.get("source"), str) and data.keys() <= _READING_KEYS
        if not is_reading or not isinstance(data, dict):
            raise self._fault(path, f"{_shown(data)} is no reading (a source with a value or an error)")
        value, error = data.get("value"), data.get("error")
        if (value is None) == (error is None):
            raise self._fault(path, "neither a value nor an error" if value is None else "a value and an error")
        source = self._plain(str, data["source"], f"{path}.source")
        if error is not None:
            return Reading(source=source, error=self._plain(str, error, f"{path}.error"))
        return Reading(source=source, value=self.build(kind, value, path, limit))

    def _tuple(self, kinds: tuple[Any, ...], data: object, path: str, limit: int) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise self._fault(path, f"{_shown(data)} is no list")
        if len(data) > limit:
            raise self._fault(path, f"{len(data)} entries, more than {limit}")
        if kinds[-1] is not Ellipsis and len(data) != len(kinds):
            raise self._fault(path, f"{len(data)} entries instead of {len(kinds)}")
        faults = len(self.problems)
        items = tuple(self._part(kinds[0], item, f"{path}[{at}]") for at, item in enumerate(data))
        if len(self.problems) > faults:
            raise _Misfit(path)
        return items

    def _plain(self, kind: Any, data: object, path: str) -> Any:  # noqa: ANN401 - int, float, str
        if kind is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < _MAX_NUMBER:
            data = float(data)
        if type(data) is not kind:
            raise self._fault(path, f"{_shown(data)} does not fit {kind.__name__}")
        if isinstance(data, str) and len(data) > _MAX_TEXT:
            raise self._fault(path, f"a text of {len(data)} characters, more than {_MAX_TEXT}")
        if isinstance(data, int | float) and not (math.isfinite(data) and abs(data) < _MAX_NUMBER):
            raise self._fault(path, "a number out of range")
        return data


def _shown(value: object) -> str:
    # Short, also where the value is a whole tree.
    if isinstance(value, dict | list):
        return f"a JSON {'object' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= _MAX_NUMBER:
        return "a huge number"
    text = repr(value[: _MAX_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
