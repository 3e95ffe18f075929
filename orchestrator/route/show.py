"""The verb: question, machine, answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.config import RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.machine import machine_of
from orchestrator.route.answer import answer, to_json, to_text
from orchestrator.route.ask import Asked, asked
from orchestrator.route.places import group_json, group_of, group_text, pair_json, pair_of, pair_text
from topology.errors import TopologyError
from topology.graph import graph_of
from topology.model import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The document, the text, and the files to write: key, path and content of each."""

    body: dict[str, Any]
    text: str
    files: tuple[tuple[str, str, str], ...] = ()


def route(config: RunConfig) -> Shown:
    """Answer `route`.

    Raises:
        UserError: the machine cannot be read, or has no such devices.
    """
    topology = machine_of(config)
    question = asked(config, topology)
    try:
        return _shown(topology, question)
    except TopologyError as error:
        remedy = f"{error.remedy[:1].upper()}{error.remedy[1:]}."
        problems = (Problem(where=error.asked, found=text, remedy=remedy) for text in error.problems)
        raise UserError(*problems) from error


def _shown(topology: Topology, question: Asked) -> Shown:
    group = group_of(topology, question)
    found = answer(graph_of(topology, group.devices), question)
    body, text = to_json(found), group_text(topology, group) + to_text(found)
    body["groups"] = group_json(group)
    if question.pair:
        score = pair_of(topology, group.devices, question.pair)
        body["path"] = pair_json(score, question.pair)
        text = pair_text(score) + text
    return Shown(body=body, text=text)
