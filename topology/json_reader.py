"""Values out of parsed JSON, with every fault and its path collected while they are built."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from topology.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")
K = TypeVar("K", bound=Enum)
REQUIRED: Final = object()
_MAX_SHOWN: Final = 60
_MAX_PROBLEMS: Final = 200


class Reader:
    """Collects every fault with its path while values are built."""

    def __init__(self) -> None:
        """Begin without faults."""
        self.problems: list[str] = []

    def get(
        self,
        data: dict[str, Any],
        path: str,
        key: str,
        kind: type[V],
        default: object = REQUIRED,
    ) -> Any:  # noqa: ANN401 - a V, or the default
        """One scalar; None stands for an optional one that is absent, and for one that is wrong."""
        value = data.get(key)
        if value is None:
            if default is REQUIRED:
                self.problems.append(f"{path}.{key}: missing, a {kind.__name__} is needed")
                return kind()
            return default
        good = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if good and isinstance(value, bool) == (kind is bool):
            return value
        self.problems.append(f"{path}.{key}: {shown(value)} is no {kind.__name__}")
        return kind() if default is REQUIRED else default

    def choice(self, data: dict[str, Any], path: str, kind: type[K], default: str) -> K:
        """One member of an enum by its value, under the key `kind`."""
        name = self.get(data, path, "kind", str, default)
        names = [member.value for member in kind]
        if name not in names:
            self.problems.append(f"{path}.kind: {shown(name)} is none of {', '.join(names)}")
            name = default
        return kind(name)

    def items(self, data: dict[str, Any], path: str, key: str, *, required: bool = False) -> list[Any]:
        """Return a list, empty where it is absent or wrong."""
        value = data.get(key)
        if isinstance(value, list):
            return value
        if value is not None or required:
            self.problems.append(f"{path}.{key}: {'missing' if value is None else shown(value)}, a list is needed")
        return []

    def part(
        self,
        data: dict[str, Any],
        path: str,
        key: str,
        value_of: Callable[[Reader, dict[str, Any], str], V],
    ) -> V | None:
        """Return an optional object, built by `value_of`; None where it is absent or wrong."""
        item = data.get(key)
        if item is None or isinstance(item, dict):
            return None if item is None else self.build(f"{path}.{key}", lambda: value_of(self, item, f"{path}.{key}"))
        self.problems.append(f"{path}.{key}: {shown(item)} is no object")
        return None

    def strings(self, data: dict[str, Any], path: str, key: str) -> tuple[str, ...]:
        """Return a list of strings as a tuple."""
        values = self.items(data, path, key)
        wrong = [(at, value) for at, value in enumerate(values) if not isinstance(value, str)]
        self.problems += [f"{path}.{key}[{at}]: {shown(value)} is no str" for at, value in wrong]
        return tuple(value for value in values if isinstance(value, str))

    def each(
        self,
        data: dict[str, Any],
        path: str,
        key: str,
        value_of: Callable[[Reader, dict[str, Any], str], V],
        *,
        required: bool = False,
    ) -> tuple[V, ...]:
        """Return a list of objects, each built by `value_of`; those that fail are told and left out."""
        built: list[V] = []
        for at, item in enumerate(self.items(data, path, key, required=required)):
            where = f"{path}.{key}[{at}]"
            if len(self.problems) > _MAX_PROBLEMS:
                break  # such a file is another thing altogether
            if not isinstance(item, dict):
                self.problems.append(f"{where}: {shown(item)} is no object")
                continue
            before = len(self.problems)
            value = self.build(where, lambda item=item, where=where: value_of(self, item, where))  # type: ignore[misc]
            if value is not None and len(self.problems) == before:
                built.append(value)
        return tuple(built)

    def build(self, path: str, make: Callable[[], V]) -> V | None:
        """Call `make`, and turn a rejected value into faults, unless it was rejected for faults told before."""
        before = len(self.problems)
        try:
            return make()
        except TopologyError as error:
            if len(self.problems) == before:
                self.problems.extend(f"{path}: {problem}" for problem in error.problems)
            return None


def shown(value: object) -> str:
    """Write a value for a message: short, whatever it is."""
    if isinstance(value, (dict, list)):
        return f"a JSON {type(value).__name__}"
    text = repr(value[:_MAX_SHOWN]) if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_SHOWN + 2 else text[:_MAX_SHOWN] + "..."
