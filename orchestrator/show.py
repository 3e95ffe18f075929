"""What `probe` shows and writes: the machine as text, JSON, picture and files other tools read."""

from __future__ import annotations

import json
from dataclasses import dataclass

from orchestrator.config import RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.inputs import machine_of, probe_readings
from topology.codec import to_json
from topology.errors import TopologyError
from topology.judge import islands_at, machine_classes
from topology.model import Topology
from topology.probe import readings_to_json
from topology.render import render

_INDENT_UP_TO_HOSTS = 16  # larger snapshots are for machines to read
_LEVELS = ("NV", "PIX", "PXB", "PHB", "NODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The document to print, and the files to write: key, path and content of each."""

    text: str
    json: str
    files: tuple[tuple[str, str, str], ...]


def probe(config: RunConfig) -> Shown:
    """Look at the machine of the configuration, and draw what is asked for.

    Raises:
        UserError: the machine cannot be read, or not be written in the form asked for.
    """
    files = []
    if config.save_readings:
        if config.topology.path or config.topology.preset:
            found = "readings are taken on the machine itself, and topology= describes another"
            raise UserError(Problem(where="save_readings", found=found, remedy="Take one of the two away."))
        readings, topology = probe_readings()
        files.append(("save_readings", config.save_readings, json.dumps(readings_to_json(readings), indent=2) + "\n"))
    else:
        topology = machine_of(config)
    document = _document(topology)
    if config.save:
        files.append(("save", config.save, _saved(config.save, topology, document)))
    if config.picture:
        from topology.render.svg import svg

        if not config.picture.lower().endswith(".svg"):
            found = f"found {config.picture}"
            raise UserError(Problem(where="picture", found=found, remedy="Pictures are SVG: give a name in .svg."))
        files.append(("picture", config.picture, svg(topology)))
    return Shown(text=render(topology) + "\n", json=document, files=tuple(files))


def _document(topology: Topology) -> str:
    body = to_json(topology)
    for host, kind in zip(body["hosts"], machine_classes(topology), strict=True):
        host["class"] = kind.value
    body["islands"] = {level: [list(group) for group in islands_at(topology, level)] for level in _LEVELS}
    indent = 2 if len(topology.hosts) <= _INDENT_UP_TO_HOSTS else None
    return json.dumps(body, indent=indent) + "\n"


def _saved(path: str, topology: Topology, document: str) -> str:
    """Write the machine in the format the name of the file asks for."""
    kind = path.lower().rsplit(".", 1)[-1]
    if kind not in {"xml", "txt"}:
        return document
    from topology.render.nccl_xml import nccl_xml
    from topology.render.smi import smi_text

    try:
        return nccl_xml(topology) if kind == "xml" else smi_text(topology)
    except TopologyError as error:
        problems = (Problem(where=f"save={path}", found=text, remedy=error.remedy) for text in error.problems)
        raise UserError(*problems) from error
