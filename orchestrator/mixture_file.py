"""`data=mix.yaml`: a file that lists the sources of a mixture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError

_SUFFIXES = (".yaml", ".yml")
_REMEDY = "Write a list under `sources`, such as: sources: [{path: a.jsonl, weight: 2}, {path: b.jsonl}]."
_PATHS = ("path", "eval_path")


def with_sources(raw: dict[str, Any]) -> dict[str, Any]:
    """Put the sources of the file that `data.path` names in its place; paths in it count from its folder.

    Raises:
        UserError: the file cannot be read, or is no list of sources.
    """
    data = raw.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(path, str) or not path.lower().endswith(_SUFFIXES):
        return raw
    sources = [_placed(source, Path(path).parent) for source in _read(path)]
    return {**raw, "data": {**data, "path": "", "sources": sources}}


def _read(path: str) -> list[Any]:
    import yaml

    try:
        body = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        found = error.strerror or str(error)
        raise UserError(Problem(where=path, found=found, remedy="Check the path of the mixture.")) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        found = f"no YAML ({' '.join(str(error).split())})"
        raise UserError(Problem(where=path, found=found, remedy=_REMEDY)) from error
    if not isinstance(body, dict) or not isinstance(body.get("sources"), list):
        found = f"found {type(body).__name__}" if not isinstance(body, dict) else "no list under `sources`"
        raise UserError(Problem(where=path, found=found, remedy=_REMEDY))
    others = [str(key) for key in body if key != "sources"]
    if others:
        raise UserError(
            *(Problem(where=f"{path}: {key}", found="no such key", remedy=nearest(key, ["sources"])) for key in others)
        )
    sources: list[Any] = body["sources"]
    return sources


def _placed(source: object, folder: Path) -> object:
    if isinstance(source, str):
        source = {"path": source}
    if not isinstance(source, Mapping):
        return source
    return {**source, **{key: _from(folder, str(source[key])) for key in _PATHS if source.get(key)}}


def _from(folder: Path, path: str) -> str:
    return str(folder / os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises where there is no home
