"""Connected parts of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def connected(ids: Iterable[str], joined: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Group the ids by what joins them, each group and the groups in the order of the ids; O(ids + joined)."""
    leader = {name: name for name in ids}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for a, b in joined:
        leader[find(b)] = find(a)
    groups: dict[str, list[str]] = {}
    for name in leader:
        groups.setdefault(find(name), []).append(name)
    return tuple(tuple(group) for group in groups.values())
