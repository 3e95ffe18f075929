"""The verb: question, machine, answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from orchestrator.calibration_file import Chosen
from orchestrator.calibration_store import choose_calibration
from orchestrator.config import RunConfig
from orchestrator.environment.harm import harms
from orchestrator.environment.lever import levers
from orchestrator.environment.present import levers_json, levers_text, places_of
from orchestrator.environment.read import read_user_environment
from orchestrator.errors import Problem, UserError
from orchestrator.machine import machine_of
from orchestrator.measure.use import COLLECTIVES, LINKS, measured_graph, measured_software
from orchestrator.route.answer import answer, to_json, to_text
from orchestrator.route.ask import Asked, asked
from orchestrator.route.places import group_json, group_of, group_text, pair_json, pair_of, pair_text
from topology.errors import TopologyError
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
    if config.picture and not config.picture.lower().endswith(".svg"):
        remedy = "Pictures are SVG: give a name in .svg."
        raise UserError(Problem(where="picture", found=f"found {config.picture}", remedy=remedy))
    topology = machine_of(config)
    question = asked(config, topology)
    try:
        return _shown(topology, question, config)
    except TopologyError as error:
        remedy = f"{error.remedy[:1].upper()}{error.remedy[1:]}."
        problems = (Problem(where=error.asked, found=text, remedy=remedy) for text in error.problems)
        raise UserError(*problems) from error


def _shown(topology: Topology, question: Asked, config: RunConfig) -> Shown:
    group = group_of(topology, question)
    calibration = choose_calibration(config.calibration, topology, os.environ)
    graph = measured_graph(topology, group.devices, calibration.calibration)
    software = measured_software(graph, calibration.calibration)
    found = answer(graph, question, software)
    users = read_user_environment(os.environ, network=len(set(graph.hosts)) > 1)
    chosen, warned = levers(topology, graph.device_ids, users), harms(users, ports=[nic.name for nic in topology.nics])
    told = _told(calibration, software.source)
    body = to_json(found) | {"groups": group_json(group)} | levers_json(chosen, warned)
    body["calibration"] = {"file": calibration.path, "warnings": list(calibration.warnings), "text": told}
    text = [group_text(topology, group) + to_text(found), told + "\n"]
    text.append(levers_text(chosen, warned, places=places_of(topology)))
    if question.pair:
        score = pair_of(topology, group.devices, question.pair)
        body["path"] = pair_json(score, question.pair)
        text.insert(0, pair_text(score).rstrip("\n") + "\n")
    files: tuple[tuple[str, str, str], ...] = ()
    if config.picture:
        from topology.render.svg_route import route_svg

        files = (("picture", config.picture, route_svg(topology, found.routes[0][-1])),)
    if config.route.export:
        from orchestrator.route.exports import exports

        files += exports(topology, graph, config.route.export, software=software)
    return Shown(body=body, text="\n".join(text), files=files)


def _told(chosen: Chosen, software: str) -> str:
    """Which calibration the times stand on, and what it says nothing of."""
    calibration = chosen.calibration
    lines = [f"warning: {warning}" for warning in chosen.warnings]
    if calibration is None:
        return "\n".join([*lines, f"times by tables ({software}); `trainmaster bench` measures this machine"])
    missing = [name for name in (LINKS, COLLECTIVES) if calibration.section(name) is None]
    if missing:
        words = ",".join(missing)
        lines.append(f"{' and '.join(missing)} by tables: not measured yet (`trainmaster bench bench.only=[{words}]`)")
    if len(missing) < len((LINKS, COLLECTIVES)):
        lines.append(f"times by what was measured on {calibration.made} ({chosen.path})")
    return "\n".join(lines)
