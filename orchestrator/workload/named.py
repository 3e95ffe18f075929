"""Models by name: the public configurations of well-known models, so that one can plan without their files."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.model import ModelShape

_NEAREST: Final = 3
_LEAST_ALIKE: Final = 0.6
# What people write and authors leave out: `Llama-2-7b-hf`, `Llama 2 7 B`.
_IGNORED: Final = re.compile(r"[^a-z0-9.]|(?<=[-_ ])hf$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A well-known model.

    Attributes:
        id: on the hub.
        names: other ids of the same shape, and short names.
        parameters: what the shape must add up to, as published or as in the weights' headers.
        config: what its `config.json` says, as far as shapes go.
        note: what to tell about it.
    """

    id: str
    names: tuple[str, ...]
    parameters: int
    config: Mapping[str, object]
    note: str


@cache
def presets() -> tuple[Preset, ...]:
    """All presets, in the order of their files."""
    folder = files("orchestrator.workload") / "presets"
    found = []
    for file in sorted(folder.iterdir(), key=lambda x: x.name):
        if file.name.endswith(".json"):
            found += [_preset(row) for row in json.loads(file.read_text(encoding="utf-8"))]
    return tuple(found)


def _preset(row: dict[str, Any]) -> Preset:
    return Preset(
        id=row["id"],
        names=tuple(row["names"]),
        parameters=row["parameters"],
        config=MappingProxyType(row["config"]),
        note=row.get("note", ""),
    )


@cache
def _by_key() -> Mapping[str, Preset]:
    found: dict[str, Preset] = {}
    for preset in presets():
        for name in (preset.id, *preset.names):
            found.setdefault(_key(name), preset)
            found.setdefault(_key(name.rpartition("/")[2]), preset)
    return MappingProxyType(found)


def _key(name: str) -> str:
    return _IGNORED.sub("", name.strip().lower())


def find_preset(name: str) -> Preset | None:
    """The preset of a hub id or short name, whatever its case, dashes and spaces; None without one.

    A hub id that no preset lists is taken for a copy of the model that the last part of its name names.
    """
    return _by_key().get(_key(name)) or _by_key().get(_key(name.rpartition("/")[2]))


def nearest_presets(name: str) -> tuple[str, ...]:
    """Up to three short names of presets that `name` may be meant for: those it begins first, then similar ones."""
    short = {_key(preset.names[0]): preset.names[0] for preset in presets()}
    asked = _key(name.rpartition("/")[2])
    begun = sorted((known for known in short if asked and known.startswith(asked)), key=len)
    close = difflib.get_close_matches(asked, short, n=_NEAREST, cutoff=_LEAST_ALIKE)
    return tuple(short[known] for known in list(dict.fromkeys([*begun, *close]))[:_NEAREST])


def preset_shape(name: str) -> ModelShape:
    """The shape of a model by name, without its files.

    Raises:
        UserError: no preset has this name (with the nearest names).
    """
    preset = find_preset(name)
    if preset is None:
        near = nearest_presets(name)
        short = sorted({preset.names[0] for preset in presets()})
        listed = f"The nearest: {', '.join(near)}." if near else f"Known: {', '.join(short)}."
        raise UserError(Problem(where="model", found=f"no preset is called {name!r}", remedy=listed))
    shape = shape_from_config(preset.id, preset.config)
    notes = (*shape.notes, preset.note) if preset.note else shape.notes
    if _key(name) not in {_key(known) for known in (preset.id, *preset.names)} and "/" in name:
        notes = (*notes, f"{name} is taken for a copy of {preset.id}, by the last part of its name.")
    return replace(shape, source=f"preset {preset.id}", notes=notes)
