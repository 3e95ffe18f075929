"""A saved description of machines, recognised by its content: one file, or a folder with one a host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topology.codec import from_json
from topology.complete import completed
from topology.errors import TopologyError
from topology.hosts import split_hosts
from topology.judge import contradictions, judged
from topology.network import NetworkSpec, merge, network_from_json
from topology.probe.assemble import assemble
from topology.probe.bytes_in import read_bounded, text_of
from topology.probe.readings import READINGS_SCHEMA, readings_from_json

if TYPE_CHECKING:
    from topology.model import Topology

_NETWORK_FILE: Final = "network.json"
# `[4m` of a lost colour and `[node1]` of a log are no lists.
_JSON: Final = re.compile(r"\s*(?:\{|\[\s*[\[{\"\]])")
_MAX_FILES: Final = 4096
_MAX_PROBLEMS: Final = 20
_MAX_OBJECTS: Final = 400_000  # a thousand hosts of eight GPUs have some 150,000
_FORMATS: Final = (
    "give a file written by `trainmaster probe save=FILE`, the output of `nvidia-smi topo -m`, an NCCL topology XML, "
    "or a folder with one of these for each host"
)


def read_topology(path: Path | str, *, network: NetworkSpec | None = None, matrix: int | None = None) -> Topology:
    """Read machines from a file or a folder.

    Understood are saved topologies and recorded readings (JSON), `nvidia-smi topo -m` text and NCCL or RCCL
    topology XML. In a folder each file, or each folder below it, is a host; `network.json` there tells how they
    are joined.

    Args:
        path: of a file, of a folder, or /dev/stdin.
        network: how hosts are joined; goes before `network.json`.
        matrix: which of several matrices of a text counts, from 1 on.

    Raises:
        TopologyError: it cannot be read or is in no such format; all problems of a folder come at once.

    """
    path = Path(path)
    asked = f"a topology from {path}"
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    found = _folder(path, network, asked) if is_folder else _file(path, path.stem, matrix, asked)
    if not is_folder and (network is not None or _is_apart(found)):
        found = merge([found], network)
    wrong = [text for one in split_hosts(found) for text in contradictions(one)]
    if wrong:
        raise TopologyError(asked=asked, problems=tuple(wrong[:_MAX_PROBLEMS]), remedy="record it again on the machine")
    return judged(found)


def _is_apart(found: Topology) -> bool:
    """Whether there are hosts without anything between them, as in text gathered from many."""
    hosts = {switch.id for switch in found.switches if switch.host is not None}
    return len(found.hosts) > 1 and all(switch.id in hosts for switch in found.switches)


def _folder(path: Path, network: NetworkSpec | None, asked: str) -> Topology:
    try:
        entries = sorted(entry for entry in path.iterdir() if not _is_passed_over(entry, path))
        files = [(entry, _in_folder(entry)) for entry in entries if entry.name != _NETWORK_FILE]
    except OSError as error:
        raise TopologyError(asked=asked, found=str(error), remedy="give a folder that can be read") from error
    if not files or len(files) > _MAX_FILES:
        found = f"{len(files)} files in the folder; 1 to {_MAX_FILES} are read"
        raise TopologyError(asked=asked, found=found, remedy=_FORMATS)
    hosts, problems = [], []
    for entry, file in files:
        try:
            hosts.append(_file(file, entry.stem if entry.is_file() else entry.name, None, asked))
        except TopologyError as error:
            problems += [f"{file.relative_to(path)}: {problem}" for problem in error.problems[:3]]
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        told = problems[:_MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
        remedy = "correct these files, or take them out of the folder"
        raise TopologyError(asked=asked, problems=tuple(told), remedy=remedy)
    if network is None and (path / _NETWORK_FILE).is_file():
        network = _network_of(path / _NETWORK_FILE, asked)
    return merge(hosts, network)


def _is_passed_over(entry: Path, folder: Path) -> bool:
    # A link to the folder itself, or to one around it, would count its hosts twice.
    inside = folder.resolve()
    return entry.name.startswith(".") or (entry.is_dir() and entry.resolve() in {inside, *inside.parents})


def _network_of(path: Path, asked: str) -> NetworkSpec:
    try:
        return network_from_json(_json(text_of(read_bounded(path, asked), asked), asked))
    except TopologyError as error:
        problems = tuple(f"{path.name}: {problem}" for problem in error.problems)
        raise TopologyError(asked=asked, problems=problems, remedy=error.remedy) from error


def _in_folder(entry: Path) -> Path:
    # A folder a host, as copied from many hosts: its one file counts.
    if not entry.is_dir():
        return entry
    inside = [file for file in sorted(entry.iterdir()) if file.is_file() and not file.name.startswith(".")]
    return inside[0] if len(inside) == 1 else entry


def _file(path: Path, name: str, matrix: int | None, asked: str) -> Topology:
    content = read_bounded(path, asked)
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:64] or "host"
    try:
        return _read(content, host, path.name, matrix, asked)
    except TopologyError as error:
        raise TopologyError(asked=asked, problems=error.problems, remedy=error.remedy) from error


def _read(content: bytes, host: str, name: str, matrix: int | None, asked: str) -> Topology:
    # Each parser is some hundred kilobytes of code: a probe of this host needs none of them.
    from topology.probe import nccl_xml

    if nccl_xml.recognises(content):
        return nccl_xml.parse_nccl_xml(content, host=host)
    from topology.probe import smi

    text = text_of(content, asked)
    if not _JSON.match(text) and smi.recognises(text):
        return smi.read_smi(text, host=host, matrix=matrix)
    why = None if _JSON.match(text) else smi.failure_of(text)
    if why is not None:
        remedy = "mend this on that machine, then record `nvidia-smi topo -m` again"
        raise TopologyError(asked=asked, found=why, remedy=remedy)
    data = _json(text, asked)
    if isinstance(data, dict) and data.get("schema") == READINGS_SCHEMA:
        return assemble(readings_from_json(data), source=f"readings {name}")
    return completed(from_json(data))


def _json(text: str, asked: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    import json  # a probe of this host does not need it, and it is slow to import

    if text.count("{") + text.count("[") > _MAX_OBJECTS:
        found = f"more than {_MAX_OBJECTS} JSON objects and lists"
        raise TopologyError(asked=asked, found=found, remedy="give the description alone")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise TopologyError(asked=asked, found="JSON nested too deeply", remedy=_FORMATS) from error
    except ValueError as error:
        raise TopologyError(asked=asked, found=_guess(text, error), remedy=_FORMATS) from error


def _guess(text: str, error: ValueError) -> str:
    if not text.strip():
        return "an empty file"
    if text.lstrip().startswith("<"):
        return "XML whose root is not <system version=...>"
    if "digits" in str(error):
        return "a number of thousands of digits"
    return f"neither a GPU matrix nor JSON ({str(error)[:200]})"
