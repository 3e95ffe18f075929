"""What `probe` shows and writes: the machine as text, JSON, picture and files other tools read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import OutputFormat, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.machine import machine_of, probe_readings
from topology.codec import to_json
from topology.errors import TopologyError
from topology.judge import islands_at, machine_classes
from topology.model import Topology
from topology.probe import readings_to_json
from topology.render import render

_INDENT_UP_TO_HOSTS = 16  # larger snapshots are for machines to read
_SUFFIXES = (".json", ".xml", ".txt")
_MAX_FILES = 256
_LEVELS = ("NV", "PIX", "PXB", "PHB", "NODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The document to print, and the files to write: key, path and content of each."""

    text: str
    json: str
    files: tuple[tuple[str, str, str], ...]


def probe(config: RunConfig, machine: Topology | None = None) -> Shown:
    """Look at the machine of the configuration, or at the one given, and draw what is asked for.

    Raises:
        UserError: the machine cannot be read, or not be written in the form asked for.
    """
    _check_names(config)
    files = []
    if config.save_readings:
        if config.topology.path or config.topology.preset or machine is not None:
            found = "readings are taken on the machine itself, and this is another"
            raise UserError(Problem(where="save_readings", found=found, remedy="Take one of the two away."))
        readings, topology = probe_readings()
        files.append(("save_readings", config.save_readings, json.dumps(readings_to_json(readings), indent=2) + "\n"))
    else:
        topology = machine or machine_of(config)
    is_wanted = config.format is OutputFormat.json or config.save.lower().endswith(".json")
    document = _document(topology) if is_wanted else ""
    if config.save:
        files += _saved(config.save, topology, document)
    if config.picture:
        from topology.render.svg import svg

        files.append(("picture", config.picture, svg(topology)))
    return Shown(text=render(topology) + "\n", json=document, files=tuple(files))


def _document(topology: Topology) -> str:
    body = to_json(topology)
    for host, kind in zip(body["hosts"], machine_classes(topology), strict=True):
        host["class"] = kind.value
    body["islands"] = {level: [list(group) for group in islands_at(topology, level)] for level in _LEVELS}
    indent = 2 if len(topology.hosts) <= _INDENT_UP_TO_HOSTS else None
    return json.dumps(body, indent=indent) + "\n"


def _check_names(config: RunConfig) -> None:
    problems = []
    if config.picture and not config.picture.lower().endswith(".svg"):
        remedy = "Pictures are SVG: give a name in .svg."
        problems.append(Problem(where="picture", found=f"found {config.picture}", remedy=remedy))
    if config.save and Path(config.save).suffix.lower() not in _SUFFIXES:
        remedy = f"Give a name in {', '.join(_SUFFIXES)}."
        problems.append(Problem(where="save", found=f"found {config.save}", remedy=remedy))
    names = [name for name in (config.save, config.save_readings, config.picture) if name]
    if len({Path(name).absolute() for name in names}) < len(names):
        problems.append(Problem(where=names[0], found="two outputs in one file", remedy="Give each its own."))
    if problems:
        raise UserError(*problems)


def _saved(path: str, topology: Topology, document: str) -> list[tuple[str, str, str]]:
    """Write the machine in the format the name of the file asks for; other tools' formats hold one host a file."""
    name = Path(path)
    if name.suffix.lower() == ".json":
        return [("save", path, document)]
    from topology.render.nccl_xml import nccl_xml
    from topology.render.smi import smi_text

    write = nccl_xml if name.suffix.lower() == ".xml" else smi_text
    hosts = [host.name for host in topology.hosts]
    if len(hosts) > _MAX_FILES:
        found = f"{len(hosts)} hosts, each in a file of its own"
        raise UserError(Problem(where=f"save={path}", found=found, remedy="Save them as one file in .json."))
    try:
        if len(hosts) == 1:
            return [("save", path, write(topology))]
        names = _apart([re.sub(r"[^A-Za-z0-9._-]+", "-", host) for host in hosts])
        return [
            ("save", str(name.with_stem(f"{name.stem}-{plain}")), write(topology, host))
            for plain, host in zip(names, hosts, strict=True)
        ]
    except TopologyError as error:
        problems = (Problem(where=f"save={path}", found=text, remedy=error.remedy) for text in error.problems)
        raise UserError(*problems) from error


def _apart(names: list[str]) -> list[str]:
    """Number names that are alike, so that no host writes over another."""
    return [f"{name}-{at}" if names.count(name) > 1 else name for at, name in enumerate(names)]
