"""What a model card tells of a run, read from its folder; nothing of it names this machine's folders."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.compose import compose
from orchestrator.config import RunConfig
from orchestrator.config_codec import dump_config
from orchestrator.dataset.locate import locate
from orchestrator.dataset.questions import prompts_file
from orchestrator.errors import UserError
from orchestrator.export.source import Source
from orchestrator.report.command import written
from orchestrator.run_dir import OF_THE_COMMAND, leaves, read_json
from orchestrator.versions import versions
from orchestrator.workload.files import is_hub_id

_CHUNK_BYTES: Final = 1 << 20
_SNAPSHOT: Final = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")
_FRONT: Final = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)
_LICENCE: Final = re.compile(r"^license:\s*([\w.+-]+)\s*$", re.MULTILINE)
# Of the machine rather than of the training; some hold names of hosts, accounts and folders.
_NOT_TOLD: Final = (
    "launch.",
    "topology.",
    "monitor.",
    "network.",
    "faults.",
    "sweep.",
    "bench.",
    "route.",
    "recovery.",
)
_FOLDERS_LEFT_OUT: Final = frozenset({"eval.refusals", "eval.lm_eval_folder"})  # besides what ends in `path`
_MOST_FILES: Final = 8  # of a source


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of the data.

    Attributes:
        name: without its folder.
        sha256: of what the run read; of the file as it is now, where the run did not keep that.
        since: what became of the file after the run had read it; empty where it is the same.
    """

    name: str
    sha256: str
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the card tells.

    Attributes:
        base_id: hub id of the base; empty where none is known.
        base_name: what to call it.
        licence: of the base, as its own card says; empty where it says none.
        data_name: of the data.
        files: of it.
        are_files_of_now: their checksums are of the export, as the run did not keep any.
        manifest: of the tokenised rows.
        scores: of the last evaluation, by name.
        versions: of the packages here and now.
        command: that starts the same training.
    """

    base_id: str
    base_name: str
    licence: str
    data_name: str
    files: tuple[DataFile, ...]
    are_files_of_now: bool
    manifest: Mapping[str, Any]
    scores: Mapping[str, float]
    versions: Mapping[str, str]
    command: str


def gather(source: Source) -> Facts:
    """Read all of it."""
    base_id = hub_id_of(source)
    packages = versions()
    found = {"trainmaster": packages["trainmaster"], "python": packages["python"], **packages["packages"]}
    after = source.summary.get("eval_after")
    manifest = read_json(source.run_dir / "data" / "manifest.json") or {}
    kept = _kept_files(source.asked, manifest.get("sources"))
    return Facts(
        base_id=base_id,
        base_name=base_id or Path(source.model.rstrip("/")).name,
        licence=_licence(source.base),
        data_name=", ".join(name for name, _ in _sources(source.asked)),
        files=kept or _files(source.asked),
        are_files_of_now=not kept,
        manifest=manifest,
        scores=_numbers(after if isinstance(after, dict) else {}),
        versions={name: str(version) for name, version in found.items() if version},
        command=_command(source.asked, base_id),
    )


def hub_id_of(source: Source) -> str:
    """Return the hub id of the base, also where the run was given the hub's own cache or a copy that tells its id."""
    if is_hub_id(source.model) and not Path(source.model).exists():
        return source.model
    match = _SNAPSHOT.search(f"{source.model}/")
    return f"{match[1]}/{match[2]}" if match else ""


def _licence(base: Path | None) -> str:
    if base is None:
        return ""
    try:
        text = (base / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    front = _FRONT.match(text)
    found = _LICENCE.search(front[1]) if front else None
    return found[1] if found else ""


def _sources(asked: RunConfig) -> list[tuple[str, str]]:
    """(name, path) of the data, or of each source of a mixture."""
    if not asked.data.sources:
        return [(_short(asked.data.path), asked.data.path)]
    return [(source.name or _short(source.path), source.path) for source in asked.data.sources]


def _kept_files(asked: RunConfig, digests: object) -> tuple[DataFile, ...]:
    """The files that the run read, by the checksums that it kept of them; none where it kept none."""
    known = digests if isinstance(digests, Mapping) else {}
    by_source: dict[str, list[DataFile]] = {}
    for path, digest in known.items():
        own = by_source.setdefault(_source_of(asked, Path(path)), [])
        if len(own) < _MOST_FILES:
            name = _file_name(asked, _source_of(asked, Path(path)), Path(path))
            own.append(DataFile(name=name, sha256=str(digest), since=_since(Path(path), str(digest))))
    return tuple(file for own in by_source.values() for file in own)


def _source_of(asked: RunConfig, file: Path) -> str:
    """Name of the source that a file is of; empty where the data has no sources with names."""
    for source, (name, _) in zip(asked.data.sources, _sources(asked), strict=False):
        roots = [Path(each) for each in (source.path, source.eval_path) if each]
        if any(root == file or root in file.parents for root in roots):
            return name
    return ""


def _since(file: Path, digest: str) -> str:
    try:
        return "" if _sha256(file) == digest else "the file has changed since"
    except OSError:
        return "the file is not there any more"


def _file_name(asked: RunConfig, source: str, file: Path) -> str:
    return file.name if not source or file.name == source or not asked.data.sources else f"{source}: {file.name}"


def _files(asked: RunConfig) -> tuple[DataFile, ...]:
    """The files as they are now, as far as they are there."""
    return tuple(
        DataFile(name=_file_name(asked, name, file), sha256=told)
        for name, path in _sources(asked)
        for file, told in _checksums(path)
    )


def _checksums(path: str) -> list[tuple[Path, str]]:
    try:
        return [(file, _sha256(file)) for file in locate(Path(path)).train_files[:_MOST_FILES]]
    except (UserError, OSError):
        return []  # gone, or of another kind: the rows' own checksum is told


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _numbers(body: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in body.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, prefix if key in {"metrics", "scores"} else f"{prefix}{key} ")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + key] = float(value)
    return found


def _command(asked: RunConfig, base_id: str) -> str:
    """Return the command with what differs from the defaults; files are named without their folders."""
    default = dict(leaves(dump_config(compose(["model=x", "data=x"])[0])))
    words = [f"model={base_id or './' + _short(asked.model.path)}"]
    if not asked.data.sources:
        words.append(f"data={_short(asked.data.path)}")
    for key, value in leaves(dump_config(asked)):
        is_told = key not in OF_THE_COMMAND and not key.startswith(_NOT_TOLD) and key not in {"model.path", "data.path"}
        if is_told and key in default and value != default[key]:
            words.append(f"{key}={written(_without_folders(key, value))}")
    return "trainmaster train " + shlex.join(words)


def _without_folders(key: str, value: Any) -> Any:  # noqa: ANN401 - of any key
    if isinstance(value, Mapping):
        return {own: _without_folders(own, each) for own, each in value.items()}
    if isinstance(value, list):
        is_file = key == "eval.prompts" and prompts_file(value) is not None
        return [_short(each) if is_file else _without_folders(key, each) for each in value]
    is_path = key.endswith("path") or key in _FOLDERS_LEFT_OUT
    return _short(value) if is_path and isinstance(value, str) else value


def _short(path: str) -> str:
    return path if is_hub_id(path) and not path.startswith("/") else Path(path.rstrip("/")).name
